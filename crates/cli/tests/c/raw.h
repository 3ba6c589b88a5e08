/* System calls by an instruction of the program's own, which no library sees. */
#ifndef RAW_H
#define RAW_H

#include "../../../preload/start/call.h"

#define raw ramfold_call

#endif
