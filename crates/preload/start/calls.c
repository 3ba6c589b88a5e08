/* The other names while the process is small: libc's or the kernel's own, except for those that bring memory, threads or
 * a break: they load the engine. */

#define _GNU_SOURCE
#include "filter.h"
#include "guest.h"
#include "start.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

typedef long (*any)(long, long, long, long, long, long);

/* Bound to libc under a name that nobody replaces: it may be called in a signal handler. */
extern int __clone(int (*)(void *), void *, int, void *, ...);

/* A private mapping of /dev/zero is anonymous memory. */
static int is_zero_device(int fd) {
    struct stat found;
    int before = errno;
    int is = fd >= 0 && !fstat(fd, &found) && S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 5);
    errno = before;
    return is;
}

long first_mmap(long addr, long len, long prot, long flags, long fd, long offset) {
    int anonymous = flags & MAP_ANONYMOUS || is_zero_device((int)fd);
    if ((flags & MAP_TYPE) == MAP_PRIVATE && anonymous && ramfold_load(__builtin_return_address(0)))
        return ((any)ramfold_slot_mmap)(addr, len, prot, flags, fd, offset);
    return ramfold_call(SYS_mmap, addr, len, prot, flags, fd, offset);
}

/* A mapping that is already there. */
#define KERNEL(name, number)                                                          \
    long first_##name(long a, long b, long c, long d, long e, long f) {               \
        return ramfold_call(number, a, b, c, d, e, f);                                \
    }

KERNEL(munmap, SYS_munmap)
KERNEL(mprotect, SYS_mprotect)
KERNEL(mremap, SYS_mremap)
KERNEL(madvise, SYS_madvise)
KERNEL(process_madvise, SYS_process_madvise)
KERNEL(mlock, SYS_mlock)
KERNEL(mlock2, SYS_mlock2)
KERNEL(munlock, SYS_munlock)
KERNEL(munlockall, SYS_munlockall)
KERNEL(shmat, SYS_shmat)
KERNEL(shmdt, SYS_shmdt)

int first_pkey_mprotect(void *addr, size_t len, int prot, int key) {
    if (key == -1) return (int)first_mprotect((long)addr, (long)len, prot, 0, 0, 0);
    return (int)ramfold_call(SYS_pkey_mprotect, (long)addr, (long)len, prot, key, 0, 0);
}

int first_posix_madvise(void *addr, size_t len, int advice) {
    if (advice == POSIX_MADV_DONTNEED) return 0;
    int before = errno;
    int error = ramfold_call(SYS_madvise, (long)addr, (long)len, advice, 0, 0, 0) ? errno : 0;
    errno = before;
    return error;
}

int first_unshare(int flags) {
    ramfold_carry((unsigned)flags);
    return (int)ramfold_call(SYS_unshare, flags, 0, 0, 0, 0, 0);
}

/* Without kinds: whatever the descriptor is of. */
int first_setns(int fd, int kinds) {
    ramfold_carry(kinds ? (unsigned)kinds : CLONE_NEWUSER);
    return (int)ramfold_call(SYS_setns, fd, kinds, 0, 0, 0, 0);
}

static void *bare_fork;

void ramfold_find_fork(void) { ramfold_find(&bare_fork, "_Fork"); }

pid_t first__Fork(void) {
    ramfold_hold_loading();
    pid_t pid = ((pid_t(*)(void))ramfold_find(&bare_fork, "_Fork"))();
    if (pid) ramfold_release_loading();
    else ramfold_reset_loading();
    return pid;
}

struct copy {
    int (*function)(void *);
    void *argument;
};

/* Memory may come to be managed in the copy. Then the engine must know of its end. */
static int start_copy(void *place) {
    struct copy copy = *(struct copy *)place;
    int status = copy.function(copy.argument);
    ((any)ramfold_slot_syscall)(SYS_exit, status, 0, 0, 0, 0);
    return status;
}

/* These two vary in their arguments, which come where those of any function do. */
int first_clone(int (*function)(void *), void *stack, int flags, void *argument, void *parent_tid, void *tls,
                void *child_tid) {
    ramfold_carry((unsigned)flags);
    if (makes_guest(flags) && ramfold_load(__builtin_return_address(0)))
        return ((int (*)(int (*)(void *), void *, int, void *, void *, void *, void *))ramfold_slot_clone)(
            function, stack, flags, argument, parent_tid, tls, child_tid);
    struct copy copy = {function, argument};
    if (!(flags & CLONE_VM) && function && stack)
        return __clone(start_copy, stack, flags, &copy, parent_tid, tls, child_tid);
    return __clone(function, stack, flags, argument, parent_tid, tls, child_tid);
}

int first_prctl(int option, long a, long b, long c, long d) {
    ramfold_before_call(SYS_prctl, option, a, b);
    if (makes_filter(SYS_prctl, option, a, b) && ramfold_load(__builtin_return_address(0)))
        return ((int (*)(int, long, long, long, long))ramfold_slot_prctl)(option, a, b, c, d);
    return (int)ramfold_call(SYS_prctl, option, a, b, c, d, 0);
}

/* descriptors.c, exec.c. */
extern int first_close_range(unsigned, unsigned, int);
extern int execveat(int, const char *, char *const *, char *const *, int);

long first_syscall(long number, long a, long b, long c, long d, long e, long f) {
    ramfold_before_call(number, a, b, c);
    if (number == SYS_execve) return ramfold_execve((const char *)a, (char *const *)b, (char *const *)c);
    if (number == SYS_execveat)
        return execveat((int)a, (const char *)b, (char *const *)c, (char *const *)d, (int)e);
    if (number == SYS_unshare) return first_unshare((int)a);
    if (number == SYS_setns) return first_setns((int)a, (int)b);
    if (number == SYS_clone) ramfold_carry((unsigned long)a);
    uint64_t flags;
    if (number == SYS_clone3 && a && b >= 8 && ramfold_copy(&flags, (void *)a, sizeof flags)) ramfold_carry(flags);
    if (number == SYS_close && ramfold_looks_closed_yet((int)a)) return -1;
    if (number == SYS_close_range) return first_close_range((unsigned)a, (unsigned)b, (int)c);
    if (number == SYS_mmap) return ((any)ramfold_slot_mmap)(a, b, c, d, e, f);
    if (number == SYS_mlockall && ramfold_load(__builtin_return_address(0)))
        return ((any)ramfold_slot_mlockall)(a, b, c, d, e, f);
    if (makes_filter(number, a, b, c) && ramfold_load(__builtin_return_address(0)))
        return ((long (*)(long, long, long, long, long, long, long))ramfold_slot_syscall)(number, a, b, c, d, e, f);
    return ramfold_call(number, a, b, c, d, e, f);
}

/* libc's function. */
#define LIBC(name)                                                                    \
    long first_##name(long a, long b, long c, long d, long e, long f) {               \
        static void *found;                                                           \
        return ((any)ramfold_find(&found, #name))(a, b, c, d, e, f);                   \
    }

/* Its last argument is not in a register. */
FILE *first_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions) {
    static void *found;
    FILE *(*real)(void *, const char *, cookie_io_functions_t) = ramfold_find(&found, "fopencookie");
    return real(cookie, mode, functions);
}

/* The engine's; libc's where it is not to be had. */
#define ENGINE(name)                                                                  \
    long first_##name(long a, long b, long c, long d, long e, long f) {               \
        static void *found;                                                           \
        if (ramfold_load(__builtin_return_address(0)))                                \
            return ((any)ramfold_slot_##name)(a, b, c, d, e, f);                      \
        return ((any)ramfold_find(&found, #name))(a, b, c, d, e, f);                   \
    }

LIBC(chroot)
LIBC(mincore)
LIBC(msync)
LIBC(pthread_mutex_init)
LIBC(sigaction)
LIBC(signal)
LIBC(__sysv_signal)
LIBC(sigset)
LIBC(fopen)
LIBC(fopen64)
LIBC(fdopen)
LIBC(popen)
LIBC(tmpfile)
LIBC(tmpfile64)
LIBC(fmemopen)
LIBC(open_memstream)
LIBC(open_wmemstream)
LIBC(setmntent)
ENGINE(brk)
ENGINE(sbrk)
ENGINE(mallopt)
ENGINE(mlockall)
ENGINE(pthread_create)
ENGINE(thrd_create)
