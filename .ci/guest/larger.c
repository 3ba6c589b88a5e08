// Fills so many MiB, changes some pages in an order that memory cannot foresee, and looks at every word: a page that was
// lost, old or another's is told. A quarter of a page's words are its own, the others repeat, so it compresses. At the
// end it says what it is told to say, and waits for a line while its pages are still there.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, uint64_t round, unsigned at) {
    uint64_t x = (page * 1000003 + round) * WORDS + (at & 3 ? at / 16 : at);
    x *= 0x9e3779b97f4a7c15;
    return x ^ x >> 29;
}

static void fill(uint64_t *page, uint64_t number, uint64_t round) {
    for (unsigned at = 0; at < WORDS; at++) page[at] = word(number, round, at);
}

static void check(const uint64_t *page, uint64_t number, uint64_t round) {
    for (unsigned at = 0; at < WORDS; at++)
        if (page[at] != word(number, round, at)) {
            printf("page %lu, word %u: %lx in round %lu\n", number, at, page[at], round);
            exit(1);
        }
}

int main(int argc, char **argv) {
    uint64_t pages = argc > 1 ? strtoull(argv[1], NULL, 10) << 8 : 0, changes = pages / 16, seed = 1;
    uint64_t *memory = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *rounds = calloc(pages, 1);
    if (pages == 0 || memory == MAP_FAILED || !rounds) return 2;
    for (uint64_t page = 0; page < pages; page++) fill(memory + page * WORDS, page, 0);
    while (changes--) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        uint64_t page = (seed >> 33) % pages;
        check(memory + page * WORDS, page, rounds[page]);
        fill(memory + page * WORDS, page, ++rounds[page]);
    }
    for (uint64_t page = 0; page < pages; page++) check(memory + page * WORDS, page, rounds[page]);
    if (argc > 2) {
        puts(argv[2]);
        fflush(stdout);
        while (getchar() != '\n') {}
    }
    return 0;
}
