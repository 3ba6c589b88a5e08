/*
 * The program runs on stacks that may be away: coroutines on malloc'ed and mapped memory, from several threads, and
 * signal handlers on an alternate stack. From there they allocate, map, unmap, move, advise, open streams, and fork.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { THREADS = 4, COROUTINES = 24, ROUNDS = 3 };
#define STACK (32 * PAGE)

struct coroutine {
    ucontext_t context, caller;
    unsigned char *stack;
    uint64_t number;
    bool done;
};

static _Thread_local struct coroutine *running;

static void back_to_caller(void) {
    struct coroutine *own = running;
    must(swapcontext(&own->context, &own->caller) == 0);
}

/* Every call that takes a lock of ramfold's, with little of the stack below this frame in memory. */
static void calls(uint64_t number) {
    unsigned char *small = malloc(100 + number % 5000), *large = malloc(2 * MIB);
    must(small && large);
    fill(small, 96, number);
    fill(large, 4 * PAGE, number);
    unsigned char *at = map_rw(64 * PAGE);
    fill(at, 64 * PAGE, number);
    must(madvise(at + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0 && zero(at + 8 * PAGE, 8 * PAGE));
    must(mprotect(at, 8 * PAGE, PROT_READ) == 0 && holds(at, 8 * PAGE, number));
    must(mprotect(at, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    unsigned char *moved = mremap(at, 64 * PAGE, 256 * PAGE, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED && holds(moved, 8 * PAGE, number));
    large = realloc(large, 5 * MIB);
    must(large && holds(large, 4 * PAGE, number));
    FILE *stream = fopen("/dev/null", "w");
    must(stream && fputs("text", stream) >= 0 && fclose(stream) == 0);
    must(munmap(moved, 256 * PAGE) == 0);
    must(holds(small, 96, number));
    free(small);
    free(large);
}

/* Frames of which each fills pages, with calls at the deepest and on the way back. */
static void deep(int levels, uint64_t number) {
    volatile uint64_t local[PAGE / 2 / sizeof(uint64_t)];
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) local[i] = number ^ i ^ (uint64_t)levels;
    if (levels > 0) deep(levels - 1, number);
    else calls(number);
    back_to_caller();
    if (levels % 4 == 0) calls(number + 1);
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) must(local[i] == (number ^ i ^ (uint64_t)levels));
}

static void forks(uint64_t number) {
    volatile uint64_t local = number;
    int pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        calls(number);
        _exit(local == number ? 0 : 3);
    }
    int status = -1;
    must(waitpid(pid, &status, 0) == pid && status == 0 && local == number);
}

static void body(void) {
    deep(12, running->number);
    if (running->number % 16 == 0) forks(running->number);
    running->done = true;
    back_to_caller();
}

static void *thread(void *argument) {
    uint64_t first = (uint64_t)argument;
    struct coroutine *all = calloc(COROUTINES, sizeof *all);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < COROUTINES; i++) {
            struct coroutine *one = &all[i];
            *one = (struct coroutine){.number = first + i, .stack = i % 2 ? map_rw(STACK) : malloc(STACK)};
            must(one->stack && getcontext(&one->context) == 0);
            one->context.uc_stack = (stack_t){.ss_sp = one->stack, .ss_size = STACK};
            makecontext(&one->context, body, 0);
        }
        for (bool more = true; more;) {
            more = false;
            for (uint64_t i = 0; i < COROUTINES; i++) {
                if (all[i].done) continue;
                running = &all[i];
                must(swapcontext(&all[i].caller, &all[i].context) == 0);
                more = true;
            }
            unsigned char *other = map_rw(4 * MIB);
            for (size_t i = 0; i < 4 * MIB; i += PAGE) *(volatile uint64_t *)(other + i) = i * 31 + first;
            must(munmap(other, 4 * MIB) == 0);
        }
        for (uint64_t i = 0; i < COROUTINES; i++) {
            if (i % 2) must(munmap(all[i].stack, STACK) == 0);
            else free(all[i].stack);
        }
    }
    free(all);
    return NULL;
}

static volatile sig_atomic_t handled;

static void on_signal(int number) {
    (void)number;
    calls((uint64_t)handled);
    handled++;
}

/* raise() is synchronous, so that the handler may allocate. */
static void alternate_stack(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    must(sigaction(SIGUSR1, &action, NULL) == 0);
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK};
    must(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        away(stack.ss_sp, STACK);
        must(raise(SIGUSR1) == 0);
    }
    must(handled == 4);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    alarm(250);
    size_t size = 24 * MIB;
    unsigned char *ballast = map_rw(size);
    fill(ballast, size, 99);
    alternate_stack();
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, thread, (void *)(i * COROUTINES)) == 0);
    for (int i = 0; i < THREADS; i++) must(pthread_join(threads[i], NULL) == 0);
    must(holds(ballast, size, 99));
    return 0;
}
