/* Memory that was given back is zeros when it comes again, however soon after its first touch it went. The thread
   whose touch the pager resolves may run on before the pager has noted the page. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <time.h>

#define THREADS 6
#define SECONDS 3
/* Several of the pager's groups: whole ones are empty. */
#define SIZE (16 * MIB)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* One page in each of the empty groups: touched, given back, looked at. */
static void round_of(unsigned char *at, size_t offset, bool unmap) {
    for (size_t i = 0; i < SIZE; i += 4 * MIB) {
        volatile uint64_t *word = (uint64_t *)(at + i + offset);
        must(*word == 0);
        *word = 0x5ca1ab1e;
        if (unmap) {
            must(mmap(at + i, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                 at + i);
        } else {
            must(madvise(at + i, 4 * MIB, MADV_DONTNEED) == 0);
        }
        must(*word == 0);
        must(madvise(at + i, 4 * MIB, MADV_DONTNEED) == 0);
    }
}

static void *reuse(void *number) {
    unsigned char *at = map_rw(SIZE);
    double end = now() + SECONDS;
    for (size_t i = (size_t)number; now() < end; i++) round_of(at, i * 7 % 1024 * PAGE, i % 2);
    must(munmap(at, SIZE) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    press();
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, reuse, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++) must(pthread_join(threads[i], NULL) == 0);
    return 0;
}
