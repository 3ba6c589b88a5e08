/* What is dropped past the library is zeros also while memory leaves, and the store refuses part of what leaves. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

enum { THREADS = 3, OWN = 8 * MIB, PIECE = 16 * PAGE, PIECES = OWN / PIECE };

static uint64_t rounds = 400;

/* Every piece has been filled long ago when it is dropped. */
static void *churn(void *argument) {
    unsigned char *at = argument;
    uint64_t filled[PIECES], seed = (uintptr_t)at;
    for (size_t i = 0; i < PIECES; i++) fill(at + i * PIECE, PIECE, filled[i] = i);
    for (uint64_t round = 0; round < rounds; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t piece = (seed >> 33) % PIECES;
        unsigned char *place = at + piece * PIECE;
        if (round % 4 == 0) {
            must(holds(place, PIECE, filled[piece]));
            continue;
        }
        must(syscall(SYS_madvise, place, PIECE, MADV_DONTNEED) == 0);
        must(zero(place, PIECE));
        fill(place, PIECE, filled[piece] = round + PIECES);
    }
    for (size_t i = 0; i < PIECES; i++) must(holds(at + i * PIECE, PIECE, filled[i]));
    return NULL;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    if (argc > 2) rounds = strtoul(argv[2], NULL, 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, churn, map_rw(OWN)) == 0);
    for (int i = 0; i < THREADS; i++) must(pthread_join(threads[i], NULL) == 0);
    return 0;
}
