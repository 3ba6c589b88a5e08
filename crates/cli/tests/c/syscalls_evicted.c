/* System calls read and write memory that is away, and everything they point to may be away too. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#define BUFFER (16 * PAGE)

static unsigned char *buffer_away(uint64_t number) {
    unsigned char *at = map_rw(BUFFER);
    fill(at, BUFFER, number);
    away(at, BUFFER);
    return at;
}

static void pipes(void) {
    int ends[2];
    must(pipe(ends) == 0);
    unsigned char *from = buffer_away(1), *to = buffer_away(2);
    away(from, BUFFER);
    must(write(ends[1], from, BUFFER) == BUFFER);
    must(read(ends[0], to, BUFFER) == BUFFER);
    must(holds(to, BUFFER, 1));
    close(ends[0]);
    close(ends[1]);
}

/* The message header, the vector, the name and the data: all away. */
static void messages(void) {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    unsigned char *from = buffer_away(3), *to = buffer_away(4);
    struct {
        struct msghdr out, in;
        struct iovec from[4], to[4];
    } *all = map_rw(PAGE);
    for (int i = 0; i < 4; i++) {
        all->from[i] = (struct iovec){from + i * 4 * PAGE, 4 * PAGE};
        all->to[i] = (struct iovec){to + i * 4 * PAGE, 4 * PAGE};
    }
    all->out = (struct msghdr){.msg_iov = all->from, .msg_iovlen = 4};
    all->in = (struct msghdr){.msg_iov = all->to, .msg_iovlen = 4};
    away(all, PAGE);
    must(sendmsg(ends[0], &all->out, 0) == BUFFER);
    away(all, PAGE);
    must(recvmsg(ends[1], &all->in, MSG_WAITALL) == BUFFER);
    must(holds(to, BUFFER, 3));
    close(ends[0]);
    close(ends[1]);
}

static void answers(void) {
    char *path = (char *)buffer_away(5);
    char *name = (char *)buffer_away(6);
    strcpy(name, "/");
    away(name, PAGE);
    must(chdir(name) == 0);
    away(path, PAGE);
    must(syscall(SYS_getcwd, path, PATH_MAX) == 2 && strcmp(path, "/") == 0);
    struct stat *stat_away = (struct stat *)buffer_away(7);
    away(name, PAGE);
    must(stat(name, stat_away) == 0 && S_ISDIR(stat_away->st_mode));
    struct timespec *time = (struct timespec *)buffer_away(8);
    must(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, time) == 0 && time->tv_nsec < 1000000000);
    unsigned char *noise = buffer_away(9);
    must(syscall(SYS_getrandom, noise, BUFFER, 0) == BUFFER && !zero(noise, 64));
    struct pollfd *polled = (struct pollfd *)buffer_away(10);
    *polled = (struct pollfd){.fd = -1};
    away(polled, PAGE);
    must(poll(polled, 1, 0) == 0 && polled->revents == 0);
}

/* Another process's view of this memory, as a debugger takes it. */
static void seen_from_outside(void) {
    unsigned char *from = buffer_away(11), *to = buffer_away(12);
    away(from, BUFFER);
    struct iovec local = {to, BUFFER}, remote = {from, BUFFER};
    must(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == BUFFER);
    must(holds(to, BUFFER, 11));
}

/* Direct I/O pins the pages while it runs. */
static void direct(void) {
    char name[] = "/var/tmp/syscalls_evicted.XXXXXX";
    int file = mkstemp(name);
    must(file >= 0);
    unsigned char *from = buffer_away(13), *to = buffer_away(14);
    away(from, BUFFER);
    must(write(file, from, BUFFER) == BUFFER && fsync(file) == 0);
    close(file);
    file = open(name, O_RDWR | O_DIRECT);
    must(unlink(name) == 0);
    if (file < 0) return; /* a file system without direct I/O */
    away(to, BUFFER);
    must(pread(file, to, BUFFER, 0) == BUFFER && holds(to, BUFFER, 13));
    away(to, BUFFER);
    must(pwrite(file, to, BUFFER, 0) == BUFFER);
    must(holds(to, BUFFER, 13));
    close(file);
}

static void *waker(void *word) {
    usleep(50 * 1000);
    away(word, PAGE);
    *(volatile int *)word = 1;
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
    return NULL;
}

/* One thread waits on a word that leaves while it waits. */
static void futexes(void) {
    int *word = map_rw(PAGE);
    away(word, PAGE);
    pthread_t thread;
    must(pthread_create(&thread, NULL, waker, word) == 0);
    while (*(volatile int *)word == 0) {
        long result = syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
        must(result == 0 || errno == EAGAIN || errno == EINTR);
    }
    must(pthread_join(thread, NULL) == 0);
    must(munmap(word, PAGE) == 0);
}

static int short_life(void *argument) {
    (void)argument;
    usleep(300 * 1000);
    return 0;
}

/* The kernel clears the child's thread id and wakes who waits there. It brings no page back for a thread that ends
   (docs/platform.md), so that the word has to be locked. */
static void cleared_thread_id(void) {
    int *id = map_rw(PAGE);
    unsigned char *stack = map(32 * PAGE, PROT_READ | PROT_WRITE, MAP_STACK);
    away(id, PAGE);
    must(mlock(id, PAGE) == 0);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    int child = clone(short_life, stack + 32 * PAGE, flags, NULL, id, NULL, id);
    must(child > 0 && *(volatile int *)id == child);
    press();
    while (*(volatile int *)id == child) {
        long result = syscall(SYS_futex, id, FUTEX_WAIT, child, NULL, NULL, 0);
        must(result == 0 || errno == EAGAIN || errno == EINTR);
    }
    must(*(volatile int *)id == 0);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    must(munmap(id, PAGE) == 0 && munmap(stack, 32 * PAGE) == 0);
}

/* Memory that is not there at all is still an error. */
static void bad_addresses(void) {
    unsigned char *at = map_rw(2 * PAGE);
    must(munmap(at + PAGE, PAGE) == 0);
    int zeros = open("/dev/zero", O_RDONLY);
    must(read(zeros, at + PAGE, 1) == -1 && errno == EFAULT);
    must(mprotect(at, PAGE, PROT_READ) == 0);
    must(read(zeros, at, 1) == -1 && errno == EFAULT);
    close(zeros);
    must(munmap(at, PAGE) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    pipes();
    messages();
    answers();
    seen_from_outside();
    direct();
    futexes();
    cleared_thread_id();
    bad_addresses();
    return 0;
}
