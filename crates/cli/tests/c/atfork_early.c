/* Handlers of fork that are registered before any constructor has run find their memory: before the fork, and after it in the
   parent and in the child, whether it is away or not. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>

#define SIZE (2 * MIB)

static unsigned char *memory[3];

static void touch(int which, uint64_t before, uint64_t after) {
    if (!memory[which]) return;
    for (size_t i = 0; i < SIZE; i += PAGE) {
        must(holds(memory[which] + i, PAGE, before));
        fill(memory[which] + i, PAGE, after);
    }
    free(malloc(100000));
}

static uint64_t prepared, ended;

static void prepare(void) { touch(0, prepared, prepared + 1), prepared++; }
static void parent(void) { touch(1, ended, ended + 1), ended++; }
static void child(void) { touch(2, 0, 1); }

static void register_handlers(void) { pthread_atfork(prepare, parent, child); }

__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_handlers;

int main(int argc, char **argv) {
    arguments(argc, argv);
    for (int which = 0; which < 3; which++) {
        memory[which] = map_rw(SIZE);
        for (size_t i = 0; i < SIZE; i += PAGE) fill(memory[which] + i, PAGE, 0);
    }
    for (int round = 0; round < 3; round++) {
        press();
        away(memory[0], PAGE);
        pid_t forked = fork();
        if (forked == 0) {
            for (size_t i = 0; i < SIZE; i += PAGE) must(holds(memory[2] + i, PAGE, 1));
            for (size_t i = 0; i < SIZE; i += PAGE) must(holds(memory[0] + i, PAGE, round + 1));
            _exit(0);
        }
        int status;
        must(forked > 0 && waitpid(forked, &status, 0) == forked && status == 0);
        for (size_t i = 0; i < SIZE; i += PAGE) must(holds(memory[1] + i, PAGE, round + 1));
    }
    return 0;
}
