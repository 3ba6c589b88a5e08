/* The malloc family while the process is small: libc's own.
 *
 * The engine is loaded before libc gives out a large block, or a small one once its heap has grown to LITTLE bytes. Libc notes
 * where its heap ends, which costs two loads from memory to look at. What it keeps elsewhere (where the heap cannot grow, or tunables
 * tell it to) it says itself: it is asked whenever LOOK bytes have been asked of it, since that takes some microseconds. */

#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>

enum { LITTLE = 512 << 10, LARGE = 64 << 10, LOOK = 2 << 20 };

/* mallinfo2, or mallinfo before glibc 2.33. */
static void *info, *older_info;

void ramfold_find_heap(void) {
    info = ramfold_in_libc("mallinfo2");
    if (!info) older_info = ramfold_in_libc("mallinfo");
}

/* Bytes that libc has from the kernel; 0 before this can be asked. */
static size_t held(void) {
    if (info) {
        struct mallinfo2 now = ((struct mallinfo2(*)(void))info)();
        return now.arena + now.hblkhd;
    }
    if (!older_info) return 0;
    struct mallinfo now = ((struct mallinfo(*)(void))older_info)();
    return (size_t)now.arena + (size_t)now.hblkhd;
}

/* glibc's record of the break, where its heap ends; null before its first block. */
extern char *__curbrk;

static int fits(size_t size) {
    static char *begin;
    static size_t asked;
    char *end = __curbrk;
    if (!begin) begin = end;
    if (size >= LARGE || (uintptr_t)end - (uintptr_t)begin >= LITTLE) return 0;
    if ((asked += size) < LOOK) return 1;
    asked = 0;
    return held() < LITTLE;
}

/* The engine's `name` if it is time for it, else what follows. */
#define UNLESS_LARGE(size, name, type, ...)                                           \
    if (__builtin_expect(!fits(size), 0) && ramfold_load(__builtin_return_address(0))) \
        return ((type)ramfold_slot_##name)(__VA_ARGS__);

typedef void *(*one)(size_t);
typedef void *(*two)(size_t, size_t);
typedef void *(*again)(void *, size_t);

static size_t product(size_t a, size_t b) {
    size_t bytes;
    return __builtin_mul_overflow(a, b, &bytes) ? SIZE_MAX : bytes;
}

void *first_malloc(size_t size) {
    UNLESS_LARGE(size, malloc, one, size)
    return ramfold_libcs.malloc(size);
}

void *first_calloc(size_t count, size_t size) {
    UNLESS_LARGE(product(count, size), calloc, two, count, size)
    return ramfold_libcs.calloc(count, size);
}

void *first_realloc(void *p, size_t size) {
    UNLESS_LARGE(size, realloc, again, p, size)
    return ramfold_libcs.realloc(p, size);
}

void *first_reallocarray(void *p, size_t count, size_t size) {
    size_t bytes = product(count, size);
    UNLESS_LARGE(bytes, realloc, again, p, bytes)
    if (bytes == SIZE_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    return ramfold_libcs.realloc(p, bytes);
}

void first_free(void *p) { ramfold_libcs.free(p); }

void *first_memalign(size_t align, size_t size) {
    UNLESS_LARGE(size | align, memalign, two, align, size)
    return ramfold_libcs.memalign(align, size);
}

void *first_aligned_alloc(size_t align, size_t size) {
    UNLESS_LARGE(size | align, aligned_alloc, two, align, size)
    return ramfold_libcs.memalign(align, size);
}

int first_posix_memalign(void **out, size_t align, size_t size) {
    if (align < sizeof(void *) || align & (align - 1)) return EINVAL;
    UNLESS_LARGE(size | align, posix_memalign, int (*)(void **, size_t, size_t), out, align, size)
    int before = errno;
    void *p = ramfold_libcs.memalign(align, size);
    errno = before;
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *first_valloc(size_t size) {
    UNLESS_LARGE(size, valloc, one, size)
    return ramfold_libcs.valloc(size);
}

void *first_pvalloc(size_t size) {
    UNLESS_LARGE(size, pvalloc, one, size)
    return ramfold_libcs.pvalloc(size);
}

/* libc's function, looked for once. */
#define LIBCS(name)                                                                   \
    static void *found;                                                               \
    if (!found) found = ramfold_in_libc(name);

size_t first_malloc_usable_size(void *p) {
    LIBCS("malloc_usable_size")
    return ((size_t(*)(void *))found)(p);
}

int first_malloc_trim(size_t pad) {
    LIBCS("malloc_trim")
    return ((int (*)(size_t))found)(pad);
}

struct mallinfo first_mallinfo(void) {
    LIBCS("mallinfo")
    return ((struct mallinfo(*)(void))found)();
}

struct mallinfo2 first_mallinfo2(void) {
    LIBCS("mallinfo2")
    return ((struct mallinfo2(*)(void))found)();
}
