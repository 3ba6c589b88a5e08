/* A thread leaves fopen for good while that waits for a writer of a FIFO: by siglongjmp, and by cancellation. Nothing that
   was in force within is left behind: what follows is memory of the program's like any other. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define FIFO "nobody-writes"

static sigjmp_buf before;

static void leave(int signal) {
    (void)signal;
    siglongjmp(before, 1);
}

/* fopen, in the main thread, until it is interrupted. */
static void jump_out(void) {
    timer_t timer;
    struct itimerspec soon = {.it_value = {.tv_nsec = 100 * 1000 * 1000}};
    must(signal(SIGUSR1, leave) != SIG_ERR);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    if (sigsetjmp(before, 1) == 0) {
        must(timer_settime(timer, 0, &soon, NULL) == 0);
        fopen(FIFO, "r");
        must(!"nobody writes to the FIFO");
    }
    must(timer_delete(timer) == 0);
}

static void *wait_in_fopen(void *mode) {
    fopen(FIFO, mode);
    return NULL;
}

static void cancel(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result = NULL;
        must(pthread_create(&thread, NULL, wait_in_fopen, i % 2 ? "we" : "r") == 0);
        usleep(100 * 1000);
        must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
}

static ssize_t read_nothing(void *cookie, char *buffer, size_t size) {
    (void)cookie, (void)buffer, (void)size;
    return 0;
}

/* What streams there are work in the child of a fork. */
static void fork_with_streams(void) {
    char buffer[300];
    FILE *streams[] = {
        fopen("/dev/null", "r"), fdopen(dup(0), "r"), fmemopen(NULL, 500, "w+"), fmemopen(buffer, sizeof buffer, "w+"),
        fopencookie(NULL, "r", (cookie_io_functions_t){.read = read_nothing}), tmpfile(), popen("true", "r"),
    };
    size_t count = sizeof streams / sizeof *streams;
    press();
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < count; i++) fgetc(streams[i]);
        for (size_t i = 0; i + 1 < count; i++) must(fclose(streams[i]) == 0);
        _exit(0);
    }
    int status = -1;
    must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    for (size_t i = 0; i + 1 < count; i++) must(fclose(streams[i]) == 0);
    must(pclose(streams[count - 1]) == 0);
}

int main(int argc, char **argv) {
    enum { BLOCKS = 600, SIZE = 50000 };
    static unsigned char *blocks[BLOCKS];
    arguments(argc, argv);
    must(mkfifo(FIFO, 0600) == 0);
    unsigned char *older = map_rw(24 * MIB);
    fill(older, 24 * MIB, 1);
    cancel();
    jump_out();
    for (size_t i = 0; i < BLOCKS; i++) {
        must((blocks[i] = malloc(SIZE)));
        fill(blocks[i], SIZE, i);
    }
    press();
    must(holds(older, 24 * MIB, 1) && munmap(older, 24 * MIB) == 0);
    unsigned char *newer = map_rw(24 * MIB);
    must(zero(newer, 24 * MIB));
    fill(newer, 24 * MIB, 2);
    away(newer, PAGE);
    fork_with_streams();
    for (size_t i = 0; i < BLOCKS; i++) must(holds(blocks[i], SIZE, i));
    must(holds(newer, 24 * MIB, 2));
    must(unlink(FIFO) == 0);
    return 0;
}
