/* Memory that may be executed as well leaves and comes back as other memory does, whether it was mapped by mmap or by syscall();
   so does what may only be written, what may be executed because the program has asked for that of all that it reads, and code
   in it still runs. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/personality.h>

#define SIZE (8 * MIB)

static void fill_all(unsigned char *at) {
    for (size_t i = 0; i < SIZE; i += PAGE) fill(at + i, PAGE, (uintptr_t)at + i);
}

static void expect_all(unsigned char *at) {
    for (size_t i = 0; i < SIZE; i += PAGE) must(holds(at + i, PAGE, (uintptr_t)at + i));
}

/* A function that returns 42, at the beginning of a page. */
static void put_code(unsigned char *at) {
#if defined(__x86_64__)
    memcpy(at, "\xb8\x2a\0\0\0\xc3", 6);
#elif defined(__aarch64__)
    memcpy(at, "\x40\x05\x80\x52\xc0\x03\x5f\xd6", 8);
    __builtin___clear_cache((char *)at, (char *)at + 8);
#endif
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    int all = PROT_READ | PROT_WRITE | PROT_EXEC, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *first = map(SIZE, all, 0), *second = (unsigned char *)syscall(SYS_mmap, NULL, SIZE, all, flags, -1, 0);
    must(second != MAP_FAILED);
    unsigned char *written = map(SIZE, PROT_WRITE, 0), *code = map(PAGE, all, 0);
    fill_all(first);
    fill_all(second);
    fill_all(written);
    put_code(code);
    press();
    away(first, SIZE);
    away(second, SIZE);
    away(written, SIZE);
    away(code, PAGE);
    int (*function)(void) = (int (*)(void))(uintptr_t)code;
    must(function() == 42);
    /* Every other piece of one mapping is like it no longer. */
    for (size_t i = 0; i < SIZE; i += 8 * PAGE) must(syscall(SYS_mprotect, first + i, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
    press();
    must(mprotect(written, SIZE, PROT_READ) == 0);
    expect_all(first);
    expect_all(second);
    expect_all(written);
    must(syscall(SYS_madvise, first, SIZE, MADV_DONTNEED) == 0 && zero(first, SIZE));
    must(mprotect(first, SIZE, PROT_READ | PROT_WRITE) == 0);
    unsigned char *grown = (unsigned char *)syscall(SYS_mremap, first, SIZE, 2 * SIZE, MREMAP_MAYMOVE, NULL);
    must(grown != MAP_FAILED && zero(grown, 2 * SIZE));
    must(syscall(SYS_munmap, second, SIZE) == 0 && munmap(grown, 2 * SIZE) == 0);
    must(personality(PER_LINUX | READ_IMPLIES_EXEC) >= 0);
    unsigned char *implied = map_rw(SIZE);
    fill_all(implied);
    press();
    away(implied, SIZE);
    expect_all(implied);
    return 0;
}
