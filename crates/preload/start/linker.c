/* The dynamic linker's memory while the engine comes into a program with a malloc in its executable.
 *
 * The linker would call that malloc, before the program's first line. Not each can be called so early: GCL's, on which Maxima and
 * FriCAS stand, is of no use until the program has started itself again without address randomization. So the linker has room here
 * until the engine, in its constructor, has it given functions of its own (src/loader.rs). What it gives back or makes larger later is
 * known by its address.
 *
 * The linker calls malloc by four words of its data (elf/dl-minimal.c, __rtld_malloc; glibc 2.31), which are known by where they lead.
 * Where each of them is not found once, nothing is changed.
 *
 * Price: a look at some KB of the linker's data and two mprotects, in such programs. Guarantee: a block goes back to who gave it,
 * and what does not fit here is the program's. There is one thread. */

#define _GNU_SOURCE
#include "start.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { ROOM = 64 << 10, ALIGN = 16, PAGE = 4096 };

/* Before each block is its size. */
static char *room;
static size_t used;

/* The program's, and the linker's words that lead there. */
static struct {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t);
    void (*free)(void *);
} theirs;
static struct words {
    void **malloc, **calloc, **realloc, **free;
} words;

static int is_here(const void *p) { return (uintptr_t)p - (uintptr_t)room < ROOM; }

static size_t *size_of(void *p) { return (size_t *)((char *)p - ALIGN); }

static void *take(size_t size) {
    if (size > ROOM || used + ALIGN + size > ROOM) return theirs.malloc(size);
    char *p = room + used + ALIGN;
    *size_of(p) = size;
    used = (used + ALIGN + size + ALIGN - 1) & -(size_t)ALIGN;
    return p;
}

static void *take_zeros(size_t count, size_t size) {
    size_t bytes;
    void *p = __builtin_mul_overflow(count, size, &bytes) ? NULL : take(bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

/* The linker's, and libc's of a program that has begun, when the linker takes memory elsewhere. */
static void *take_again(void *p, size_t size) {
    void *(*allocate)(size_t) = *words.malloc;
    if (!is_here(p) && (p || allocate != take)) return theirs.realloc(p, size);
    void *again = allocate(size);
    size_t before = p ? *size_of(p) : 0;
    return again && p ? memcpy(again, p, before < size ? before : size) : again;
}

static void give_back(void *p) {
    if (!is_here(p)) theirs.free(p);
}

struct parts {
    uintptr_t base;
    const ElfW(Phdr) *first, *end;
};

static struct parts parts(void) {
    uintptr_t base = getauxval(AT_BASE);
    if (!base) return (struct parts){0};
    const ElfW(Ehdr) *header = (const void *)base;
    const ElfW(Phdr) *first = (const void *)(base + header->e_phoff);
    return (struct parts){base, first, first + header->e_phnum};
}

/* The linker's parts of this type, from the first one's first page on. */
static int pages_of(uint32_t type, uintptr_t *begin, uintptr_t *end) {
    struct parts all = parts();
    *begin = *end = 0;
    for (const ElfW(Phdr) *part = all.first; part < all.end; part++) {
        uintptr_t from = all.base + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type != type) continue;
        if (!*begin) *begin = from & -(uintptr_t)PAGE;
        if (to > *end) *end = to;
    }
    return *begin < *end;
}

EXPORTED void ramfold_linker(uintptr_t *begin, uintptr_t *end) { pages_of(PT_LOAD, begin, end); }

int ramfold_is_linker(const void *caller) {
    uintptr_t begin, end;
    ramfold_linker(&begin, &end);
    return (uintptr_t)caller - begin < end - begin;
}

EXPORTED int ramfold_give_linker(void *old, void *function) {
    int count = 0;
    struct parts all = parts();
    for (const ElfW(Phdr) *part = all.first; part < all.end; part++) {
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W)) continue;
        uintptr_t begin = all.base + part->p_vaddr, end = begin + part->p_memsz;
        for (void **word = (void **)((begin + 7) & -8ul); (uintptr_t)(word + 1) <= end; word++)
            if (*word == old) count += ramfold_put(word, function);
    }
    return count;
}

/* The one word that leads there, or null. */
static void **word_of(uintptr_t begin, uintptr_t end, void *function) {
    void **found = NULL;
    for (void **word = (void **)begin; (uintptr_t)(word + 1) <= end; word++) {
        if (*word != function) continue;
        if (found) return NULL;
        found = word;
    }
    return function ? found : NULL;
}

static int find(uintptr_t begin, uintptr_t end) {
    words = (struct words){
        word_of(begin, end, theirs.malloc),
        word_of(begin, end, theirs.calloc),
        word_of(begin, end, theirs.realloc),
        word_of(begin, end, theirs.free),
    };
    return words.malloc && words.calloc && words.realloc && words.free;
}

void *ramfold_lent[4];

void ramfold_lend_to_linker(void) {
    const int rw = PROT_READ | PROT_WRITE;
    uintptr_t begin, end;
    theirs.malloc = ramfold_in_front("malloc");
    theirs.calloc = ramfold_in_front("calloc");
    theirs.realloc = ramfold_in_front("realloc");
    theirs.free = ramfold_in_front("free");
    /* What the linker has made read-only of its data. */
    if (!pages_of(PT_GNU_RELRO, &begin, &end) || !find(begin, end &= -(uintptr_t)PAGE)) return;
    long memory = ramfold_call(SYS_mmap, 0, ROOM, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == -1 || ramfold_protect(begin, end, rw)) return;
    room = (char *)memory;
    *words.malloc = ramfold_lent[0] = take;
    *words.calloc = ramfold_lent[1] = take_zeros;
    *words.realloc = ramfold_lent[2] = take_again;
    *words.free = ramfold_lent[3] = give_back;
    ramfold_protect(begin, end, PROT_READ);
}
