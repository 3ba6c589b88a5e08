/* A filter of system calls that answers futex with an error, and lets all else through: `no_futex MIB`. */
#define _GNU_SOURCE
#include "refusing.h"

int main(int argc, char **argv) {
    arguments(argc, argv);
    refuse(SYS_futex);
    press();
    return 0;
}
