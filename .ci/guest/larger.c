// Fills so many MiB, changes some pages in an order that memory cannot foresee, and looks at every word: a page that was
// lost, old or another's is told. A quarter of a page's words are its own, the others repeat, so it compresses. At the
// end it says how long that took, and how long a page for a change that was away. Then it asks the host to look at the
// disk that it was given the name of, and waits for an answer while its pages are still there.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

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

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static long reads(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_majflt;
}

// The microseconds that the first look at the page takes; none if it was in memory, or on its way out and still there:
// only what is read from the disk is a major fault.
static double touch(const uint64_t *page) {
    long before = reads();
    double begun = now();
    *(const volatile uint8_t *)page;
    double took = now() - begun;
    return reads() > before ? took : 0;
}

static int order(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    uint64_t pages = argc > 1 ? strtoull(argv[1], NULL, 10) << 8 : 0, changes = pages / 16, seed = 1;
    uint64_t *memory = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *rounds = calloc(pages, 1);
    double *took = calloc(changes + 1, sizeof *took), begun = now();
    size_t touched = 0;
    if (pages == 0 || memory == MAP_FAILED || !rounds || !took) return 2;
    for (uint64_t page = 0; page < pages; page++) fill(memory + page * WORDS, page, 0);
    while (changes--) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        uint64_t page = (seed >> 33) % pages;
        took[touched] = touch(memory + page * WORDS);
        if (took[touched] > 0) touched++;
        check(memory + page * WORDS, page, rounds[page]);
        fill(memory + page * WORDS, page, ++rounds[page]);
    }
    for (uint64_t page = 0; page < pages; page++) check(memory + page * WORDS, page, rounds[page]);
    if (argc > 2) {
        printf("swap: %s: %.2f s\n", argv[2], (now() - begun) / 1e6);
        qsort(took, touched, sizeof *took, order);
        printf("latency: %s: %zu swapped in, median %.0f us, 99 of 100 within %.0f us\n", argv[2], touched,
               took[touched / 2], took[touched * 99 / 100]);
        printf("ask swapped %s\n", argv[2]);
        fflush(stdout);
        while (getchar() != '\n') {}
    }
    return 0;
}
