/* The limit of address space (RLIMIT_AS, `ulimit -v`).
 *
 * Managed memory lies in a reservation of many TiB, and the pager maps tables and stacks of its own: under the kernel's limit
 * nothing could be mapped any more. So the limit that a program sets, or was started with, is kept here and told back; the
 * engine refuses what passes it (address_space.rs), and programs that are started get it with the settings (exec.c).
 *
 * Price: a program that cannot be managed has no such limit. A limit set for another process, or by a system call of the
 * program's own, is the kernel's. */

#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A limit, of this process in the first place, and of a child that shares its memory until it calls exec in the second. */
static struct {
    _Atomic pid_t process;
    _Atomic rlim_t soft, hard;
} kept[2] = {{0, RLIM_INFINITY, RLIM_INFINITY}, {0, RLIM_INFINITY, RLIM_INFINITY}};

/* Whether anybody has ever set one. */
static atomic_int is_known;

static pid_t self(void) { return (pid_t)ramfold_call(SYS_getpid, 0, 0, 0, 0, 0, 0); }

static long kernels(pid_t process, int resource, const struct rlimit *new, struct rlimit *old) {
    return ramfold_call(SYS_prlimit64, process, resource, (long)new, (long)old, 0, 0);
}

static void keep(int which, struct rlimit limit) {
    kept[which].soft = limit.rlim_cur;
    kept[which].hard = limit.rlim_max;
    is_known = 1;
}

int ramfold_address_space(struct rlimit *limit) {
    if (!is_known) return 0;
    int which = kept[1].process == self();
    limit->rlim_cur = kept[which].soft;
    limit->rlim_max = kept[which].hard;
    return 1;
}

/* For the engine: bytes that the program may map, ULONG_MAX if there is no limit. */
EXPORTED unsigned long ramfold_most_mapped(void) {
    struct rlimit limit;
    return ramfold_address_space(&limit) ? limit.rlim_cur : RLIM_INFINITY;
}

/* What the program was started with: by its parent, in the settings, else by the kernel, which is told to forget it. If it does not
   permit that, it stays the kernel's. */
void ramfold_begin_limits(const char *setting) {
    struct rlimit limit, none = {RLIM_INFINITY, RLIM_INFINITY};
    kept[0].process = self();
    if (setting && *setting) {
        char *end;
        limit.rlim_cur = strtoul(setting, &end, 10);
        limit.rlim_max = *end == ',' ? strtoul(end + 1, NULL, 10) : limit.rlim_cur;
        return keep(0, limit);
    }
    if (kernels(0, RLIMIT_AS, NULL, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    if (!kernels(0, RLIMIT_AS, &none, NULL)) keep(0, limit);
}

/* In a forked child. */
void ramfold_limits_after_fork(void) {
    pid_t process = self();
    if (kept[1].process == process) {
        kept[0].soft = kept[1].soft;
        kept[0].hard = kept[1].hard;
    }
    kept[0].process = process;
    kept[1].process = 0;
}

/* CAP_SYS_RESOURCE, with which limits may be raised. */
static int may_raise(void) {
    struct {
        unsigned version;
        int process;
    } header = {0x20080522, 0};
    struct {
        unsigned effective, permitted, inheritable;
    } data[2] = {{0, 0, 0}};
    return !ramfold_call(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0) && data[0].effective >> 24 & 1;
}

static int set(struct rlimit new, struct rlimit now) {
    if (new.rlim_cur > new.rlim_max) {
        errno = EINVAL;
        return -1;
    }
    if (new.rlim_max > now.rlim_max && !may_raise()) {
        errno = EPERM;
        return -1;
    }
    pid_t process = self();
    if (process == kept[0].process) {
        keep(0, new);
    } else {
        keep(1, new);
        kept[1].process = process;
    }
    return 0;
}

/* Only where memory is managed, and the kernel has no limit that it does not give up. */
static int is_ours(pid_t process, int resource) {
    struct rlimit limit;
    if (resource != RLIMIT_AS || !kept[0].process || (process && process != self())) return 0;
    return is_known || (!kernels(0, RLIMIT_AS, NULL, &limit) && limit.rlim_cur == RLIM_INFINITY);
}

/* Under names of their own here: headers and libraries differ in what they call the types. */
#define AS(name) __asm__(name)
EXPORTED int one_process(pid_t, int, const struct rlimit *, struct rlimit *) AS("prlimit");
EXPORTED int change(int, const struct rlimit *) AS("setrlimit");
EXPORTED int ask(int, struct rlimit *) AS("getrlimit");

int one_process(pid_t process, int resource, const struct rlimit *new, struct rlimit *old) {
    if (!is_ours(process, resource)) return (int)kernels(process, resource, new, old);
    struct rlimit now = {RLIM_INFINITY, RLIM_INFINITY};
    /* Before `old` is written, which may be the same place. */
    struct rlimit wanted = new ? *new : now;
    if (!ramfold_address_space(&now)) kernels(0, RLIMIT_AS, NULL, &now);
    if (new && set(wanted, now)) return -1;
    if (old) *old = now;
    return 0;
}

int change(int resource, const struct rlimit *limit) { return one_process(0, resource, limit, NULL); }

int ask(int resource, struct rlimit *limit) { return one_process(0, resource, NULL, limit); }

/* The same on 64-bit machines. */
EXPORTED int one_process_64(pid_t, int, const struct rlimit *, struct rlimit *) AS("prlimit64")
    __attribute__((alias("prlimit")));
EXPORTED int change_64(int, const struct rlimit *) AS("setrlimit64") __attribute__((alias("setrlimit")));
EXPORTED int ask_64(int, struct rlimit *) AS("getrlimit64") __attribute__((alias("getrlimit")));
