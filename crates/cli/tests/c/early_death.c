/*
 * Children that are killed before they have done anything, while much of what they inherit is in the swap file, and more of
 * them than a run has places for: nothing is left behind that later children, or later pages, would need.
 */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

#define SIZE (24 * MIB)
#define ROUNDS 6
#define PLACES 4096

static void fork_and_kill(void) {
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0)
        for (;;) pause();
    int status;
    must(kill(pid, SIGKILL) == 0);
    must(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        unsigned char *at = map_rw(SIZE);
        for (size_t i = 0; i < SIZE; i += PAGE) fill(at + i, PAGE, round << 32 | i);
        press();
        for (int i = 0; i < 4; i++) fork_and_kill();
        for (size_t i = 0; i < SIZE; i += PAGE) must(holds(at + i, PAGE, round << 32 | i));
        must(munmap(at, SIZE) == 0);
    }
    for (int i = 0; i < PLACES + 50; i++) fork_and_kill();
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) _exit(0);
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
