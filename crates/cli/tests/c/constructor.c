/* Constructors of a library take memory, in blocks and mappings, and start a thread, before the program's first line: it is managed. */
#define _GNU_SOURCE
#include "check.h"

#ifdef MODULE
#include <pthread.h>

unsigned char *block, *mapping, *small[100];
const size_t early_size = 20 * MIB;

static void *take(void *unused) {
    (void)unused;
    fill(block = malloc(early_size), early_size, 1);
    return NULL;
}

__attribute__((constructor)) static void take_early(void) {
    for (size_t i = 0; i < 100; i++) fill(small[i] = malloc(500), 500, i);
    fill(mapping = map_rw(early_size), early_size, 2);
    pthread_t thread;
    must(pthread_create(&thread, NULL, take, NULL) == 0 && pthread_join(thread, NULL) == 0);
    must(setenv("CHANGED", "1", 1) == 0);
}
#else
extern unsigned char *block, *mapping, *small[100];
extern const size_t early_size;

int main(int argc, char **argv) {
    arguments(argc, argv);
    must(getenv("CHANGED") && getenv("PATH") && strcmp(program_invocation_name, argv[0]) == 0);
    away(block, 10 * PAGE);
    away(mapping, 10 * PAGE);
    press();
    must(holds(block, early_size, 1) && holds(mapping, early_size, 2));
    for (size_t i = 0; i < 100; i++) must(holds(small[i], 500, i));
    free(block);
    must(munmap(mapping, early_size) == 0);
    return 0;
}
#endif
