/* The malloc family where a library that the program is linked with has one (jemalloc, tcmalloc): it is called.
 *
 * So all its further functions (mallocx, mallctl) find their own blocks. What ramfold itself takes, and what libc takes while it
 * works for ramfold, or for a stream, stays the engine's. What the library has not is libc's, as without ramfold: the engine's in
 * libc's place. */

#define _GNU_SOURCE
#include "start.h"
#include "symbols.h"

#include <errno.h>
#include <malloc.h>

static struct {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*memalign)(size_t, size_t), *(*aligned_alloc)(size_t, size_t), *(*valloc)(size_t), *(*pvalloc)(size_t);
    size_t (*malloc_usable_size)(void *);
    int (*malloc_trim)(size_t);
    struct mallinfo (*mallinfo)(void);
    struct mallinfo2 (*mallinfo2)(void);
} theirs, engines;

void ramfold_pass_on(const struct object *next) {
    const ElfW(Sym) *symbol;
#define PASS(name)                                                                    \
    engines.name = (void *)ramfold_libc_##name;                                       \
    symbol = ramfold_symbol(next, #name);                                             \
    theirs.name = symbol ? (void *)(next->map->l_addr + symbol->st_value) : engines.name;
    PASS(malloc)
    PASS(calloc)
    PASS(realloc)
    PASS(free)
    PASS(posix_memalign)
    PASS(memalign)
    PASS(aligned_alloc)
    PASS(valloc)
    PASS(pvalloc)
    PASS(malloc_usable_size)
    PASS(malloc_trim)
    PASS(mallinfo)
    PASS(mallinfo2)
}

static int is_internal(void) { return ramfold_is_internal && ramfold_is_internal(); }
static int is_engines(const void *p) { return ramfold_owns && ramfold_owns(p); }

/* A block for a stream never passes through their malloc: that would put its own head into it, where it lies over the engine. */
void *next_malloc(size_t size) {
    if (is_internal()) return engines.malloc(size);
    void *block = ramfold_stream_block ? ramfold_stream_block(size) : NULL;
    return block ? block : theirs.malloc(size);
}

#define NEW(type, name, takes, gives)                                                 \
    type next_##name takes { return is_internal() ? engines.name gives : theirs.name gives; }
NEW(void *, calloc, (size_t count, size_t size), (count, size))
NEW(int, posix_memalign, (void **out, size_t align, size_t size), (out, align, size))
NEW(void *, memalign, (size_t align, size_t size), (align, size))
NEW(void *, aligned_alloc, (size_t align, size_t size), (align, size))
NEW(void *, valloc, (size_t size), (size))
NEW(void *, pvalloc, (size_t size), (size))

void *next_realloc(void *p, size_t size) {
    if (!p) return next_malloc(size);
    return (is_engines(p) ? engines : theirs).realloc(p, size);
}

void *next_reallocarray(void *p, size_t count, size_t size) {
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes)) return next_realloc(p, bytes);
    errno = ENOMEM;
    return NULL;
}

void next_free(void *p) { (is_engines(p) ? engines.free : theirs.free)(p); }

void next_cfree(void *p) { next_free(p); }

size_t next_malloc_usable_size(void *p) { return (is_engines(p) ? engines : theirs).malloc_usable_size(p); }

int next_malloc_trim(size_t pad) { return theirs.malloc_trim(pad); }

struct mallinfo next_mallinfo(void) { return theirs.mallinfo(); }

struct mallinfo2 next_mallinfo2(void) { return theirs.mallinfo2(); }
