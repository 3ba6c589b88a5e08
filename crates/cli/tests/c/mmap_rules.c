/* The rules of mmap, munmap, mprotect and mremap hold for memory whose pages have left. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>

#define RW (PROT_READ | PROT_WRITE)
#define FIXED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED)

static sigjmp_buf back;

static void on_fault(int number) {
    siglongjmp(back, number);
}

static bool faults(volatile unsigned char *at, bool write) {
    if (sigsetjmp(back, 1)) return true;
    if (write)
        *at = 1;
    else
        (void)*at;
    return false;
}

/* A mapping of pages numbered from `first`, out of memory. */
static unsigned char *pages_away(size_t count, uint64_t first) {
    unsigned char *at = map_rw(count * PAGE);
    for (size_t i = 0; i < count; i++) fill(at + i * PAGE, PAGE, first + i);
    away(at, count * PAGE);
    return at;
}

static bool pages_hold(unsigned char *at, size_t count, uint64_t first) {
    for (size_t i = 0; i < count; i++)
        if (!holds(at + i * PAGE, PAGE, first + i)) return false;
    return true;
}

static void fixed_over_own_range(void) {
    unsigned char *at = pages_away(64, 100);
    must(mmap(at + 16 * PAGE, 32 * PAGE, RW, FIXED, -1, 0) == at + 16 * PAGE);
    must(zero(at + 16 * PAGE, 32 * PAGE));
    must(pages_hold(at, 16, 100) && pages_hold(at + 48 * PAGE, 16, 148));
    fill(at + 16 * PAGE, 32 * PAGE, 7);
    press();
    must(holds(at + 16 * PAGE, 32 * PAGE, 7));
    must(munmap(at, 64 * PAGE) == 0);
}

static void partial_unmap(void) {
    unsigned char *at = pages_away(64, 200);
    must(munmap(at + 16 * PAGE, 16 * PAGE) == 0);
    must(faults(at + 16 * PAGE, false) && faults(at + 31 * PAGE, true));
    must(pages_hold(at, 16, 200) && pages_hold(at + 32 * PAGE, 32, 232));
    /* The hole is free again: fresh memory there, and no old contents. */
    must(mmap(at + 16 * PAGE, 16 * PAGE, RW, FIXED, -1, 0) == at + 16 * PAGE);
    must(zero(at + 16 * PAGE, 16 * PAGE));
    must(munmap(at, 64 * PAGE) == 0);
    must(munmap(at, 64 * PAGE) == 0); /* unmapping what is not mapped is no error */
    must(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
}

static void reserve_then_commit(void) {
    size_t size = 1ul << 36;
    unsigned char *at = map(size, PROT_NONE, MAP_NORESERVE);
    must(faults(at + size / 2, false));
    unsigned char *part = at + size / 2;
    must(mprotect(part, 64 * PAGE, RW) == 0);
    must(zero(part, 64 * PAGE));
    fill(part, 64 * PAGE, 3);
    must(faults(part + 64 * PAGE, true));
    press();
    must(mprotect(part, 32 * PAGE, PROT_NONE) == 0);
    must(faults(part, false) && faults(part, true));
    must(mprotect(part, 32 * PAGE, PROT_READ) == 0);
    must(!faults(part, false) && faults(part, true));
    must(mprotect(part, 32 * PAGE, RW) == 0);
    must(holds(part, 64 * PAGE, 3));
    /* Committed by MAP_FIXED over the reservation, given back the same way. */
    must(mmap(at, 16 * PAGE, RW, FIXED, -1, 0) == at);
    fill(at, 16 * PAGE, 4);
    press();
    must(holds(at, 16 * PAGE, 4));
    must(mmap(at, 16 * PAGE, PROT_NONE, FIXED | MAP_NORESERVE, -1, 0) == at);
    must(faults(at, false));
    must(munmap(at, size) == 0);
}

static void remap_grow_and_shrink(void) {
    unsigned char *at = pages_away(64, 300);
    at = mremap(at, 64 * PAGE, 256 * PAGE, MREMAP_MAYMOVE);
    must(at != MAP_FAILED);
    must(pages_hold(at, 64, 300) && zero(at + 64 * PAGE, 192 * PAGE));
    fill(at + 64 * PAGE, 192 * PAGE, 5);
    away(at, 256 * PAGE);
    must(mremap(at, 256 * PAGE, 32 * PAGE, 0) == at);
    must(pages_hold(at, 32, 300));
    must(faults(at + 32 * PAGE, false));
    /* Growing again must not bring the old contents back. */
    at = mremap(at, 32 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    must(at != MAP_FAILED);
    must(pages_hold(at, 32, 300) && zero(at + 32 * PAGE, 32 * PAGE));
    must(munmap(at, 64 * PAGE) == 0);
}

static void remap_in_place_refused(void) {
    unsigned char *at = map_rw(32 * PAGE);
    fill(at, 32 * PAGE, 6);
    away(at, 16 * PAGE);
    must(mremap(at, 16 * PAGE, 32 * PAGE, 0) == MAP_FAILED && errno == ENOMEM);
    must(holds(at, 32 * PAGE, 6));
    must(munmap(at, 32 * PAGE) == 0);
}

static void remap_fixed(void) {
    unsigned char *at = pages_away(64, 400), *place = pages_away(64, 500);
    must(mremap(at, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    must(pages_hold(place, 64, 400));
    must(faults(at, false));
    must(munmap(place, 64 * PAGE) == 0);
}

static void remap_dontunmap(void) {
    unsigned char *at = pages_away(64, 600);
    unsigned char *place = mremap(at, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (place == MAP_FAILED && errno == EINVAL) return; /* before Linux 5.7 */
    must(place != MAP_FAILED && place != at);
    must(pages_hold(place, 64, 600) && zero(at, 64 * PAGE));
    must(munmap(at, 64 * PAGE) == 0 && munmap(place, 64 * PAGE) == 0);
}

/* A file mapped over a part of anonymous memory, and anonymous memory over it again. */
static void file_in_the_middle(void) {
    char name[] = "/var/tmp/mmap_rules.XXXXXX";
    int file = mkstemp(name);
    must(file >= 0 && unlink(name) == 0);
    unsigned char contents[16 * PAGE];
    fill(contents, sizeof contents, 8);
    must(write(file, contents, sizeof contents) == sizeof contents);
    unsigned char *at = pages_away(64, 700);
    unsigned char *middle = at + 16 * PAGE;
    must(mmap(middle, 16 * PAGE, RW, MAP_SHARED | MAP_FIXED, file, 0) == middle);
    must(holds(middle, 16 * PAGE, 8));
    fill(middle, PAGE, 9);
    press();
    must(pread(file, contents, PAGE, 0) == PAGE && holds(contents, PAGE, 9));
    must(pages_hold(at, 16, 700) && pages_hold(at + 32 * PAGE, 32, 732));
    must(mmap(middle, 16 * PAGE, RW, FIXED, -1, 0) == middle);
    must(zero(middle, 16 * PAGE));
    fill(middle, 16 * PAGE, 10);
    away(middle, 16 * PAGE);
    must(holds(middle, 16 * PAGE, 10));
    must(pread(file, contents, PAGE, 0) == PAGE && holds(contents, PAGE, 9));
    must(mmap(middle, 16 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == middle);
    must(holds(middle, PAGE, 9) && faults(middle, true));
    must(munmap(at, 64 * PAGE) == 0);
    close(file);
}

static void advice(void) {
    unsigned char *at = pages_away(64, 800);
    must(madvise(at, 16 * PAGE, MADV_DONTNEED) == 0);
    must(zero(at, 16 * PAGE) && pages_hold(at + 16 * PAGE, 48, 816));
    away(at + 16 * PAGE, 48 * PAGE);
    must(madvise(at + 16 * PAGE, 48 * PAGE, MADV_WILLNEED) == 0);
    must(pages_hold(at + 16 * PAGE, 48, 816));
    must(madvise(at + 16 * PAGE, 16 * PAGE, MADV_FREE) == 0);
    fill(at + 16 * PAGE, 16 * PAGE, 11); /* written again: kept from now on */
    press();
    must(holds(at + 16 * PAGE, 16 * PAGE, 11));
    must(madvise(at + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
#ifdef MADV_POPULATE_WRITE
    must(mprotect(at, PAGE, PROT_READ) == 0 && mprotect(at + PAGE, PAGE, PROT_NONE) == 0);
    must(madvise(at, PAGE, MADV_POPULATE_WRITE) == -1 && errno == EINVAL);
    must(madvise(at + PAGE, PAGE, MADV_POPULATE_READ) == -1 && errno == EINVAL);
#endif
    must(munmap(at, 64 * PAGE) == 0);
}

/* What the kernel refuses is refused, and told as it tells it. */
static void refusals(void) {
    unsigned char *at = pages_away(64, 1000), present[64];
    must(munmap(at + 16 * PAGE, 16 * PAGE) == 0);
    must(mincore(at, 16 * PAGE, present) == 0 && msync(at, 16 * PAGE, MS_SYNC) == 0);
    must(mincore(at, 64 * PAGE, present) == -1 && errno == ENOMEM);
    must(msync(at + 16 * PAGE, 16 * PAGE, MS_SYNC) == -1 && errno == ENOMEM);
    must(syscall(SYS_mincore, at + 31 * PAGE, PAGE, present) == -1 && errno == ENOMEM);
    must(syscall(SYS_msync, at, 17 * PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    must(mincore(at + 1, PAGE, present) == -1 && errno == EINVAL);
    must(msync(at, PAGE, MS_SYNC | MS_ASYNC) == -1 && errno == EINVAL);
    must(mlock2(at, PAGE, 4) == -1 && errno == EINVAL);
    must(mremap(at, PAGE, PAGE, MREMAP_FIXED, at + 20 * PAGE) == MAP_FAILED && errno == EINVAL);
    must(mremap(at, PAGE, PAGE, 64) == MAP_FAILED && errno == EINVAL);
    must(mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 20 * PAGE + 1) == MAP_FAILED && errno == EINVAL);
    must(mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) == MAP_FAILED && errno == EINVAL);
    must(mprotect(at + 40 * PAGE, PAGE, PROT_READ) == 0);
    must(madvise(at + 40 * PAGE, PAGE, MADV_POPULATE_WRITE) == -1 && errno == EINVAL);
    must(pages_hold(at, 16, 1000) && pages_hold(at + 32 * PAGE, 32, 1032));
    must(brk(NULL) == 0);
    must(munmap(at, 64 * PAGE) == 0);
}

/* A hint is kept where nothing is, and what it gives is memory as any other; where something is, that stays. */
static void hints(void) {
    unsigned char *at = pages_away(64, 900);
    unsigned char *hole = at + 16 * PAGE;
    must(munmap(hole, 16 * PAGE) == 0);
    unsigned char *there = mmap(hole, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(there == hole && zero(there, 16 * PAGE));
    fill(there, 16 * PAGE, 12);
    away(there, 16 * PAGE);
    must(holds(there, 16 * PAGE, 12));
    unsigned char *other = mmap(at, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(other != MAP_FAILED && other != at && zero(other, 16 * PAGE));
    must(pages_hold(at, 16, 900));
    must(munmap(at, 64 * PAGE) == 0 && munmap(other, 16 * PAGE) == 0);
    /* Near the program's own code. */
    unsigned char *near = (unsigned char *)(((uintptr_t)hints & ~0xfffffful) + (64ul << 20));
    unsigned char *code = mmap(near, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(code == near);
    fill(code, 16 * PAGE, 13);
    must(munmap(code, 16 * PAGE) == 0);
}

/* A heap whose addresses have bits that mean something (Java's ZGC): reserved at powers of two, the same memory at each. */
static void coloured(void) {
    int memory = memfd_create("heap", MFD_CLOEXEC);
    must(memory >= 0 && ftruncate(memory, 16 * PAGE) == 0);
    unsigned char *heaps[3];
    for (int i = 0; i < 3; i++) {
        void *wanted = (void *)(1ul << (42 + i));
        heaps[i] = mmap(wanted, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        must(heaps[i] == wanted);
        must(mmap(wanted, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) == wanted);
    }
    fill(heaps[0], 16 * PAGE, 14);
    press();
    for (int i = 0; i < 3; i++) must(holds(heaps[i], 16 * PAGE, 14) && munmap(heaps[i], 64 * MIB) == 0);
    close(memory);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    fixed_over_own_range();
    partial_unmap();
    reserve_then_commit();
    remap_grow_and_shrink();
    remap_in_place_refused();
    remap_fixed();
    remap_dontunmap();
    file_in_the_middle();
    advice();
    refusals();
    hints();
    coloured();
    return 0;
}
