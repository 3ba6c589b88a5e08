// Reads pages of a disk for three seconds, sixteen at a time from one processor, at places that nobody can foresee and
// past the kernel's cache, and says how many a second came.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, READERS = 16, SECONDS = 3 };

static int disk;
static uint64_t pages;
static double begun;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *reads(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number + 1, count = 0;
    void *page;
    if (posix_memalign(&page, PAGE, PAGE)) exit(2);
    for (; now() - begun < SECONDS; count++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        if (pread(disk, page, PAGE, (off_t)((seed >> 33) % pages * PAGE)) != PAGE) exit(1);
    }
    return (void *)(uintptr_t)count;
}

int main(int argc, char **argv) {
    pthread_t readers[READERS];
    uint64_t count = 0;
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    disk = argc > 2 ? open(argv[1], O_RDONLY | O_DIRECT) : -1;
    if (disk < 0 || sched_setaffinity(0, sizeof first, &first)) return 2;
    pages = strtoull(argv[2], NULL, 10) << 8;
    begun = now();
    for (uintptr_t at = 0; at < READERS; at++)
        if (pthread_create(&readers[at], NULL, reads, (void *)at)) return 2;
    for (unsigned at = 0; at < READERS; at++) {
        void *done;
        pthread_join(readers[at], &done);
        count += (uintptr_t)done;
    }
    printf("deep: %s: %.0f pages a second\n", argv[1], count / (now() - begun));
    return 0;
}
