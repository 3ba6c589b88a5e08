/* Signals are delivered on alternate stacks that are away, and their handlers touch memory that is away. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>

#define STACK (32 * PAGE)

static unsigned char *memory;
static volatile sig_atomic_t handled;
static unsigned char *expected_stack;

static void deep(int levels) {
    volatile unsigned char local[1024];
    memset((void *)local, levels, sizeof local);
    if (levels > 0) deep(levels - 1);
    for (size_t i = 0; i < sizeof local; i++) must(local[i] == (unsigned char)levels);
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    unsigned char here;
    must(&here > expected_stack && &here < expected_stack + STACK);
    deep(40);
    must(holds(memory, 4 * MIB, 5));
    handled++;
}

static void use_stack(unsigned char *at) {
    fill(at, STACK, 9);
    expected_stack = at;
    stack_t stack = {.ss_sp = at, .ss_size = STACK};
    must(sigaltstack(&stack, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        away(at, STACK);
        must(raise(SIGUSR1) == 0);
    }
    stack.ss_flags = SS_DISABLE;
    must(sigaltstack(&stack, NULL) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    must(sigaction(SIGUSR1, &action, NULL) == 0);
    memory = map_rw(4 * MIB);
    fill(memory, 4 * MIB, 5);
    use_stack(map_rw(STACK));
    use_stack(aligned_alloc(PAGE, STACK));
    must(handled == 6);
    return 0;
}
