// A program that filters its own system calls (seccomp), as browsers and `file` do: a call that it does not let through kills it.
// With a second argument it goes on for ever. What it lets through is what it makes itself. First the filter is for one thread (by prctl), then for all (TSYNC).
#define _GNU_SOURCE
#include "refusing.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static const int passed[] = {
    SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_newfstatat, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_mremap, SYS_brk, SYS_futex,
    SYS_exit, SYS_exit_group, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq,
    SYS_sched_yield, SYS_getpid, SYS_gettid, SYS_mincore, SYS_getrandom,
};
enum { PASSED = sizeof passed / sizeof *passed, THREADS = 4 };

static void put(struct sock_filter *lines, size_t count, bool all) {
    struct sock_fprog program = {(unsigned short)count, lines};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    // A probe, as browsers make.
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) == -1 && errno == EFAULT);
    if (all) must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    else must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

// One that lets all through but what nobody calls: behind it a process may fork.
static void filter_little(void) {
    struct sock_filter lines[] = REFUSING(SYS_swapon);
    put(lines, sizeof lines / sizeof *lines, true);
}

static void filter(bool all) {
    struct sock_filter lines[2 * PASSED + 8], *at = lines;
    *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < PASSED; i++) {
        *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, passed[i], 0, 1);
        *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    // glibc's malloc would like to know of overcommit, and can do without.
    *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1);
    *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    put(lines, (size_t)(at - lines), all);
    // What it is given is looked at by no call that kills.
    must(syscall(SYS_clone3, (void *)8, 88ul) == -1 && errno == EFAULT);
}

static int file;
static uint64_t rounds = 2;

// Blocks of all sizes, mappings that grow, a file over memory that was managed.
static void *work(void *number) {
    uint64_t own = (uintptr_t)number;
    size_t size = pressure_mib * MIB / THREADS, small = 1000;
    for (uint64_t round = own << 32; round < (own << 32) + rounds; round++) {
        unsigned char *large = malloc(size), *grown = malloc(size / 8);
        unsigned char **many = malloc(small * sizeof *many);
        fill(large, size, round);
        fill(grown, size / 8, round + 1);
        for (size_t i = 0; i < small; i++) fill(many[i] = malloc(i * 8 + 8), i * 8 + 8, round + i);
        grown = realloc(grown, size / 4);
        must(holds(grown, size / 8, round + 1));
        for (size_t i = 0; i < small; i++) must(holds(many[i], i * 8 + 8, round + i));
        must(holds(large, size, round));
        for (size_t i = 0; i < small; i++) free(many[i]);
        free(many);
        free(grown);
        free(large);
        unsigned char *mapped = map_rw(size);
        fill(mapped, size, round);
        mapped = mremap(mapped, size, size + MIB, MREMAP_MAYMOVE);
        must(mapped != MAP_FAILED && holds(mapped, size, round) && zero(mapped + size, MIB));
        must(madvise(mapped, MIB, MADV_DONTNEED) == 0 && zero(mapped, MIB));
        must(mprotect(mapped, PAGE, PROT_READ) == 0);
        must(mmap(mapped + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == mapped + PAGE);
        must(holds(mapped + PAGE, PAGE, 77));
        must(mmap(mapped + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == mapped + PAGE);
        must(zero(mapped + PAGE, PAGE));
        must(munmap(mapped, size + MIB) == 0);
    }
    return NULL;
}

static void *put_filter_and_work(void *number) {
    filter(false);
    return work(number);
}

static void told(int signal) {
    (void)signal;
    _exit(3);
}

// A program that is started behind the filter has no child that it did not make.
static void start_behind_filter(char *self) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        filter_little();
        execl("/proc/self/exe", self, "64", "started", NULL);
        _exit(127);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void look_for_children(void) {
    must(signal(SIGCHLD, told) != SIG_ERR);
    for (int i = 0; i < 30; i++) {
        must(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD);
        usleep(10000);
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    if (argc > 2 && strcmp(argv[2], "started") == 0) {
        look_for_children();
        return 0;
    }
    if (argc > 2) {
        // Until it is killed.
        filter_little();
        for (;;) press();
    }
    start_behind_filter(argv[0]);
    unsigned char page[PAGE];
    fill(page, PAGE, 77);
    file = memfd_create("filter", 0);
    must(file >= 0 && write(file, page, PAGE) == (ssize_t)PAGE);
    // What the child has of its parent's is there, and it filters its own calls as its parent does after it.
    filter_little();
    unsigned char *memory = map_rw(MIB);
    fill(memory, MIB, 78);
    pid_t child = fork();
    must(child >= 0 && holds(memory, MIB, 78));
    if (child) {
        int status;
        must(waitpid(child, &status, 0) == child && status == 0);
    } else {
        rounds = 1;
    }
    pthread_t thread[THREADS];
    // One thread alone is filtered; what it cannot do the others can.
    must(pthread_create(thread, NULL, put_filter_and_work, (void *)9) == 0 && pthread_join(*thread, NULL) == 0);
    filter(true);
    work((void *)8);
    for (uintptr_t i = 0; i < THREADS; i++) must(pthread_create(thread + i, NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) must(pthread_join(thread[i], NULL) == 0);
    must(holds(memory, MIB, 78));
    if (child) must(write(1, "ok\n", 3) == 3);
    return 0;
}
