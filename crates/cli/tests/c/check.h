/*
 * What the tests of single properties share: a check that ends the program, contents that follow from a number, and
 * pressure that pushes everything older out of memory.
 *
 * Each test is run as `TEST PRESSURE_MIB`. With EXPECT_EVICTED=1 in the environment, `away` insists that the pages
 * it is given have left memory, so that a test cannot pass because nothing ever left.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1024 * 1024ul)

#define must(condition)                                                                                               \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno,              \
                    strerror(errno));                                                                                 \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

static size_t pressure_mib = 64;

static inline void arguments(int argc, char **argv) {
    if (argc > 1) pressure_mib = strtoul(argv[1], NULL, 0);
}

/* Half of each page compresses, half does not. */
static inline uint64_t word_at(uint64_t number, size_t index) {
    uint64_t x = number * 0x9e3779b97f4a7c15u + index / 2 * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
    return index % 2 ? x ^ (x >> 29) : number;
}

static inline void fill(void *at, size_t size, uint64_t number) {
    uint64_t *words = at;
    for (size_t i = 0; i < size / 8; i++) words[i] = word_at(number, i);
}

static inline bool holds(const void *at, size_t size, uint64_t number) {
    const uint64_t *words = at;
    for (size_t i = 0; i < size / 8; i++) {
        if (words[i] == word_at(number, i)) continue;
        fprintf(stderr, "at %p, byte %zu of %zu: %#llx instead of %#llx\n", at, i * 8, size,
                (unsigned long long)words[i], (unsigned long long)word_at(number, i));
        return false;
    }
    return true;
}

static inline bool zero(const void *at, size_t size) {
    const unsigned char *bytes = at;
    for (size_t i = 0; i < size; i++)
        if (bytes[i]) return false;
    return true;
}

static inline void *map(size_t size, int protection, int flags) {
    void *at = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    must(at != MAP_FAILED);
    return at;
}

static inline void *map_rw(size_t size) {
    return map(size, PROT_READ | PROT_WRITE, 0);
}

/* Fills more memory than there is, twice over, so that whatever is older has to leave. */
static inline void press(void) {
    const uint64_t first = 1ul << 32, second = 2ul << 32;
    size_t size = pressure_mib * MIB;
    unsigned char *other = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(other + i, PAGE, first | i);
    for (size_t i = 0; i < size; i += PAGE) {
        must(holds(other + i, PAGE, first | i));
        fill(other + i, PAGE, second | i);
    }
    for (size_t i = 0; i < size; i += PAGE) must(holds(other + i, PAGE, second | i));
    must(munmap(other, size) == 0);
}

/* How many of the pages are in memory. */
static inline size_t resident(void *at, size_t size) {
    unsigned char *first = (unsigned char *)((uintptr_t)at & ~(PAGE - 1));
    size_t pages = ((unsigned char *)at + size - first + PAGE - 1) / PAGE, count = 0;
    for (size_t i = 0; i < pages; i++) {
        unsigned char there;
        must(syscall(SYS_mincore, first + i * PAGE, PAGE, &there) == 0);
        count += there & 1;
    }
    return count;
}

/* Touches more fresh memory than there is: older pages without heat have to leave. */
static inline void crowd(void) {
    size_t size = pressure_mib * MIB;
    unsigned char *other = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) *(volatile uint64_t *)(other + i) = i;
    must(munmap(other, size) == 0);
}

/* Crowds these pages out; insists on it when the environment asks. A page with heat is spared once in each round. */
static inline void away(void *at, size_t size) {
    const char *expected = getenv("EXPECT_EVICTED");
    if (!expected || *expected != '1') return;
    for (int i = 0; i < 200 && resident(at, size) > 0; i++) crowd();
    must(resident(at, size) == 0);
}

#endif
