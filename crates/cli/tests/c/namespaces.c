/* A program with one thread enters namespaces that are closed to processes with several, by libc's functions and by syscall().
   Its memory, and its children's, is what it was. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#define PAGES 3072ul

static unsigned char *memory;

static void look(void) {
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
}

/* The first child of a PID namespace is the last that it has. */
static void look_in_child(bool is_first) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        must((getpid() == 1) == is_first);
        look();
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    look();
}

/* In a child, for what does not fit together. */
static void in_child(void (*enter)(void)) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        enter();
        press();
        look();
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void *nothing(void *argument) {
    pause();
    return argument;
}

static void with_a_thread(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, nothing, NULL) == 0);
    must(unshare(CLONE_NEWUSER) == -1 && errno == EINVAL);
    look_in_child(false);
}

static void user(void) {
    must(unshare(CLONE_NEWUSER) == 0);
    look_in_child(false);
}

static void user_by_syscall(void) {
    must(syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS) == 0);
    /* Not mapped in its own namespace. */
    must(unshare(CLONE_NEWUSER) == -1 && errno == EPERM);
    look_in_child(false);
}

static void processes(void) {
    must(unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0);
    look_in_child(true);
}

static void mounts(void) {
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    must(own >= 0 && setns(own, CLONE_NEWNS) == 0);
    must(unshare(CLONE_NEWNS) == 0);
    must(syscall(SYS_setns, own, 0) == 0);
    look_in_child(false);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    pid_t child = fork();
    if (child == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0);
    int status;
    must(waitpid(child, &status, 0) == child);
    if (status || geteuid()) {
        fprintf(stderr, "needs root, and namespaces\n");
        return 77;
    }
    memory = map_rw(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    press();
    in_child(with_a_thread);
    in_child(user);
    in_child(user_by_syscall);
    in_child(processes);
    in_child(mounts);
    look();
    return 0;
}
