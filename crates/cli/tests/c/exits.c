/* A process with one thread ends with it, also where that ends past exit() and pthread_exit(): by exit(2), or by returning to
   clone(). Its parent gets the status. */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static unsigned char *memory;

static int status_of(pid_t child) {
    int status;
    must(child > 0);
    must(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int returns(void *status) {
    unsigned char *own = map_rw(MIB);
    fill(own, MIB, 2);
    press();
    must(holds(own, MIB, 2));
    if (memory) must(holds(memory, MIB, 1));
    return *(int *)status;
}

static pid_t copy(int status) {
    static unsigned char stack[64 * PAGE];
    return clone(returns, stack + sizeof stack, SIGCHLD, &status);
}

static int ends[2];

static bool has_ended(pid_t thread) {
    char name[64], text[256], state = 0;
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(name, "r");
    must(file && fgets(text, sizeof text, file));
    fclose(file);
    sscanf(strrchr(text, ')') + 1, " %c", &state);
    return state == 'Z';
}

/* Until a byte comes, or the main thread has ended. */
static void *goes_on(void *argument) {
    char byte;
    struct pollfd end = {ends[0], POLLIN, 0};
    if (!argument) must(read(ends[0], &byte, 1) == 1);
    while (argument && !has_ended(getpid())) poll(&end, 0, 1);
    return NULL;
}

/* The main thread first, or last. */
static pid_t with_a_thread(bool main_first) {
    must(pipe(ends) == 0);
    pid_t child = fork();
    if (child) return child;
    pthread_t thread;
    must(pthread_create(&thread, NULL, goes_on, main_first ? ends : NULL) == 0);
    if (!main_first) {
        must(write(ends[1], "", 1) == 1);
        must(pthread_join(thread, NULL) == 0);
    }
    syscall(SYS_exit, 11);
    return -1;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    /* Small when it is copied: the copy grows. */
    must(status_of(copy(7)) == 7);
    memory = map_rw(MIB);
    fill(memory, MIB, 1);
    press();
    away(memory, MIB);
    must(status_of(copy(8)) == 8);
    pid_t child = fork();
    if (!child) syscall(SYS_exit, 9);
    must(status_of(child) == 9);
    must(status_of(with_a_thread(false)) == 11);
    int status = status_of(with_a_thread(true));
    /* The last thread's, from Linux 5.16 on; the main thread's before. */
    must(status == 0 || status == 11);
    must(holds(memory, MIB, 1));
    syscall(SYS_exit, 0);
}
