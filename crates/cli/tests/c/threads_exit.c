/* The main thread ends; the rest goes on, allocates, and ends the program. Threads come and go meanwhile. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

static unsigned char *memory;
static pthread_t main_thread;

static void *short_thread(void *argument) {
    size_t number = (size_t)argument;
    unsigned char *own = malloc(64 * PAGE);
    must(own);
    fill(own, 64 * PAGE, number);
    must(holds(own, 64 * PAGE, number));
    return own;
}

static void *rest(void *argument) {
    (void)argument;
    must(pthread_join(main_thread, NULL) == 0);
    for (size_t round = 0; round < 8; round++) {
        pthread_t threads[8];
        void *results[8];
        for (size_t i = 0; i < 8; i++) must(pthread_create(&threads[i], NULL, short_thread, (void *)(round * 8 + i)) == 0);
        for (size_t i = 0; i < 8; i++) must(pthread_join(threads[i], &results[i]) == 0);
        if (round == 4) press();
        for (size_t i = 0; i < 8; i++) {
            must(holds(results[i], 64 * PAGE, round * 8 + i));
            free(results[i]);
        }
    }
    must(holds(memory, 16 * MIB, 1));
    exit(0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = malloc(16 * MIB);
    must(memory);
    fill(memory, 16 * MIB, 1);
    away(memory + PAGE, PAGE);
    main_thread = pthread_self();
    pthread_t thread;
    must(pthread_create(&thread, NULL, rest, NULL) == 0);
    pthread_exit(NULL);
}
