/* `userns_past_libc PROGRAM ...` runs a program in a user namespace, all by instructions of its own, as Go's os/exec does. */
#define _GNU_SOURCE
#include "check.h"
#include "raw.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    must(argc > 1);
    long child = raw(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0, 0);
    if (child == 0) {
        raw(SYS_execve, (long)argv[1], (long)(argv + 1), (long)environ, 0, 0, 0);
        raw(SYS_exit_group, 127, 0, 0, 0, 0, 0);
    }
    must(child > 0);
    int status;
    must(waitpid((pid_t)child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
