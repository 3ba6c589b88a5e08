/* A process is killed while its child has all of its memory in common with it, and the child goes on. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ROUNDS = 100 };

/* Faults now and then, so that the child looks at what it has. */
static void go_on(const unsigned char *memory, size_t size) {
    for (size_t round = 0; round < ROUNDS; round++) {
        unsigned char *new = map_rw(MIB);
        fill(new, MIB, round);
        must(munmap(new, MIB) == 0);
        usleep(5000);
    }
    for (size_t i = 0; i < size; i += PAGE) must(holds(memory + i, PAGE, i));
}

static void take_and_leave(size_t size) {
    unsigned char *memory = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(memory + i, PAGE, i);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        go_on(memory, size);
        _exit(0);
    }
    usleep(100000);
    kill(getpid(), SIGKILL);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t parent = fork();
    must(parent >= 0);
    if (parent == 0) take_and_leave(pressure_mib * MIB);
    int status;
    must(waitpid(parent, &status, 0) == parent);
    must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    must(wait(&status) > 0);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
