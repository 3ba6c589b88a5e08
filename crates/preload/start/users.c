/* Giving up root, or a part of what root may: what the run is made of is root's, so it is taken along (carry.c).
 *
 * A daemon, or a tool that starts another program as somebody else or with less rights (su, runuser, setpriv, capsh, bwrap), is held
 * afterwards, and what it starts: to open what another process has open wants all capabilities that this one has (ptrace(2)), and
 * Landlock forbids it. libc's functions are behind these: they change the user of all threads. */

#define _GNU_SOURCE
#include "start.h"

#include <linux/capability.h>
#include <linux/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif

static const uid_t SAME = (uid_t)-1;

static void as_root(void) {
    if (ramfold_call(SYS_geteuid, 0, 0, 0, 0, 0, 0) == 0) ramfold_carry_now();
}

static void before_user(uid_t real, uid_t effective, uid_t saved) {
    if ((real && real != SAME) || (effective && effective != SAME) || (saved && saved != SAME)) as_root();
}

/* Rights that are given up at once, and those that the next program will not have. */
void ramfold_before_call(long number, long a, long b, long c) {
    switch (number) {
    case SYS_setuid: return before_user((uid_t)a, (uid_t)a, (uid_t)a);
    case SYS_setreuid: return before_user((uid_t)a, (uid_t)b, SAME);
    case SYS_setresuid: return before_user((uid_t)a, (uid_t)b, (uid_t)c);
    case SYS_capset: return as_root();
    case SYS_prctl:
        if ((int)a == PR_CAPBSET_DROP || (int)a == PR_SET_SECUREBITS) as_root();
        return;
    case SYS_landlock_restrict_self: return ramfold_carry_now();
    default: return;
    }
}

#define LIBCS(name, ...)                                                              \
    static void *found;                                                               \
    int (*libcs)(__VA_ARGS__) = ramfold_find(&found, #name);

EXPORTED int setuid(uid_t user) {
    LIBCS(setuid, uid_t)
    ramfold_before_call(SYS_setuid, user, 0, 0);
    return libcs(user);
}

EXPORTED int seteuid(uid_t user) {
    LIBCS(seteuid, uid_t)
    ramfold_before_call(SYS_setresuid, SAME, user, SAME);
    return libcs(user);
}

EXPORTED int setreuid(uid_t real, uid_t effective) {
    LIBCS(setreuid, uid_t, uid_t)
    ramfold_before_call(SYS_setreuid, real, effective, 0);
    return libcs(real, effective);
}

EXPORTED int setresuid(uid_t real, uid_t effective, uid_t saved) {
    LIBCS(setresuid, uid_t, uid_t, uid_t)
    ramfold_before_call(SYS_setresuid, real, effective, saved);
    return libcs(real, effective, saved);
}

EXPORTED int capset(cap_user_header_t header, const cap_user_data_t data) {
    LIBCS(capset, cap_user_header_t, const cap_user_data_t)
    ramfold_before_call(SYS_capset, (long)header, (long)data, 0);
    return libcs(header, data);
}
