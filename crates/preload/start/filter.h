/* Which call puts a filter before the system calls that follow (seccomp). Both libraries ask: the first loads the engine then, the
 * engine begins management and makes the keeper (src/filters.rs). A probe, which brings no filter, is none. */

#ifndef RAMFOLD_FILTER_H
#define RAMFOLD_FILTER_H

#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* The first three arguments of prctl or seccomp. */
static inline int makes_filter(long number, long a, long b, long c) {
    if (number == SYS_prctl) return (int)a == PR_SET_SECCOMP && (b == SECCOMP_MODE_STRICT || c);
    return number == SYS_seccomp && ((unsigned)a == SECCOMP_SET_MODE_STRICT || ((unsigned)a == SECCOMP_SET_MODE_FILTER && c));
}

#endif
