/* Threads that libc starts for itself do the program's work: the process goes on as long as one of them lives, and no
   longer. */
#define _GNU_SOURCE
#include "check.h"

#include <aio.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static unsigned char *memory;
static int calls;

static void takes_memory(union sigval unused) {
    (void)unused;
    unsigned char *own = malloc(MIB);
    must(own);
    fill(own, MIB, 2);
    must(holds(own, MIB, 2));
    free(own);
}

static void *ends(void *unused) { return unused; }

static void ends_at_five(union sigval unused) {
    takes_memory(unused);
    /* Threads of the program's come and go when its first has ended. */
    pthread_t thread;
    must(pthread_create(&thread, NULL, ends, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (++calls < 5) return;
    must(holds(memory, MIB, 1));
    _exit(7);
}

static void every(long ms, void (*function)(union sigval)) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = function};
    struct itimerspec time = {{0, ms * 1000000}, {0, ms * 1000000}};
    timer_t timer;
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &time, NULL) == 0);
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time)) {}
}

/* The first large block is taken by such a thread, which ends. */
static void first_block(void) {
    every(30, takes_memory);
    sleep_ms(300);
    _exit(3);
}

/* The timer's threads are all that is left. */
static void goes_on_by(void (*function)(union sigval)) {
    memory = map_rw(MIB);
    fill(memory, MIB, 1);
    every(30, function);
    pthread_exit(NULL);
}

static void main_ends(void) { goes_on_by(ends_at_five); }

static int result[2];

static void at_exit(void) { must(write(result[1], "end", 3) == 3); }

/* A write is under way when the last thread of the program's ends. */
static void last_write(void) {
    static struct aiocb request;
    memory = map_rw(8 * MIB);
    fill(memory, 8 * MIB, 1);
    must(atexit(at_exit) == 0);
    request = (struct aiocb){.aio_fildes = result[1], .aio_buf = memory, .aio_nbytes = 8 * MIB};
    must(aio_write(&request) == 0);
    pthread_exit(NULL);
}

static volatile int told;

static void tells(union sigval unused) {
    (void)unused;
    told = 1;
}

/* A notification outlives the moment at which memory comes to be managed. */
static void told_of_message(void) {
    struct mq_attr attributes = {.mq_maxmsg = 4, .mq_msgsize = 16};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tells};
    char name[32];
    snprintf(name, sizeof name, "/ramfold-%d", getpid());
    mqd_t queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes);
    /* A kernel without message queues. */
    if (queue == -1 && errno == ENOSYS) _exit(13);
    must(queue != -1 && mq_unlink(name) == 0 && mq_notify(queue, &event) == 0);
    memory = map_rw(MIB);
    fill(memory, MIB, 1);
    press();
    must(mq_send(queue, "text", 4, 0) == 0);
    for (int i = 0; i < 1000 && !told; i++) sleep_ms(10);
    must(told && holds(memory, MIB, 1));
    _exit(13);
}

static int status_of(pid_t child) {
    int status;
    must(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In a copy of what has memory that is managed, there are the pager's threads from the start. */
static void last_ends(void) {
    must(pthread_create(&(pthread_t){0}, NULL, ends, NULL) == 0);
    pthread_exit(NULL);
}

static void copy(union sigval unused) {
    (void)unused;
    pid_t child = fork();
    /* The only thread of the copy ends as the one that it is of would. */
    if (!child) return;
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    _exit(11);
}

static void copied_in_callback(void) { goes_on_by(copy); }

static pid_t in_child(void (*function)(void)) {
    pid_t child = fork();
    if (child) return child;
    alarm(100);
    function();
    _exit(1);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    must(status_of(in_child(first_block)) == 3);
    must(status_of(in_child(main_ends)) == 7);
    must(status_of(in_child(told_of_message)) == 13);
    must(pipe(result) == 0);
    pid_t child = in_child(last_write);
    must(close(result[1]) == 0);
    unsigned char *written = malloc(8 * MIB + 4);
    size_t count = 0;
    for (ssize_t got = 1; got > 0; count += (size_t)got) {
        /* As long as this waits, only libc's thread works. */
        if (count == 0) sleep_ms(300);
        got = read(result[0], written + count, 8 * MIB + 4 - count);
        must(got >= 0);
    }
    must(count == 8 * MIB + 3 && holds(written, 8 * MIB, 1) && memcmp(written + 8 * MIB, "end", 3) == 0);
    must(status_of(child) == 0);
    must(status_of(in_child(copied_in_callback)) == 11);
    press();
    must(status_of(in_child(last_ends)) == 0);
    must(status_of(in_child(main_ends)) == 7);
    return 0;
}
