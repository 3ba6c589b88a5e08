/*
 * Memory under stress: threads allocate, resize, move, give back, advise, protect, lock and share memory at random,
 * and every byte of it is known at every moment.
 *
 * A byte's value follows from its block's id and its offset, so a page that came back from elsewhere, late, twice or
 * not at all shows. Blocks are checked in full before they are freed, shrunk or moved, after they were moved, and at
 * random in between. What the program knows about its blocks is static, so that it stays right when they go wrong.
 *
 *     stress [MIB [SECONDS [SEED [THREADS]]]]      exit 0, or 1 and a line that says what differed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MAX_THREADS 64
#define HEAP_SLOTS 1024
#define MAP_SLOTS 96
#define MAP_PAGES 2048
#define SHARED_SLOTS 64
#define ALT_STACK (64 * 1024)
#define STUCK_SECONDS 180

/* What a page of a mapping holds. */
enum state { PATTERN, ZERO, EITHER /* after MADV_FREE */ };

struct block {
    unsigned char *start; /* NULL: the slot is free */
    size_t size;
    size_t offset; /* of the first byte within the pattern */
    uint64_t id;
};

struct map {
    struct block block;
    bool mixed; /* parts were mapped anew: the kernel may see several mappings and refuse to move them as one */
    unsigned char state[MAP_PAGES];
};

struct thread {
    pthread_t handle;
    int number;
    uint64_t random;
    uint64_t next_id;
    struct block heap[HEAP_SLOTS];
    struct map maps[MAP_SLOTS];
    size_t live;
    int pipe[2];
    void *alt_stack;
    sigjmp_buf fault_return;
    unsigned char *volatile fault_expected; /* the page whose access must raise SIGSEGV */
    _Atomic uint64_t operations;
    const char *_Atomic doing;
};

static struct thread threads[MAX_THREADS];
static int thread_count = 8;
static size_t target; /* live bytes a thread aims at */
static uint64_t seed;
static atomic_bool stop;
static _Atomic uint64_t signals, forks, moves, moves_refused, faults;
static struct block shared[SHARED_SLOTS];
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct thread *self;

/* ---- reporting: no allocation, because the heap may be what is broken ---- */

static void fail(const char *format, ...) {
    char line[512];
    int len = snprintf(line, sizeof line, "stress: seed %llu, thread %d, %s: ", (unsigned long long)seed,
                       self ? self->number : -1, self && self->doing ? self->doing : "main");
    va_list args;
    va_start(args, format);
    len += vsnprintf(line + len, sizeof line - len - 1, format, args);
    va_end(args);
    if (len > (int)sizeof line - 2) len = sizeof line - 2;
    line[len++] = '\n';
    if (write(2, line, len) < 0) _exit(3);
    _exit(1);
}

static void must(bool condition, const char *what) {
    if (!condition) fail("%s: %s", what, strerror(errno));
}

/* ---- randomness and patterns ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t word_of(struct thread *t) {
    return mix(t->random += 0x9e3779b97f4a7c15u);
}

static size_t below(struct thread *t, size_t bound) {
    return word_of(t) % bound;
}

/* The eight bytes at `offset` (a multiple of 8). Ids differ in kind: noise, words that compress, one repeated word,
   pages that repeat. */
static uint64_t pattern(uint64_t id, size_t offset) {
    uint64_t kind = mix(id) % 20, index = offset / 8;
    if (kind < 3) return mix(id * 0x10001 + index);
    if (kind < 14) return (id << 24 | (mix(id + index) & 0x3ff) << 4) ^ (offset / PAGE << 48);
    if (kind < 17) return id;
    return mix(id % 4 + index % (PAGE / 8));
}

static void fill(unsigned char *at, size_t size, uint64_t id, size_t offset) {
    size_t whole = size & ~7ul;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t word = pattern(id, offset + i);
        memcpy(at + i, &word, 8);
    }
    uint64_t last = pattern(id, offset + whole);
    memcpy(at + whole, &last, size - whole);
}

/* Offset of the first byte that differs, or `size`. */
static size_t first_difference(const unsigned char *at, size_t size, uint64_t id, size_t offset) {
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = pattern(id, offset + i), got = 0;
        size_t len = size - i < 8 ? size - i : 8;
        memcpy(&got, at + i, len);
        if (memcmp(&word, &got, len) == 0) continue;
        while (*(at + i) == ((unsigned char *)&word)[i % 8]) i++;
        return i;
    }
    return size;
}

static bool all_zero(const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (at[i]) return false;
    return true;
}

static void check(const unsigned char *at, size_t size, uint64_t id, size_t offset) {
    size_t bad = first_difference(at, size, id, offset);
    if (bad == size) return;
    uint64_t word = pattern(id, (offset + bad) & ~7ul);
    size_t page = bad & ~(PAGE - 1), rest = size - page < PAGE ? size - page : PAGE;
    fail("block %llx of %zu bytes at %p: byte %zu is %#x instead of %#x%s", (unsigned long long)id, size, (void *)at,
         bad, at[bad], ((unsigned char *)&word)[bad % 8], all_zero(at + page, rest) ? " (zeros from there)" : "");
}

static void check_zero(const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (at[i]) fail("fresh memory at %p holds %#x at byte %zu", (void *)at, at[i], i);
}

/* ---- the heap ---- */

static uint64_t new_id(struct thread *t) {
    return (uint64_t)(t->number + 1) << 28 | t->next_id++;
}

static size_t heap_size(struct thread *t) {
    size_t kind = below(t, 100);
    if (kind < 60) return 1 + below(t, 2048);
    if (kind < 92) return 1 + below(t, 256 * 1024);
    return 1 + below(t, target / 8 + 1);
}

static struct block *heap_slot(struct thread *t, bool used) {
    size_t first = below(t, HEAP_SLOTS);
    for (size_t i = 0; i < HEAP_SLOTS; i++) {
        struct block *block = &t->heap[(first + i) % HEAP_SLOTS];
        if ((block->start != NULL) == used) return block;
    }
    return NULL;
}

static void block_check(const struct block *block) {
    check(block->start, block->size, block->id, block->offset);
}

static void heap_free(struct thread *t) {
    struct block *block = heap_slot(t, true);
    if (!block) return;
    block_check(block);
    free(block->start);
    t->live -= block->size;
    block->start = NULL;
}

static void *aligned(struct thread *t, size_t size) {
    size_t alignment = 16ul << below(t, 12);
    void *start = NULL;
    if (below(t, 2)) {
        if (posix_memalign(&start, alignment, size)) start = NULL;
    } else {
        start = memalign(alignment, size);
    }
    if ((uintptr_t)start % alignment) fail("memalign(%zu, %zu) gives %p", alignment, size, start);
    return start;
}

static void heap_new(struct thread *t) {
    struct block *block = heap_slot(t, false);
    if (!block || t->live > target) return heap_free(t);
    size_t size = heap_size(t);
    unsigned char *start;
    switch (below(t, 4)) {
    case 0:
        start = calloc(1, size);
        if (start) check_zero(start, size);
        break;
    case 1: start = aligned(t, size); break;
    default: start = malloc(size);
    }
    must(start, "malloc");
    if (malloc_usable_size(start) < size) fail("malloc_usable_size is below %zu", size);
    *block = (struct block){start, size, 0, new_id(t)};
    fill(start, size, block->id, 0);
    t->live += size;
}

static void heap_realloc(struct thread *t) {
    struct block *block = heap_slot(t, true);
    if (!block) return;
    size_t size = t->live > target ? 1 + below(t, block->size) : heap_size(t);
    size_t kept = size < block->size ? size : block->size;
    if (size < block->size) block_check(block);
    unsigned char *start = realloc(block->start, size);
    must(start, "realloc");
    check(start, kept, block->id, 0);
    fill(start + kept, size - kept, block->id, kept & ~7ul);
    if (kept % 8) fill(start + (kept & ~7ul), size - (kept & ~7ul), block->id, kept & ~7ul);
    t->live = t->live - block->size + size;
    block->start = start;
    block->size = size;
}

static void heap_check(struct thread *t) {
    struct block *block = heap_slot(t, true);
    if (block) block_check(block);
}

/* A block changes hands: another thread will check and free it. */
static void heap_exchange(struct thread *t) {
    struct block *mine = heap_slot(t, true);
    if (!mine) return;
    pthread_mutex_lock(&shared_lock);
    struct block *other = &shared[below(t, SHARED_SLOTS)], swapped = *other;
    *other = *mine;
    pthread_mutex_unlock(&shared_lock);
    t->live -= mine->size;
    *mine = swapped;
    if (!mine->start) return;
    t->live += mine->size;
    block_check(mine);
}

/* ---- mappings ---- */

static struct map *map_slot(struct thread *t, bool used) {
    size_t first = below(t, MAP_SLOTS);
    for (size_t i = 0; i < MAP_SLOTS; i++) {
        struct map *map = &t->maps[(first + i) % MAP_SLOTS];
        if ((map->block.start != NULL) == used) return map;
    }
    return NULL;
}

static size_t pages_of(const struct map *map) {
    return map->block.size / PAGE;
}

static void map_check_range(const struct map *map, size_t first, size_t count) {
    const struct block *block = &map->block;
    for (size_t page = first; page < first + count; page++) {
        const unsigned char *at = block->start + page * PAGE;
        size_t offset = block->offset + page * PAGE;
        bool zero_allowed = map->state[page] != PATTERN, pattern_allowed = map->state[page] != ZERO;
        if (zero_allowed && all_zero(at, PAGE)) continue;
        if (!pattern_allowed) check_zero(at, PAGE);
        check(at, PAGE, block->id, offset);
    }
}

static void map_check(const struct map *map) {
    map_check_range(map, 0, pages_of(map));
}

static void map_fill(struct map *map, size_t first, size_t count) {
    struct block *block = &map->block;
    fill(block->start + first * PAGE, count * PAGE, block->id, block->offset + first * PAGE);
    memset(map->state + first, PATTERN, count);
}

/* A random part of the mapping. */
static size_t part_of(struct thread *t, const struct map *map, size_t *first) {
    *first = below(t, pages_of(map));
    return 1 + below(t, pages_of(map) - *first);
}

static unsigned char *map_raw(size_t pages, int protection, int flags) {
    void *start = mmap(NULL, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    must(start != MAP_FAILED, "mmap");
    return start;
}

static void map_drop(struct thread *t, struct map *map) {
    map_check(map);
    must(munmap(map->block.start, map->block.size) == 0, "munmap");
    t->live -= map->block.size;
    map->block.start = NULL;
}

static void map_new(struct thread *t) {
    struct map *map = map_slot(t, false);
    if (!map || t->live > target) {
        map = map_slot(t, true);
        if (map) map_drop(t, map);
        return;
    }
    size_t pages = 1 + below(t, below(t, 4) ? 64 : MAP_PAGES);
    static const int flags[] = {0, MAP_NORESERVE, MAP_POPULATE, 0};
    unsigned char *start = map_raw(pages, PROT_READ | PROT_WRITE, flags[below(t, 4)]);
    map->block = (struct block){start, pages * PAGE, 0, new_id(t)};
    map->mixed = false;
    memset(map->state, ZERO, pages);
    if (below(t, 4) == 0) map_check(map);
    t->live += pages * PAGE;
    size_t first = 0, count = pages;
    if (below(t, 4) == 0) count = part_of(t, map, &first);
    map_fill(map, first, count);
}

/* Makes `to` the part of `from` that begins at page `first`; the caller shortens `from`. */
static void map_split(struct map *to, const struct map *from, size_t first) {
    const struct block *block = &from->block;
    to->block = (struct block){block->start + first * PAGE, block->size - first * PAGE,
                               block->offset + first * PAGE, block->id};
    to->mixed = from->mixed;
    memcpy(to->state, from->state + first, pages_of(to));
}

/* All of it, its head, its tail, or a hole in the middle. */
static void map_unmap(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    struct map *rest = map_slot(t, false);
    size_t first, count = part_of(t, map, &first), all = pages_of(map);
    if (!rest || count == all || below(t, 4) == 0) return map_drop(t, map);
    map_check_range(map, first, count);
    must(munmap(map->block.start + first * PAGE, count * PAGE) == 0, "munmap of a part");
    t->live -= count * PAGE;
    if (first + count < all) map_split(rest, map, first + count);
    map->block.size = first * PAGE;
    if (first == 0) map->block.start = NULL;
}

static bool moved(void *result, bool may_refuse) {
    if (result != MAP_FAILED) {
        moves++;
        return true;
    }
    /* Several mappings in one range (EFAULT), or no room to grow in place (ENOMEM). */
    must(may_refuse && (errno == EFAULT || errno == ENOMEM || errno == EINVAL), "mremap");
    moves_refused++;
    return false;
}

static void map_resize(struct thread *t, struct map *map) {
    size_t old = pages_of(map), pages = t->live > target ? 1 + below(t, old) : 1 + below(t, MAP_PAGES);
    if (below(t, 2)) pages = old + below(t, 32) > MAP_PAGES ? old : old + below(t, 32);
    if (pages > MAP_PAGES) pages = MAP_PAGES;
    int flags = below(t, 4) ? MREMAP_MAYMOVE : 0;
    unsigned char *start = mremap(map->block.start, old * PAGE, pages * PAGE, flags);
    if (!moved(start, true)) return;
    map->block.start = start;
    map->block.size = pages * PAGE;
    t->live = t->live - old * PAGE + pages * PAGE;
    map_check_range(map, 0, pages < old ? pages : old);
    if (pages <= old) return;
    memset(map->state + old, ZERO, pages - old);
    map_check_range(map, old, pages - old);
    map_fill(map, old, pages - old);
}

/* To a place that was reserved for it. */
static void map_move_fixed(struct map *map) {
    if (map->mixed) return;
    unsigned char *place = map_raw(pages_of(map), PROT_NONE, 0);
    size_t size = map->block.size;
    unsigned char *start = mremap(map->block.start, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    moved(start, false);
    if (start != place) fail("MREMAP_FIXED to %p gives %p", (void *)place, (void *)start);
    map->block.start = start;
    map_check(map);
}

/* The old place stays mapped and reads as zeros. */
static void map_move_keeping(struct thread *t, struct map *map) {
    struct map *old = map_slot(t, false);
    if (!old || map->mixed || t->live > target) return;
    size_t size = map->block.size;
    unsigned char *start = mremap(map->block.start, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (!moved(start, true)) return;
    map_split(old, map, 0);
    memset(old->state, ZERO, pages_of(old));
    map->block.start = start;
    t->live += size;
    map_check(map);
    map_check(old);
}

/* The tail goes elsewhere and becomes a block of its own. */
static void map_move_tail(struct thread *t, struct map *map) {
    struct map *tail = map_slot(t, false);
    size_t first = below(t, pages_of(map));
    if (!tail || map->mixed || first == 0) return;
    size_t size = map->block.size - first * PAGE;
    unsigned char *place = map_raw(size / PAGE, PROT_NONE, 0);
    unsigned char *start =
        mremap(map->block.start + first * PAGE, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    moved(start, false);
    map_split(tail, map, first);
    tail->block.start = start;
    map->block.size = first * PAGE;
    map_check(tail);
}

static void map_remap(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    switch (below(t, 6)) {
    case 0: return map_move_fixed(map);
    case 1: return map_move_keeping(t, map);
    case 2: return map_move_tail(t, map);
    default: return map_resize(t, map);
    }
}

static void map_advise(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    size_t first, count = part_of(t, map, &first);
    unsigned char *at = map->block.start + first * PAGE;
    size_t size = count * PAGE;
    switch (below(t, 8)) {
    case 0:
    case 1:
        must(madvise(at, size, MADV_DONTNEED) == 0, "MADV_DONTNEED");
        memset(map->state + first, ZERO, count);
        break;
    case 2:
        must(madvise(at, size, MADV_FREE) == 0, "MADV_FREE");
        for (size_t page = first; page < first + count; page++)
            if (map->state[page] == PATTERN) map->state[page] = EITHER;
        break;
    case 3: must(madvise(at, size, MADV_WILLNEED) == 0, "MADV_WILLNEED"); break;
    /* Hints that a kernel may lack; only the contents matter. */
    case 4: madvise(map->block.start, map->block.size, MADV_HUGEPAGE); break;
    case 5: madvise(map->block.start, map->block.size, MADV_NOHUGEPAGE); break;
    case 6: madvise(at, size, MADV_PAGEOUT); break;
    default: madvise(at, size, MADV_COLD);
    }
    map_check_range(map, first, count);
    if (below(t, 2)) map_fill(map, first, count);
}

/* Readable, then inaccessible, then as before, with the contents untouched. */
static void map_protect(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    size_t first, count = part_of(t, map, &first);
    unsigned char *at = map->block.start + first * PAGE;
    must(mprotect(at, count * PAGE, PROT_READ) == 0, "mprotect(READ)");
    map_check_range(map, first, count);
    must(mprotect(at, count * PAGE, PROT_NONE) == 0, "mprotect(NONE)");
    heap_new(t);
    must(mprotect(at, count * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect(READ | WRITE)");
    map_check_range(map, first, count);
    if (below(t, 2)) map_fill(map, first, count);
}

static void map_fixed(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    size_t first, count = part_of(t, map, &first);
    void *at = map->block.start + first * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    must(mmap(at, count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at, "mmap(MAP_FIXED)");
    map->mixed = true;
    memset(map->state + first, ZERO, count);
    map_check_range(map, first, count);
    map_fill(map, first, count);
}

static void map_lock(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    size_t first, count = part_of(t, map, &first);
    if (count > 16) count = 16;
    void *at = map->block.start + first * PAGE;
    if (mlock(at, count * PAGE) != 0) {
        must(errno == ENOMEM || errno == EPERM || errno == EAGAIN, "mlock");
        return;
    }
    map_check_range(map, first, count);
    heap_new(t);
    map_check_range(map, first, count);
    must(munlock(at, count * PAGE) == 0, "munlock");
}

/* ---- system calls on memory that may be away ---- */

static void transfer(int fd, unsigned char *at, size_t size, bool out) {
    while (size > 0) {
        ssize_t done = out ? write(fd, at, size) : read(fd, at, size);
        if (done < 0 && errno == EINTR) continue;
        must(done > 0, out ? "write" : "read");
        at += done;
        size -= done;
    }
}

/* A heap block through a pipe into another place, and /dev/zero into a mapping. */
static void io(struct thread *t) {
    struct block *block = heap_slot(t, true);
    if (block) {
        size_t offset = below(t, block->size) & ~7ul, size = block->size - offset;
        if (size > 32 * 1024) size = 32 * 1024;
        unsigned char *copy = malloc(size);
        must(copy, "malloc");
        transfer(t->pipe[1], block->start + offset, size, true);
        transfer(t->pipe[0], copy, size, false);
        check(copy, size, block->id, offset);
        free(copy);
    }
    struct map *map = map_slot(t, true);
    if (!map || below(t, 2)) return;
    size_t first, count = part_of(t, map, &first);
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    must(zeros >= 0, "/dev/zero");
    transfer(zeros, map->block.start + first * PAGE, count * PAGE, false);
    close(zeros);
    memset(map->state + first, ZERO, count);
    map_check_range(map, first, count);
}

/* ---- signals ---- */

/* Runs on the alternate stack and uses a good part of it. */
static void on_signal(int number) {
    (void)number;
    volatile unsigned char local[8 * 1024];
    for (size_t i = 0; i < sizeof local; i++) local[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < sizeof local; i++)
        if (local[i] != (unsigned char)(i * 7)) fail("the signal's stack changed under it");
    signals++;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    unsigned char *at = info->si_addr, *expected = self ? self->fault_expected : NULL;
    if (number == SIGSEGV && expected && at >= expected && at < expected + PAGE) {
        self->fault_expected = NULL;
        siglongjmp(self->fault_return, 1);
    }
    fail("signal %d at %p, code %d", number, info->si_addr, info->si_code);
}

/* An access that the protection forbids must raise SIGSEGV, whether the page is there or not. */
static void map_probe(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (!map) return;
    size_t page = below(t, pages_of(map));
    unsigned char *at = map->block.start + page * PAGE;
    bool none = below(t, 2);
    static volatile unsigned char sink __attribute__((unused)); /* used, or a simulator may leave the read out */
    must(mprotect(at, PAGE, none ? PROT_NONE : PROT_READ) == 0, "mprotect");
    if (sigsetjmp(t->fault_return, 1) == 0) {
        t->fault_expected = at;
        if (none)
            sink = *(volatile unsigned char *)at;
        else
            *(volatile unsigned char *)at = 1;
        fail("a forbidden %s went through", none ? "read" : "write");
    }
    faults++;
    must(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
    map_check_range(map, page, 1);
}

/* ---- processes and threads ---- */

static void check_all(struct thread *t) {
    for (size_t i = 0; i < HEAP_SLOTS; i++)
        if (t->heap[i].start) block_check(&t->heap[i]);
    for (size_t i = 0; i < MAP_SLOTS; i++)
        if (t->maps[i].block.start) map_check(&t->maps[i]);
}

/* The child finds what the parent had, changes some of it, and allocates. */
static void child(struct thread *t) {
    check_all(t);
    for (int i = 0; i < 16; i++) {
        struct block *block = heap_slot(t, true);
        if (!block) break;
        block->id = new_id(t);
        fill(block->start, block->size, block->id, 0);
    }
    struct map *map = map_slot(t, true);
    if (map) {
        map->block.id = new_id(t);
        map_fill(map, 0, pages_of(map));
    }
    for (int i = 0; i < 8; i++) heap_realloc(t);
    for (int i = 0; i < 8; i++) heap_free(t);
    check_all(t);
    _exit(0);
}

static void do_fork(struct thread *t) {
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) child(t);
    int status;
    while (waitpid(pid, &status, 0) < 0) must(errno == EINTR, "waitpid");
    if (status != 0) fail("the child ended with status %#x", status);
    forks++;
    check_all(t);
}

static void *visit(void *argument) {
    struct block *block = argument;
    unsigned char local[48 * 1024];
    size_t size = block->size < sizeof local ? block->size : sizeof local;
    memcpy(local, block->start, size);
    check(local, size, block->id, block->offset);
    return NULL;
}

static void short_thread(struct thread *t) {
    struct block *block = heap_slot(t, true);
    if (!block) return;
    pthread_t handle;
    must((errno = pthread_create(&handle, NULL, visit, block)) == 0, "pthread_create");
    pthread_join(handle, NULL);
}

/* ---- one thread's life ---- */

static void map_check_any(struct thread *t) {
    struct map *map = map_slot(t, true);
    if (map) map_check(map);
}

static void rare(struct thread *t) {
    size_t kind = below(t, 400);
    if (kind < 20) do_fork(t);
    else if (kind < 100) short_thread(t);
    else heap_check(t);
}

static const struct operation {
    const char *name;
    unsigned weight; /* of 100 */
    void (*run)(struct thread *);
} operations[] = {
    {"malloc", 27, heap_new},        {"free", 8, heap_free},          {"realloc", 14, heap_realloc},
    {"heap check", 8, heap_check},   {"exchange", 3, heap_exchange},  {"mmap", 9, map_new},
    {"munmap", 3, map_unmap},        {"mremap", 6, map_remap},        {"madvise", 6, map_advise},
    {"mprotect", 3, map_protect},    {"MAP_FIXED", 2, map_fixed},     {"mlock", 2, map_lock},
    {"read and write", 5, io},       {"map check", 2, map_check_any}, {"protection", 1, map_probe},
    {"fork and threads", 1, rare},
};

static void step(struct thread *t) {
    size_t choice = below(t, 100);
    const struct operation *operation = operations;
    for (; choice >= operation->weight; operation++) choice -= operation->weight;
    t->doing = operation->name;
    operation->run(t);
    t->operations++;
}

static void give_all_back(struct thread *t) {
    t->doing = "the end";
    for (size_t i = 0; i < HEAP_SLOTS; i++) {
        if (!t->heap[i].start) continue;
        block_check(&t->heap[i]);
        free(t->heap[i].start);
    }
    for (size_t i = 0; i < MAP_SLOTS; i++)
        if (t->maps[i].block.start) map_drop(t, &t->maps[i]);
}

static void *life(void *argument) {
    struct thread *t = self = argument;
    must(pipe2(t->pipe, O_CLOEXEC) == 0, "pipe2");
    t->alt_stack = malloc(ALT_STACK);
    must(t->alt_stack, "malloc");
    stack_t stack = {.ss_sp = t->alt_stack, .ss_size = ALT_STACK};
    must(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    while (!stop) step(t);
    give_all_back(t);
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
    free(t->alt_stack);
    return NULL;
}

/* ---- the whole ---- */

static void handle_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Signals to random threads, and an eye on those that no longer get anywhere. */
static void oversee(double seconds) {
    uint64_t seen[MAX_THREADS] = {0};
    double since[MAX_THREADS], start = now();
    for (int i = 0; i < thread_count; i++) since[i] = start;
    struct thread dice = {.random = seed ^ 0x5157};
    while (now() - start < seconds) {
        usleep(2000);
        pthread_kill(threads[below(&dice, thread_count)].handle, SIGUSR1);
        for (int i = 0; i < thread_count; i++) {
            if (threads[i].operations != seen[i]) since[i] = now();
            seen[i] = threads[i].operations;
            if (now() - since[i] > STUCK_SECONDS) fail("thread %d is stuck in: %s", i, threads[i].doing);
        }
    }
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 0) : 64;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 10;
    seed = argc > 3 ? strtoull(argv[3], NULL, 0) : (uint64_t)time(NULL);
    thread_count = argc > 4 ? atoi(argv[4]) : 8;
    if (thread_count < 1 || thread_count > MAX_THREADS || mib < 1) {
        fprintf(stderr, "usage: stress [MIB [SECONDS [SEED [THREADS (1..%d)]]]]\n", MAX_THREADS);
        return 2;
    }
    target = (mib << 20) / thread_count;
    printf("stress: seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    handle_signals();
    for (int i = 0; i < thread_count; i++) {
        threads[i].number = i;
        threads[i].random = mix(seed + i);
        must((errno = pthread_create(&threads[i].handle, NULL, life, &threads[i])) == 0, "pthread_create");
    }
    oversee(seconds);
    stop = true;
    uint64_t total = 0;
    for (int i = 0; i < thread_count; i++) {
        pthread_join(threads[i].handle, NULL);
        total += threads[i].operations;
    }
    for (int i = 0; i < SHARED_SLOTS; i++) {
        if (!shared[i].start) continue;
        block_check(&shared[i]);
        free(shared[i].start);
    }
    if (moves == 0 && total > 10000) fail("every mremap was refused");
    printf("stress: ok: %llu operations, %llu signals, %llu forks, %llu moves (%llu refused), %llu faults\n",
           (unsigned long long)total, (unsigned long long)signals, (unsigned long long)forks,
           (unsigned long long)moves, (unsigned long long)moves_refused, (unsigned long long)faults);
    return 0;
}
