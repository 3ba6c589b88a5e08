/* The malloc family: errors, alignment, sizes, contents. */
#define _GNU_SOURCE
#include "expect.h"
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void errors(void) {
    volatile size_t huge = PTRDIFF_MAX, half = SIZE_MAX / 2 + 2;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(half, 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, half, 2) == NULL && errno == ENOMEM);
    void *p = (void *)1;
    CHECK(posix_memalign(&p, 3, 8) == EINVAL);
    CHECK(posix_memalign(&p, 4, 8) == EINVAL);
    CHECK(p == (void *)1);
    errno = 0;
    CHECK(posix_memalign(&p, 64, huge) == ENOMEM && errno == 0);
    char *q = malloc(100);
    fill(q, 100, 1);
    errno = 0;
    CHECK(realloc(q, huge) == NULL && errno == ENOMEM && filled(q, 100, 1));
    free(q);
    errno = EBADF;
    free(NULL);
    free(malloc(3 << 20));
    CHECK(errno == EBADF);
}

static void sizes(void) {
    void *nothing = malloc(0);
    CHECK(nothing != NULL);
    free(nothing);
    CHECK(realloc(malloc(10), 0) == NULL);
    for (size_t size = 1; size < (64u << 20); size = size * 3 / 2 + 1) {
        char *p = malloc(size);
        CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= size);
        fill(p, size, (unsigned)size);
        char *z = calloc(1, size);
        CHECK(z && zero(z, size));
        CHECK(filled(p, size, (unsigned)size));
        free(z);
        free(p);
    }
}

static void alignments(void) {
    for (size_t align = 8; align <= (32u << 20); align *= 2) {
        for (size_t size = 1; size <= (4u << 20); size *= 64) {
            void *p = NULL;
            CHECK(posix_memalign(&p, align, size) == 0 && (uintptr_t)p % align == 0);
            memset(p, 0xa5, size);
            CHECK(malloc_usable_size(p) >= size);
            free(p);
            CHECK((uintptr_t)(p = aligned_alloc(align, size)) % align == 0 && p);
            free(p);
        }
    }
    void *v = valloc(5), *w = pvalloc(5);
    CHECK((uintptr_t)v % 4096 == 0 && (uintptr_t)w % 4096 == 0 && malloc_usable_size(w) >= 4096);
    memset(w, 1, 4096);
    free(v);
    free(w);
}

/* Through all homes of blocks and back; contents survive. */
static void growth(void) {
    size_t size = 40;
    char *p = malloc(size), *other = NULL;
    fill(p, size, 7);
    while (size < (96u << 20)) {
        size_t more = size * 5 / 4 + 4;
        p = realloc(p, more);
        CHECK(p && filled(p, size / 4 * 4, 7));
        fill(p, more, 7);
        size = more;
        free(other);
        other = malloc(size / 3);
    }
    free(other);
    while (size > 100) {
        size /= 3;
        p = realloc(p, size);
        CHECK(p && filled(p, size / 4 * 4, 7));
    }
    free(p);
}

/* Growing a large block moves pages, it does not copy them: resident memory stays what is touched. */
static void growth_without_copies(void) {
    size_t size = 1 << 20;
    char *p = malloc(size);
    memset(p, 3, size);
    for (; size < (1u << 30); size *= 2) {
        p = realloc(p, size * 2);
        CHECK(p && p[0] == 3 && p[(1 << 20) - 1] == 3);
    }
    free(p);
}

static void many(void) {
    enum { COUNT = 20000 };
    static char *blocks[COUNT];
    static unsigned lengths[COUNT];
    unsigned random = 12345;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++) {
            random = random * 1103515245 + 12345;
            if (blocks[i] && random & 0x10000) {
                CHECK(filled(blocks[i], lengths[i], (unsigned)i));
                free(blocks[i]);
                blocks[i] = NULL;
            } else if (!blocks[i]) {
                lengths[i] = (random >> 8) % 2000 & ~3u;
                blocks[i] = malloc(lengths[i]);
                fill(blocks[i], lengths[i], (unsigned)i);
            }
        }
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(!blocks[i] || filled(blocks[i], lengths[i], (unsigned)i));
        free(blocks[i]);
    }
}

/* Blocks that libc allocated for the program are blocks like any other. */
static void from_libc(void) {
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    for (int i = 0; i < 100000; i++) fprintf(stream, "%d ", i);
    CHECK(fclose(stream) == 0 && malloc_usable_size(text) > length && strncmp(text, "0 1 2 3 ", 8) == 0);
    text = realloc(text, length * 2);
    CHECK(text && strncmp(text, "0 1 2 3 ", 8) == 0);
    free(text);
}

/* A guard page stays one, whatever becomes accessible beside it, and what is made accessible again has its contents. */
static void guards(void) {
    enum { GUARDS = 150, PAGE = 4096, BLOCK = 16 * PAGE };
    static char *blocks[GUARDS];
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (int i = 0; i < GUARDS; i++) {
        CHECK(posix_memalign((void **)&blocks[i], PAGE, BLOCK) == 0);
        fill(blocks[i], BLOCK, (unsigned)i);
        CHECK(mprotect(blocks[i], PAGE, PROT_NONE) == 0);
        CHECK(mprotect(blocks[i] + BLOCK - PAGE, PAGE, PROT_NONE) == 0);
        for (int k = 0; k < 40; k++) CHECK(memset(malloc(2000 + 500 * (k % 9)), 1, 2000) != NULL);
        CHECK(mprotect(blocks[i] + PAGE, BLOCK - 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    }
    for (int i = 0; i < GUARDS; i++) {
        CHECK(write(ends[1], blocks[i], 1) == -1 && errno == EFAULT);
        CHECK(write(ends[1], blocks[i] + BLOCK - PAGE, 1) == -1 && errno == EFAULT);
        CHECK(mprotect(blocks[i], BLOCK, PROT_READ | PROT_WRITE) == 0);
        CHECK(filled(blocks[i], BLOCK, (unsigned)i));
        free(blocks[i]);
    }
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    from_libc();
    guards();
    errors();
    sizes();
    alignments();
    growth();
    growth_without_copies();
    many();
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks > 0);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    malloc_trim(0);
    return DONE;
}
