/* Which clone makes a guest (src/guests.rs): a process that shares the memory for good, neither a thread nor a child of vfork. Both
   libraries ask: the first loads the engine then, the engine makes the keeper. */

#ifndef RAMFOLD_GUEST_H
#define RAMFOLD_GUEST_H

#include <sched.h>

static inline int makes_guest(int flags) { return flags & CLONE_VM && !(flags & (CLONE_VFORK | CLONE_THREAD)); }

#endif
