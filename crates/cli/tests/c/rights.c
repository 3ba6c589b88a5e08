/* Memory whose rights change, and that is locked, page by page while it leaves and comes back keeps its contents; and nothing of it
   is left once it was given back. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

#define SIZE (48 * MIB)
#define PASSES 10

static unsigned char *area;
static atomic_bool stop;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void *change_rights(void *seed) {
    uint64_t state = (uintptr_t)seed;
    while (!stop) {
        unsigned char *page = area + next(&state) % (SIZE / PAGE) * PAGE;
        must(mprotect(page, PAGE, PROT_READ) == 0);
        must(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
    }
    return NULL;
}

static void *lock_and_unlock(void *seed) {
    uint64_t state = (uintptr_t)seed;
    while (!stop) {
        unsigned char *page = area + next(&state) % (SIZE / PAGE) * PAGE;
        if (mlock(page, PAGE) == 0) must(munlock(page, PAGE) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    area = map_rw(SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) fill(area + i, PAGE, i);
    press();
    away(area, PAGE);
    pthread_t threads[2];
    must(pthread_create(&threads[0], NULL, change_rights, (void *)1) == 0);
    must(pthread_create(&threads[1], NULL, lock_and_unlock, (void *)2) == 0);
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i < SIZE; i += PAGE) must(holds(area + i, PAGE, i));
    stop = true;
    for (int i = 0; i < 2; i++) must(pthread_join(threads[i], NULL) == 0);
    must(madvise(area, SIZE, MADV_DONTNEED) == 0);
    must(zero(area, SIZE));
    return 0;
}
