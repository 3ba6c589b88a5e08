/* Functions that vary in their arguments: clone() without CLONE_VM, which copies the process as fork() does; syscall(), which may do
 * the same, and leads to what this library has in the place of other system calls; prctl().
 *
 * A child has a pager of its own only if fork.rs knows of the copy; else what is away would read as zeros there. What
 * shares the parent's memory for good is the affair of guests.rs; for a time (vfork) it is passed on as it is. An exec is the
 * first library's (start/exec.c). Not seen, as by any library: a system call made by the program's own instructions. */

#define _GNU_SOURCE
#include "../start/call.h"
#include "../start/filter.h"
#include "../start/guest.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

enum { PAGE = 4096, STACK_IN_USE = 16384 };

/* The beginning of struct clone_args, whose later fields lead to nothing that is written. */
struct new_process {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    uint64_t later[24];
};

/* guests.rs: a process that is about to share the memory for good. */
struct guest {
    int pid;
    int (*function)(void *);
    void *argument;
};

struct guest *ramfold_expect_guest(int (*function)(void *), void *argument);

/* fork.rs: everything stands still, with the pages of those addresses in memory. The copy may have the same table of descriptors. */
void ramfold_begin_copy(const uintptr_t *touched, size_t count, int shares_table);
void ramfold_end_copy(int in_child);

/* threads.rs: this thread ends by exit(2), as what returns to clone does. */
void ramfold_before_exit(int status);

/* filters.rs: before a filter of system calls; and whether this thread is inside mimalloc. */
void ramfold_before_filter(void);
int ramfold_is_in_heap(void);

/* The first library's (start/users.c): before a system call that may give up rights. */
void ramfold_before_call(long number, long a, long b, long c);

/* The first library's (start/exec.c). */
int ramfold_execve(const char *path, char *const *argv, char *const *envp);

/* descriptors.rs: whether one of these looks closed to the program; errno says so then. */
int ramfold_looks_closed(int one, int other);

/* futexes.rs */
int ramfold_bring_word(uintptr_t word);

/* Not in the headers of every libc that this is built with. */
int ramfold_close_range(unsigned first, unsigned last, int flags) __asm__("close_range");
int ramfold_execveat(int directory, const char *path, char *const *argv, char *const *envp, int flags) __asm__("execveat");

static int (*real_clone)(int (*)(void *), void *, int, void *, ...);

/* start/carry.c: before another namespace is entered. */
void ramfold_carry(unsigned long flags);

/* start/others.c */
void *ramfold_behind(const char *name);

void ramfold_find_clone(void) { real_clone = ramfold_behind("clone"); }

struct start {
    int (*function)(void *);
    void *argument;
};

static int start_child(void *start) {
    struct start copy = *(struct start *)start;
    ramfold_end_copy(1);
    int status = copy.function(copy.argument);
    ramfold_before_exit(status);
    return status;
}

/* A guest may share its creator's thread-local storage: nothing here uses any. */
static int start_guest(void *place) {
    struct guest *guest = place;
    int (*function)(void *) = guest->function;
    void *argument = guest->argument;
    __atomic_store_n(&guest->pid, (int)ramfold_call(SYS_getpid, 0, 0, 0, 0, 0, 0), __ATOMIC_RELEASE);
    return function(argument);
}

struct keeper {
    int (*function)(void *);
    void *stack;
    int pid;
};

static int start_keeper(void *place) {
    struct keeper *keeper = place;
    keeper->pid = real_clone(keeper->function, keeper->stack, CLONE_VM, NULL);
    return 0;
}

/* By a child that ends at once: the program has no child that it did not make, to wait for or to be told of, not even after an
 * exec. */
int ramfold_clone_keeper(int (*function)(void *), void *stack, void *stack_between) {
    struct keeper keeper = {function, stack, -1};
    int between = real_clone(start_keeper, stack_between, CLONE_VM | CLONE_VFORK, &keeper);
    if (between == -1) return -1;
    while (ramfold_call(SYS_wait4, between, 0, __WALL, 0, 0, 0) == -1 && errno == EINTR) {}
    return keeper.pid;
}

/* For untraced.rs. */
struct untraced {
    void (*entry)(void *);
    void *data;
};

static int start_untraced(void *place) {
    struct untraced *call = place;
    call->entry(call->data);
    return 0;
}

/* The kernel clears the word when the thread has ended, and wakes who waits there. */
int ramfold_call_untraced(void (*entry)(void *), void *data, void *stack) {
    enum { THREAD = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM };
    enum { TOLD = CLONE_UNTRACED | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID };
    struct untraced call = {entry, data};
    int tid = 0, seen;
    if (!real_clone) ramfold_find_clone();
    if (real_clone(start_untraced, stack, THREAD | TOLD, &call, &tid, NULL, &tid) == -1) return -1;
    while ((seen = __atomic_load_n(&tid, __ATOMIC_ACQUIRE)) != 0)
        ramfold_call(SYS_futex, (long)&tid, FUTEX_WAIT, seen, 0, 0, 0);
    return 0;
}

int ramfold_clone(int (*function)(void *), void *stack, int flags, void *argument, ...) {
    va_list list;
    va_start(list, argument);
    void *parent_tid = va_arg(list, void *), *tls = va_arg(list, void *), *child_tid = va_arg(list, void *);
    va_end(list);
    if (!real_clone) ramfold_find_clone();
    ramfold_carry((unsigned)flags);
    if (makes_guest(flags) && function && stack) {
        struct guest *guest = ramfold_expect_guest(function, argument);
        if (!guest) {
            errno = EAGAIN;
            return -1;
        }
        int pid = real_clone(start_guest, stack, flags, guest, parent_tid, tls, child_tid);
        if (pid == -1) __atomic_store_n(&guest->pid, 0, __ATOMIC_RELEASE);
        return pid;
    }
    if (flags & CLONE_VM || !function || !stack)
        return real_clone(function, stack, flags, argument, parent_tid, tls, child_tid);
    uintptr_t touched[STACK_IN_USE / PAGE + 3];
    size_t count = 0;
    for (int below = 1; below <= STACK_IN_USE; below += PAGE) touched[count++] = (uintptr_t)stack - below;
    touched[count++] = (uintptr_t)stack - STACK_IN_USE;
    if (flags & (CLONE_PARENT_SETTID | CLONE_PIDFD)) touched[count++] = (uintptr_t)parent_tid;
    if (flags & CLONE_CHILD_SETTID) touched[count++] = (uintptr_t)child_tid;
    ramfold_begin_copy(touched, count, !!(flags & CLONE_FILES));
    struct start start = {function, argument};
    int pid = real_clone(start_child, stack, flags, &start, parent_tid, tls, child_tid);
    int error = errno;
    ramfold_end_copy(0);
    errno = error;
    return pid;
}

/* For sys.rs. */
long ramfold_system_call(long number, long a, long b, long c, long d, long e, long f) {
    return ramfold_call(number, a, b, c, d, e, f);
}

static long call(long number, const long a[6]) {
    return ramfold_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static long copy_process(long number, const long a[6], const uintptr_t *touched, size_t count, uint64_t flags) {
    ramfold_begin_copy(touched, count, !!(flags & CLONE_FILES));
    long pid = call(number, a);
    int error = errno;
    ramfold_end_copy(pid == 0);
    errno = error;
    return pid;
}

static long call_clone(const long a[6]) {
    unsigned long flags = (unsigned long)a[0];
    ramfold_carry(flags);
    if (flags & CLONE_VM || a[1]) return call(SYS_clone, a);
#if defined(__x86_64__)
    uintptr_t touched[] = {(uintptr_t)a[2], (uintptr_t)a[3]};
#else
    uintptr_t touched[] = {(uintptr_t)a[2], (uintptr_t)a[4]};
#endif
    return copy_process(SYS_clone, a, touched, 2, flags);
}

static long call_clone3(const long a[6]) {
    struct new_process process = {0};
    size_t size = (size_t)a[1];
    if (!a[0] || size < 64 || size > sizeof process) return call(SYS_clone3, a);
    if (!ramfold_copy(&process, (void *)a[0], size)) return -1;
    ramfold_carry(process.flags);
    if (process.flags & CLONE_VM || process.stack) return call(SYS_clone3, a);
    uintptr_t touched[] = {process.pidfd, process.child_tid, process.parent_tid};
    const long copied[6] = {(long)&process, (long)size};
    return copy_process(SYS_clone3, copied, touched, 3, process.flags);
}

/* The kernel does not wait for a word that it is to change: futexes.rs. */
static long call_futex(const long a[6]) {
    enum { PATIENCE = 1000 };
    int before = errno;
    for (int tries = 0;; tries++) {
        long result = call(SYS_futex, a);
        if (result != -1 || errno != EFAULT || tries == PATIENCE) return result;
        int first = ramfold_bring_word((uintptr_t)a[0]), second = ramfold_bring_word((uintptr_t)a[4]);
        if (!first && !second) {
            errno = EFAULT;
            return -1;
        }
        errno = before;
    }
}

/* The functions of these names, which this library replaces. */
static long of_memory(long number, const long a[6]) {
    void *at = (void *)a[0];
    size_t size = (size_t)a[1];
    switch (number) {
    case SYS_mmap: return (long)mmap(at, size, (int)a[2], (int)a[3], (int)a[4], a[5]);
    case SYS_munmap: return munmap(at, size);
    case SYS_mprotect: return mprotect(at, size, (int)a[2]);
    case SYS_pkey_mprotect: return pkey_mprotect(at, size, (int)a[2], (int)a[3]);
    case SYS_mremap: return (long)mremap(at, size, (size_t)a[2], (int)a[3], (void *)a[4]);
    case SYS_madvise: return madvise(at, size, (int)a[2]);
    case SYS_mincore: return mincore(at, size, (unsigned char *)a[2]);
    case SYS_msync: return msync(at, size, (int)a[2]);
    case SYS_mlock: return mlock(at, size);
    case SYS_munlock: return munlock(at, size);
    case SYS_mlock2: return mlock2(at, size, (unsigned)a[2]);
    case SYS_mlockall: return mlockall((int)a[0]);
    case SYS_munlockall: return munlockall();
    default: return call(number, a);
    }
}

long ramfold_syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    ramfold_before_call(number, a[0], a[1], a[2]);
    switch (number) {
    case SYS_clone: return call_clone(a);
    case SYS_clone3: return call_clone3(a);
    case SYS_execve: return ramfold_execve((const char *)a[0], (char **)a[1], (char **)a[2]);
    case SYS_execveat:
        return ramfold_execveat((int)a[0], (const char *)a[1], (char **)a[2], (char **)a[3], (int)a[4]);
#ifdef SYS_fork
    case SYS_fork: return copy_process(number, a, NULL, 0, 0);
#endif
    case SYS_exit: ramfold_before_exit((int)a[0]); break;
    case SYS_close:
        if (ramfold_looks_closed((int)a[0], (int)a[0])) return -1;
        break;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
        if (ramfold_looks_closed((int)a[0], (int)a[1])) return -1;
        break;
    case SYS_close_range: return ramfold_close_range((unsigned)a[0], (unsigned)a[1], (int)a[2]);
    case SYS_unshare: return unshare((int)a[0]);
    case SYS_setns: return setns((int)a[0], (int)a[1]);
    case SYS_futex: return call_futex(a);
    case SYS_prctl:
    case SYS_seccomp:
        if (makes_filter(number, a[0], a[1], a[2])) ramfold_before_filter();
        break;
    default: break;
    }
    return of_memory(number, a);
}

int ramfold_prctl(int option, ...) {
    va_list list;
    va_start(list, option);
    long a[4];
    for (int i = 0; i < 4; i++) a[i] = va_arg(list, long);
    va_end(list);
    /* It gives its memory a name, which a program's filter may not let through. */
    if (option == PR_SET_VMA && ramfold_is_in_heap()) return 0;
    return (int)ramfold_syscall(SYS_prctl, (long)option, a[0], a[1], a[2], a[3], 0l);
}
