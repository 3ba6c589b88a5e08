/* A process that is copied by other ways than fork(): the child has what its parent had. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define PAGES 4096ul
#define STACK (256 * 1024ul)

static unsigned char *memory;

enum { OLD = 1 << 20, CHILD = 2 << 20, PARENT = 3 << 20 };

static void write_pages(uint64_t generation) {
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, generation + i);
}

static void expect_pages(uint64_t generation) {
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, generation + i));
}

static int child(void *argument) {
    must(argument == memory);
    expect_pages(OLD);
    write_pages(CHILD);
    press();
    expect_pages(CHILD);
    _exit(0);
}

/* With a stack of its own, in memory that may be away. */
static pid_t by_clone(void) {
    unsigned char *stack = malloc(STACK);
    must(stack);
    fill(stack, STACK, 5);
    press();
    pid_t from_parent = 0;
    pid_t pid = clone(child, stack + STACK, CLONE_PARENT_SETTID | SIGCHLD, memory, &from_parent);
    must(pid > 0 && from_parent == pid);
    free(stack);
    return pid;
}

static pid_t by_raw_clone(void) { return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L); }

static pid_t by_clone3(void) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

#ifdef SYS_fork
static pid_t by_raw_fork(void) { return (pid_t)syscall(SYS_fork); }
#endif

static void try(pid_t (*copy)(void)) {
    write_pages(OLD);
    press();
    pid_t pid = copy();
    if (pid < 0 && errno == ENOSYS) return;
    if (pid == 0) child(memory);
    write_pages(PARENT);
    int status;
    must(pid > 0 && waitpid(pid, &status, 0) == pid);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_pages(PARENT);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    try(by_clone);
    try(by_raw_clone);
    try(by_clone3);
#ifdef SYS_fork
    try(by_raw_fork);
#endif
    /* What copies nothing, and what fails, is as it was. */
    must(syscall(SYS_getpid) == getpid());
    must(syscall(SYS_close, -1L) == -1 && errno == EBADF);
    must(syscall(SYS_clone3, NULL, sizeof(struct clone_args)) == -1 && (errno == EFAULT || errno == ENOSYS));
    return 0;
}
