/* mmap and its family do what the kernel does, mixed kinds and partial ranges included. */
#define _GNU_SOURCE
#include "expect.h"
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static char *map(size_t pages) {
    char *p = mmap(NULL, pages * PAGE, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Whether the kernel can read a byte there: no signal handler needed. */
static int readable(const void *p) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    int ok = write(ends[1], p, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return ok;
}

static void errors(void) {
    errno = 0;
    CHECK(mmap(NULL, 0, RW, ANON, -1, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    CHECK(mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    CHECK(mmap(NULL, SIZE_MAX - 10, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
    errno = 0;
    CHECK(mmap(NULL, PAGE, RW, MAP_PRIVATE, -1, 0) == MAP_FAILED && errno == EBADF);
    char *p = map(2);
    errno = 0;
    CHECK(munmap(p + 1, PAGE) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(munmap(p, 0) == -1 && errno == EINVAL);
    CHECK(mprotect(p, 0, PROT_NONE) == 0);
    errno = 0;
    CHECK(mprotect(p + 8, PAGE, PROT_NONE) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(madvise(p, PAGE, 12345) == -1 && errno == EINVAL);
    CHECK(munmap(p, 2 * PAGE) == 0);
    CHECK(munmap(p, 2 * PAGE) == 0);
    CHECK(!readable(p));
}

static void protection(void) {
    char *p = map(4);
    fill(p, 4 * PAGE, 1);
    CHECK(mprotect(p + PAGE, 2 * PAGE, PROT_NONE) == 0);
    CHECK(readable(p) && !readable(p + PAGE) && !readable(p + 2 * PAGE) && readable(p + 3 * PAGE));
    CHECK(mprotect(p, 4 * PAGE, RW) == 0 && filled(p, 4 * PAGE, 1));
    CHECK(munmap(p + PAGE, PAGE) == 0 && !readable(p + PAGE) && readable(p + 2 * PAGE));
    CHECK(munmap(p, 4 * PAGE) == 0);
}

/* Reserve, commit by mprotect and by MAP_FIXED, give back: what language runtimes do. */
static void reservation(void) {
    size_t size = (size_t)1 << 40;
    char *p = mmap(NULL, size, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    char *a = p + (size >> 1), *b = a + (1 << 20);
    CHECK(mprotect(a, 1 << 20, RW) == 0);
    CHECK(mmap(b, 1 << 20, RW, ANON | MAP_FIXED, -1, 0) == b);
    fill(a, 2 << 20, 5);
    CHECK(filled(a, 2 << 20, 5));
    CHECK(mmap(b, 1 << 20, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == b && !readable(b));
    CHECK(mprotect(b, 1 << 20, RW) == 0 && zero(b, 1 << 20) && filled(a, 1 << 20, 5));
    CHECK(munmap(p, size) == 0);
}

/* More address space than is managed, as databases and sandboxes of WebAssembly reserve it. */
static void vast(void) {
    enum { COUNT = 8 };
    size_t size = (size_t)8 << 40;
    char *p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        int prot = i % 2 ? RW : PROT_NONE;
        p[i] = mmap(NULL, size, prot, ANON | MAP_NORESERVE, -1, 0);
        CHECK(p[i] != MAP_FAILED);
        CHECK(mprotect(p[i] + (size >> 1), 1 << 20, RW) == 0);
        fill(p[i] + (size >> 1), 1 << 20, i);
    }
    for (int i = 0; i < COUNT; i++) CHECK(filled(p[i] + (size >> 1), 1 << 20, i) && munmap(p[i], size) == 0);
}

static void fixed(void) {
    char *p = map(4);
    fill(p, 4 * PAGE, 2);
    char *same = mmap(p + PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(same == MAP_FAILED && errno == EEXIST && filled(p, 4 * PAGE, 2));
    CHECK(mmap(p + PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == p + PAGE);
    CHECK(zero(p + PAGE, PAGE) && p[0] == 2);

    char name[] = "/tmp/ramfold-mappings-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    char page[PAGE];
    memset(page, 'f', sizeof page);
    CHECK(write(fd, page, PAGE) == PAGE);
    CHECK(mmap(p + 2 * PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == p + 2 * PAGE);
    CHECK(p[2 * PAGE] == 'f');
    p[2 * PAGE] = 'g';
    CHECK(pread(fd, page, 1, 0) == 1 && page[0] == 'g');
    CHECK(mmap(p + 2 * PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == p + 2 * PAGE);
    CHECK(zero(p + 2 * PAGE, PAGE));
    char *shared = mmap(p, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && shared != p && shared[0] == 'g');
    munmap(shared, PAGE);
    CHECK(munmap(p, 4 * PAGE) == 0);
    close(fd);
}

static void moves(void) {
    char *p = map(64);
    fill(p, 64 * PAGE, 3);
    char *q = mremap(p, 64 * PAGE, 4096 * PAGE, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED && filled(q, 64 * PAGE, 3) && zero(q + 64 * PAGE, 4032 * (size_t)PAGE));
    q = mremap(q, 4096 * (size_t)PAGE, 32 * PAGE, 0);
    CHECK(q != MAP_FAILED && filled(q, 32 * PAGE, 3) && !readable(q + 32 * PAGE));
    char *target = map(32);
    CHECK(mremap(q, 32 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    CHECK(filled(target, 32 * PAGE, 3) && !readable(q));
    char *behind = map(1);
    char *grown = mremap(target, 32 * PAGE, (size_t)1 << 30, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && filled(grown, 32 * PAGE, 3));
    munmap(behind, PAGE);
    munmap(grown, (size_t)1 << 30);

    char *file = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(file, "shared");
    char *moved = mremap(file, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && strcmp(moved, "shared") == 0);
    munmap(moved, 4 * PAGE);
}

static void advice(void) {
    char *p = map(32);
    fill(p, 32 * PAGE, 4);
    CHECK(madvise(p, 32 * PAGE, MADV_COLD) == 0 && filled(p, 32 * PAGE, 4));
    CHECK(madvise(p, 32 * PAGE, MADV_WILLNEED) == 0 && filled(p, 32 * PAGE, 4));
    CHECK(madvise(p, 32 * PAGE, MADV_HUGEPAGE) == 0);
    CHECK(posix_madvise(p, 32 * PAGE, POSIX_MADV_DONTNEED) == 0 && filled(p, 32 * PAGE, 4));
    CHECK(madvise(p + PAGE, PAGE, MADV_DONTNEED) == 0);
    CHECK(zero(p + PAGE, PAGE) && filled(p, PAGE, 4) && p[2 * PAGE] != 0);
    CHECK(mlock(p, 32 * PAGE) == 0 && munlock(p + 3, 5) == 0 && munlock(p, 32 * PAGE) == 0);
    strcpy(p, "generator");
    if (madvise(p, PAGE, MADV_WIPEONFORK) == 0) CHECK(strcmp(p, "generator") == 0);
    CHECK(munmap(p, 32 * PAGE) == 0);
    char *populated = mmap(NULL, 8 * PAGE, RW, ANON | MAP_POPULATE, -1, 0);
    CHECK(populated != MAP_FAILED && zero(populated, 8 * PAGE));
    munmap(populated, 8 * PAGE);
    char *low = mmap(NULL, PAGE, RW, ANON | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED && (uintptr_t)low < (uintptr_t)1 << 32);
    munmap(low, PAGE);
}

static void breaks(void) {
    char *start = sbrk(0);
    CHECK(sbrk(100000) == start && sbrk(0) == start + 100000);
    CHECK(zero(start, 100000));
    fill(start, 100000, 6);
    CHECK(sbrk(-50000) == start + 100000 && filled(start, 50000, 6));
    CHECK(brk(start + 200000) == 0 && filled(start, 50000, 6) && zero(start + 100000, 100000));
    errno = 0;
    CHECK(sbrk((intptr_t)1 << 46) == (void *)-1 && errno == ENOMEM);
    CHECK(brk(start) == 0 && sbrk(0) == start);
}

int main(void) {
    errors();
    protection();
    reservation();
    vast();
    fixed();
    moves();
    advice();
    breaks();
    return DONE;
}
