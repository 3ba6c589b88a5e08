/* Children of one parent (as many as the second argument says) write to all that they inherit, at the same time: a copy
   for each, and each its own. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

enum { CHILDREN = 3 };

static void write_all(unsigned char *memory, size_t size, uint64_t generation) {
    for (size_t i = 0; i < size; i += PAGE) fill(memory + i, PAGE, generation + i);
}

static void expect_all(unsigned char *memory, size_t size, uint64_t generation) {
    for (size_t i = 0; i < size; i += PAGE) must(holds(memory + i, PAGE, generation + i));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t size = pressure_mib / 2 * MIB;
    unsigned char *memory = map_rw(size);
    write_all(memory, size, 1ul << 40);
    uint64_t count = argc > 2 ? strtoul(argv[2], NULL, 0) : CHILDREN;
    pid_t children[CHILDREN];
    must(count <= CHILDREN);
    for (uint64_t child = 0; child < count; child++) {
        children[child] = fork();
        must(children[child] >= 0);
        if (children[child] != 0) continue;
        for (uint64_t round = 2; round < 5; round++) {
            expect_all(memory, size, (round == 2 ? 1ul << 40 : (round - 1) << 40 | child << 36));
            write_all(memory, size, round << 40 | child << 36);
        }
        _exit(0);
    }
    for (uint64_t child = 0; child < count; child++) {
        int status;
        must(waitpid(children[child], &status, 0) == children[child]);
        must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    expect_all(memory, size, 1ul << 40);
    return 0;
}
