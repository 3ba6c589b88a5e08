/* Stacks that the program brings for its threads are its memory: before a thread, after it, and beside others it drops them,
   moves them, unlocks all that is locked. Threads that end while memory is short are joined. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>

#define STACK (64 * PAGE)
#define ROUNDS 100

static volatile bool done;

static void *uses_stack(void *argument) {
    volatile char used[4 * PAGE];
    memset((void *)used, 1, sizeof used);
    usleep((useconds_t)(uintptr_t)argument);
    return argument;
}

static void *presser(void *argument) {
    while (!done) crowd();
    return argument;
}

static pthread_t start(void *stack, useconds_t microseconds) {
    pthread_attr_t attributes;
    pthread_t thread;
    must(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
    must(pthread_create(&thread, &attributes, uses_stack, (void *)(uintptr_t)microseconds) == 0);
    return thread;
}

static void run(void *stack) {
    must(pthread_join(start(stack, 0), NULL) == 0);
}

static void stack_is_memory(void) {
    unsigned char *stack = map_rw(STACK);
    run(stack);
    must(madvise(stack, STACK, MADV_DONTNEED) == 0 && zero(stack, STACK));
    run(stack);
    must(madvise(stack, STACK, MADV_FREE) == 0);
    run(stack);
    fill(stack, STACK, 1);
    unsigned char *moved = mremap(stack, STACK, 2 * STACK, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED && holds(moved, STACK, 1) && zero(moved + STACK, STACK));
    must(mprotect(moved, STACK, PROT_READ) == 0 && holds(moved, STACK, 1));
    must(munmap(moved, 2 * STACK) == 0);
    unsigned char *block = malloc(2 * MIB);
    run(block + MIB);
    fill(block, 2 * MIB, 2);
    block = realloc(block, 8 * MIB);
    must(block && holds(block, 2 * MIB, 2));
    free(block);
}

/* The kernel says in the thread's control block that the thread has ended. */
static void ends(void) {
    unsigned char *stacks = map_rw(4 * STACK);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) threads[i] = start(stacks + i * STACK, (useconds_t)(round * 7 % 2000));
        must(munlockall() == 0);
        for (int i = 0; i < 4; i++) must(pthread_join(threads[i], NULL) == 0);
    }
}

static void *forks(void *argument) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        crowd();
        stack_is_memory();
        _exit(0);
    }
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return argument;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    press();
    stack_is_memory();
    pthread_t pressing, forking;
    must(pthread_create(&pressing, NULL, presser, NULL) == 0);
    ends();
    done = true;
    must(pthread_join(pressing, NULL) == 0);
    pthread_attr_t attributes;
    must(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, map_rw(STACK), STACK) == 0);
    must(pthread_create(&forking, &attributes, forks, NULL) == 0 && pthread_join(forking, NULL) == 0);
    return 0;
}
