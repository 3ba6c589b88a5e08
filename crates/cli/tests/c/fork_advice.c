/* MADV_DONTFORK and MADV_WIPEONFORK: whatever the protection and wherever the pages are, the child has nothing of the memory, or
 * zeros, and the parent all. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)

enum { SIZE = 3 << 20, SEGV = 11 };

/* What wait tells of a child that does this. */
static int in_child(void (*does)(unsigned char *), unsigned char *at) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        does(at);
        _exit(0);
    }
    must(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void reads(unsigned char *at) {
    (void)*(volatile unsigned char *)at;
}

static void writes(unsigned char *at) {
    *(volatile unsigned char *)at = 1;
}

static void finds_all(unsigned char *at) {
    must(holds(at, SIZE, 1));
}

static void finds_zeros(unsigned char *at) {
    must(zero(at, SIZE));
    fill(at, SIZE, 2);
    press();
    must(holds(at, SIZE, 2));
    /* So does a child of its own. */
    must(in_child(reads, at) == 0);
    pid_t child = fork();
    if (child == 0) _exit(!zero(at, SIZE));
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void finds_room(unsigned char *at) {
    must(mprotect(at, SIZE, RW) == -1 && errno == ENOMEM);
    must(mmap(at, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
    must(zero(at, SIZE));
}

static void finds_zeros_between(unsigned char *at) {
    must(holds(at, PAGE, 4) && zero(at + PAGE, PAGE) && holds(at + 2 * PAGE, PAGE, 6));
}

static void wiped(bool gone) {
    unsigned char *at = map_rw(SIZE);
    fill(at, SIZE, 1);
    must(madvise(at, SIZE, MADV_WIPEONFORK) == 0);
    if (gone) away(at, SIZE);
    must(in_child(finds_zeros, at) == 0 && holds(at, SIZE, 1));
    must(madvise(at, SIZE, MADV_KEEPONFORK) == 0);
    must(in_child(finds_all, at) == 0 && holds(at, SIZE, 1));
    must(munmap(at, SIZE) == 0);
}

static void omitted(bool gone) {
    unsigned char *at = map_rw(SIZE);
    fill(at, SIZE, 1);
    must(madvise(at, SIZE, MADV_WIPEONFORK) == 0);
    must(madvise(at, SIZE, MADV_DONTFORK) == 0);
    if (gone) away(at, SIZE);
    must(in_child(reads, at) == SEGV && in_child(writes, at) == SEGV);
    must(in_child(finds_room, at) == 0 && holds(at, SIZE, 1));
    must(madvise(at, SIZE, MADV_DOFORK) == 0 && in_child(finds_zeros, at) == 0);
    must(madvise(at, SIZE, MADV_KEEPONFORK) == 0 && in_child(finds_all, at) == 0);
    must(holds(at, SIZE, 1) && munmap(at, SIZE) == 0);
}

static void protections(void) {
    unsigned char *at = map(2 * PAGE, PROT_NONE, 0);
    must(madvise(at, 2 * PAGE, MADV_WIPEONFORK) == 0 && in_child(reads, at) == SEGV);
    must(mprotect(at, 2 * PAGE, RW) == 0);
    fill(at, 2 * PAGE, 3);
    must(mprotect(at, PAGE, PROT_READ) == 0);
    must(in_child(writes, at) == SEGV && in_child(reads, at) == 0);
    must(holds(at, 2 * PAGE, 3) && munmap(at, 2 * PAGE) == 0);
}

/* The advice goes with memory that is moved, and not on to what comes after it. */
static void moved_and_mapped_anew(void) {
    unsigned char *at = map_rw(3 * PAGE), *other = map_rw(3 * PAGE);
    for (uint64_t i = 0; i < 3; i++) fill(at + i * PAGE, PAGE, 4 + i);
    must(madvise(at + PAGE, PAGE, MADV_WIPEONFORK) == 0 && in_child(finds_zeros_between, at) == 0);
    must(mremap(at + PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other + PAGE) == other + PAGE);
    for (uint64_t i = 0; i < 3; i += 2) fill(other + i * PAGE, PAGE, 4 + i);
    must(in_child(finds_zeros_between, other) == 0 && holds(other + PAGE, PAGE, 5));
    must(mmap(other, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    must(mmap(other + PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other + PAGE);
    fill(other, 3 * PAGE, 7);
    pid_t child = fork();
    if (child == 0) _exit(!holds(other, 3 * PAGE, 7));
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    must(madvise(at, 3 * PAGE, MADV_DONTFORK) == -1 && errno == ENOMEM);
    must(munmap(at, 3 * PAGE) == 0 && munmap(other, 3 * PAGE) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    press();
    for (int gone = 0; gone < 2; gone++) {
        wiped(gone);
        omitted(gone);
    }
    protections();
    moved_and_mapped_anew();
    return 0;
}
