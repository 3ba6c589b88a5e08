/* Forks of a process that may open few files, or none any more: the child has what its parent had, and forks as well. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/resource.h>
#include <sys/wait.h>

#define PAGES 3072ul

static unsigned char *memory;

/* In a child, and in a child of that. */
static void look(int depth) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
        if (depth > 0) look(depth - 1);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void limit(rlim_t current) {
    struct rlimit limit, seen;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = current;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    look(1);
    must(getrlimit(RLIMIT_NOFILE, &seen) == 0 && seen.rlim_cur == current && seen.rlim_max == limit.rlim_max);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = map_rw(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    press();
    limit(64);
    while (dup(2) >= 0) continue;
    look(1);
    limit(8);
    limit(1024);
    while (dup(2) >= 0) continue;
    look(1);
    /* No way back. */
    struct rlimit most = {1024, 1024};
    must(setrlimit(RLIMIT_NOFILE, &most) == 0);
    look(1);
    press();
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
    return 0;
}
