// A process that changes its root while it is small, to a directory without /proc, and grows there: it is held. Where a child that shares
// its root and memory has changed it (Chromium's zygote), it goes on as it is: with "shared".
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static char root[] = "/var/tmp/new-root-XXXXXX";

static void *nothing(void *argument) { return argument; }

static int change(void *argument) {
    (void)argument;
    _exit(chroot(".") == 0 && chdir("/") == 0 ? 0 : 1);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    bool shared = argc > 2;
    // Nothing is left of it.
    must(mkdtemp(root) != NULL && chdir(root) == 0 && rmdir(root) == 0);
    // The engine is there before the root changes, and management is not.
    pthread_t thread;
    must(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (shared) {
        static unsigned char stack[64 << 10];
        int status;
        pid_t child = clone(change, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FS | SIGCHLD, NULL);
        must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    } else {
        must(chroot(".") == 0 && chdir("/") == 0);
    }
    must(access("/proc", F_OK) == -1);
    size_t size = 4 * MIB;
    unsigned char *memory = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(memory + i, PAGE, i);
    if (!shared) away(memory, size);
    pid_t child = fork();
    must(child >= 0);
    press();
    for (size_t i = 0; i < size; i += PAGE) must(holds(memory + i, PAGE, i));
    if (child == 0) _exit(0);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    must(write(1, "ok\n", 3) == 3);
    return 0;
}
