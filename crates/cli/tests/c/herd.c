/* More threads than mimalloc has memory reserved for ask for their first blocks of middle size at the same moment, and others
   give them back. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

enum { THREADS = 300, SIZE = 20000 };

static pthread_barrier_t all;

static void *ask(void *number) {
    pthread_barrier_wait(&all);
    unsigned char *block = malloc(SIZE);
    must(block);
    fill(block, SIZE, (uintptr_t)number);
    return block;
}

int main(int argc, char **argv) {
    static pthread_t threads[THREADS];
    arguments(argc, argv);
    press();
    must(pthread_barrier_init(&all, NULL, THREADS) == 0);
    pthread_attr_t small;
    must(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) must(pthread_create(&threads[i], &small, ask, (void *)i) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        void *block;
        must(pthread_join(threads[i], &block) == 0);
        must(holds(block, SIZE, i));
        free(block);
    }
}
