/* What the program does to its memory by system calls that no library sees is done: what it drops is zeros, whether it was in
   memory or away, what it unmaps is free for others, what it moves has its contents at the new place; neighbours are what they were. */
#define _GNU_SOURCE
#include "check.h"
#include "raw.h"

#include <pthread.h>
#include <sys/wait.h>

#define SIZE (16 * MIB)

static long raw_advise(void *at, size_t size, int advice) { return raw(SYS_madvise, (long)at, (long)size, advice, 0, 0, 0); }

static void fill_all(unsigned char *at, size_t size, uint64_t number) {
    for (size_t i = 0; i < size; i += PAGE) fill(at + i, PAGE, number + i);
}

static void expect_all(unsigned char *at, size_t size, uint64_t number) {
    for (size_t i = 0; i < size; i += PAGE) must(holds(at + i, PAGE, number + i));
}

/* Every other page is dropped: of the first half while it is away, of the second while it is in memory. */
static void dropped(void) {
    unsigned char *at = map_rw(SIZE);
    fill_all(at, SIZE, 0);
    press();
    away(at, PAGE);
    expect_all(at + SIZE / 2, SIZE / 2, SIZE / 2);
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) must(raw_advise(at + i, PAGE, i % (4 * PAGE) ? MADV_FREE : MADV_DONTNEED) == 0);
    /* What is only free may be there yet, unless it has been written over. */
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) must(i % (4 * PAGE) || zero(at + i, PAGE));
    for (size_t i = PAGE; i < SIZE; i += 2 * PAGE) must(holds(at + i, PAGE, i));
    must(raw_advise(at, SIZE, MADV_DONTNEED) == 0);
    must(zero(at, SIZE));
    fill_all(at, SIZE, 7);
    press();
    expect_all(at, SIZE, 7);
    must(munmap(at, SIZE) == 0);
}

/* What was only freed past the library stays until the kernel wants it. What libc's functions drop then is zeros, and so is what
   is mapped where it was. */
static void freed(void) {
    for (int round = 0; round < 3; round++) {
        unsigned char *at = map_rw(SIZE);
        must(zero(at, SIZE));
        fill_all(at, SIZE, 5);
        expect_all(at + SIZE / 2, SIZE / 2, 5 + SIZE / 2);
        must(raw_advise(at, SIZE, MADV_FREE) == 0);
        if (round == 1) must(madvise(at, SIZE, MADV_DONTNEED) == 0 && zero(at, SIZE));
        must(munmap(at, SIZE) == 0);
    }
}

/* What is dropped right before a fork or a move by libc's functions is so in the child, and at the new place. */
static void dropped_before_a_copy(void) {
    unsigned char *at = map_rw(SIZE);
    for (int round = 0; round < 20; round++) {
        fill_all(at, SIZE, 3);
        if (round % 10 == 0) press();
        must(raw_advise(at, SIZE / 2, MADV_DONTNEED) == 0);
        if (round % 2) {
            at = mremap(at, SIZE, SIZE, MREMAP_MAYMOVE);
            must(at != MAP_FAILED);
            unsigned char *elsewhere = map(SIZE, PROT_NONE, 0);
            must(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
            at = elsewhere;
        } else {
            pid_t child = fork();
            if (child == 0) _exit(!zero(at, SIZE / 2));
            int status;
            must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        }
        must(zero(at, SIZE / 2));
        expect_all(at + SIZE / 2, SIZE / 2, 3 + SIZE / 2);
    }
    must(munmap(at, SIZE) == 0);
}

/* What was unmapped may be something else's, and be mapped again by whatever way. */
static void unmapped(void) {
    unsigned char *at = map_rw(SIZE);
    unsigned char *part = at + SIZE / 4;
    fill_all(at, SIZE, 11);
    press();
    must(raw(SYS_munmap, (long)part, SIZE / 2, 0, 0, 0, 0) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    must(raw(SYS_mmap, (long)part, SIZE / 4, PROT_READ | PROT_WRITE, flags, -1, 0) == (long)part);
    must(zero(part, SIZE / 4));
    fill_all(part, SIZE / 4, 12);
    press();
    expect_all(part, SIZE / 4, 12);
    must(mmap(part, SIZE / 2, PROT_READ | PROT_WRITE, flags, -1, 0) == part);
    must(zero(part, SIZE / 2));
    fill_all(part, SIZE / 2, 13);
    press();
    expect_all(part, SIZE / 2, 13);
    expect_all(at, SIZE / 4, 11);
    expect_all(at + SIZE * 3 / 4, SIZE / 4, 11 + SIZE * 3 / 4);
    must(munmap(at, SIZE) == 0);
}

/* Most of what moves is away. */
static void moved(void) {
    unsigned char *at = map_rw(SIZE);
    fill_all(at, SIZE, 21);
    press();
    long to = raw(SYS_mremap, (long)at, SIZE / 4, SIZE / 2, MREMAP_MAYMOVE, 0, 0);
    must(to > 0 && to != (long)at);
    expect_all((unsigned char *)to, SIZE / 4, 21);
    must(zero((unsigned char *)to + SIZE / 4, SIZE / 4));
    expect_all(at + SIZE / 4, SIZE * 3 / 4, 21 + SIZE / 4);
    must(munmap((void *)to, SIZE / 2) == 0);
    must(munmap(at, SIZE) == 0);
}

enum { THREADS = 4, ROUNDS = 150, OWN = 2 * MIB };

/* Many drop and touch at the same time, while memory is short. */
static void *churn(void *argument) {
    unsigned char *at = argument;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        fill_all(at, OWN, round);
        size_t from = round % 7 * OWN / 8, size = OWN / 8;
        must((round % 3 ? raw_advise(at + from, size, MADV_DONTNEED) : madvise(at + from, size, MADV_DONTNEED)) == 0);
        must(zero(at + from, size));
        for (size_t i = 0; i < OWN; i += PAGE) must(i - from < size || holds(at + i, PAGE, round + i));
    }
    return NULL;
}

static void by_threads(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) must(pthread_create(&threads[i], NULL, churn, map_rw(OWN)) == 0);
    press();
    for (int i = 0; i < THREADS; i++) must(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    dropped();
    freed();
    dropped_before_a_copy();
    unmapped();
    moved();
    by_threads();
    return 0;
}
