/* Giving up root: what the run is made of is root's, so it is taken along (carry.c).
 *
 * A daemon, or a tool that starts another program as somebody else (su, runuser, setpriv), is held afterwards, and what it
 * starts. libc's functions are behind these: they change the user of all threads. */

#define _GNU_SOURCE
#include "start.h"

#include <sys/syscall.h>
#include <unistd.h>

static const uid_t SAME = (uid_t)-1;

static void before(uid_t real, uid_t effective, uid_t saved) {
    int gives_up = (real && real != SAME) || (effective && effective != SAME) || (saved && saved != SAME);
    if (gives_up && ramfold_call(SYS_geteuid, 0, 0, 0, 0, 0, 0) == 0) ramfold_carry_now();
}

#define LIBCS(name, ...)                                                              \
    static void *found;                                                               \
    int (*libcs)(__VA_ARGS__) = ramfold_find(&found, #name);

EXPORTED int setuid(uid_t user) {
    LIBCS(setuid, uid_t)
    before(user, user, user);
    return libcs(user);
}

EXPORTED int seteuid(uid_t user) {
    LIBCS(seteuid, uid_t)
    before(SAME, user, SAME);
    return libcs(user);
}

EXPORTED int setreuid(uid_t real, uid_t effective) {
    LIBCS(setreuid, uid_t, uid_t)
    before(real, effective, SAME);
    return libcs(real, effective);
}

EXPORTED int setresuid(uid_t real, uid_t effective, uid_t saved) {
    LIBCS(setresuid, uid_t, uid_t, uid_t)
    before(real, effective, saved);
    return libcs(real, effective, saved);
}
