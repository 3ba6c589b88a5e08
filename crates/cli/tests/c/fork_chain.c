/* A child that forks as soon as it is there, and so on: each of them has all memory, what is away too. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

#define SIZE (8 * MIB)
#define DEPTH 4
#define ROUNDS 40

static unsigned char *at;

/* One page of what is away, a different one in each generation. */
static void generation(int round, int depth) {
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        if (depth < DEPTH) generation(round, depth + 1);
        size_t page = (size_t)(round * DEPTH + depth) * 7919 % (SIZE / PAGE) * PAGE;
        must(holds(at + page, PAGE, page));
        _exit(0);
    }
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    at = map_rw(SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) fill(at + i, PAGE, i);
    press();
    for (int round = 0; round < ROUNDS; round++) generation(round, 1);
    return 0;
}
