/* A child has what its parent had at the fork; from then on neither sees what the other writes. */
#define _GNU_SOURCE
#include "check.h"

#include <spawn.h>
#include <sys/wait.h>

#define PAGES 4096ul

static unsigned char *memory;
static unsigned char *block;

static void write_pages(uint64_t generation, size_t step) {
    for (size_t i = 0; i < PAGES; i += step) fill(memory + i * PAGE, PAGE, generation + i);
}

static void expect_pages(uint64_t even, uint64_t odd) {
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, (i % 2 ? odd : even) + i));
}

static void wait_for(pid_t child) {
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

enum { OLD = 1 << 20, PARENT = 2 << 20, CHILD = 3 << 20, GRANDCHILD = 4 << 20 };

static void child(void) {
    expect_pages(OLD, OLD);
    must(holds(block, 3 * MIB, 77));
    write_pages(CHILD, 2);
    press();
    pid_t grandchild = fork();
    if (grandchild == 0) {
        expect_pages(CHILD, OLD);
        write_pages(GRANDCHILD, 1);
        press();
        expect_pages(GRANDCHILD, GRANDCHILD);
        _exit(0);
    }
    wait_for(grandchild);
    expect_pages(CHILD, OLD);
    must(munmap(memory, PAGES / 2 * PAGE) == 0);
    block = realloc(block, 6 * MIB);
    must(block && holds(block, 3 * MIB, 77));
    free(block);
    _exit(0);
}

/* Children that use the parent's memory until they exec. */
static void borrowed_memory(void) {
    extern char **environ;
    char *arguments[] = {"true", NULL};
    pid_t spawned;
    must(posix_spawnp(&spawned, "true", NULL, NULL, arguments, environ) == 0);
    wait_for(spawned);
    pid_t borrower = vfork();
    if (borrower == 0) {
        execvp("true", arguments);
        _exit(1);
    }
    wait_for(borrower);
    must(system("exit 0") == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = map_rw(PAGES * PAGE);
    block = malloc(3 * MIB);
    write_pages(OLD, 1);
    fill(block, 3 * MIB, 77);
    away(memory, PAGE);
    for (int round = 0; round < 2; round++) {
        pid_t forked = fork();
        if (forked == 0) child();
        write_pages(PARENT, 2);
        borrowed_memory();
        press();
        expect_pages(PARENT, OLD);
        wait_for(forked);
        expect_pages(PARENT, OLD);
        must(holds(block, 3 * MIB, 77));
        write_pages(OLD, 1);
    }
    return 0;
}
