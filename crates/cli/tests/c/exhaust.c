/*
 * Random data, which nothing can compress, is allocated until malloc says no; then everything must still be right.
 *
 *     exhaust MOST_MIB      exit 0: malloc gave NULL below that; 1: it never did, or something was lost
 */
#include "check.h"

#define BLOCK (MIB / 4)

static void noise(uint64_t *words, uint64_t seed) {
    for (size_t i = 0; i < BLOCK / 8; i++) {
        uint64_t x = (seed << 20 | i) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        words[i] = x ^ (x >> 31);
    }
}

static uint64_t expected[BLOCK / 8];
static uint64_t *blocks[1 << 18];

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t most = pressure_mib * MIB / BLOCK, count = 0;
    must(most <= sizeof blocks / sizeof *blocks);
    while (count < most && (blocks[count] = malloc(BLOCK))) {
        noise(blocks[count], count);
        count++;
    }
    printf("exhaust: %zu MiB\n", count * BLOCK / MIB);
    must(count < most);
    for (size_t i = 0; i < count; i++) {
        noise(expected, i);
        must(memcmp(blocks[i], expected, BLOCK) == 0);
        free(blocks[i]);
    }
    /* What was given back can be had again, once the allocator has given it back in turn. */
    void *again = NULL;
    for (int i = 0; i < 200 && !again; i++) {
        usleep(20 * 1000);
        free(malloc(16));
        again = malloc(BLOCK);
    }
    must(again);
    free(again);
    return 0;
}
