/*
 * A malloc with a head before each block, which tells that the block is its own. It ends the program when it is given
 * another's. With BELOW(size) and BELOW_FREE(block) it lies over another malloc, else over mmap.
 */
#ifndef HEADS_H
#define HEADS_H

#include "check.h"

#include <pthread.h>

#define MAGIC 0x70726f6772616dull
#define HEAD 32

static volatile long given, freed;

/* MAGIC, the size, what was taken, and what no allocator below could take for a chunk of its own. */
static uint64_t *head_of(void *block) {
    return (uint64_t *)((char *)block - HEAD);
}

#ifdef BELOW
static void *taken(size_t size) {
    return BELOW(size);
}
#else
static void *taken(size_t size) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char *chunk;
    static size_t left;
    pthread_mutex_lock(&lock);
    if (size > left) {
        left = size > 4 * MIB ? size : 4 * MIB;
        chunk = mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED) left = 0;
    }
    char *block = size <= left ? chunk : NULL;
    if (block) {
        chunk += size;
        left -= size;
    }
    pthread_mutex_unlock(&lock);
    return block;
}
#define BELOW_FREE(block) ((void)(block))
#endif

void *memalign(size_t align, size_t size) {
    char *under = taken(HEAD + align + size);
    if (!under) return NULL;
    char *block = (char *)(((uintptr_t)under + HEAD + align - 1) & ~(align - 1));
    head_of(block)[0] = MAGIC;
    head_of(block)[1] = size;
    head_of(block)[2] = (uintptr_t)under;
    head_of(block)[3] = 0x22;
    given++;
    return block;
}

static void is_own(void *block) {
    if (head_of(block)[0] == MAGIC) return;
    static const char text[] = "a block came to a malloc that has not given it\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(3);
    _exit(2);
}

void *malloc(size_t size) {
    return memalign(16, size);
}

void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

int posix_memalign(void **out, size_t align, size_t size) {
    *out = memalign(align, size);
    return *out ? 0 : ENOMEM;
}

void free(void *block) {
    if (!block) return;
    is_own(block);
    freed++;
    head_of(block)[0] = 0;
    BELOW_FREE((void *)head_of(block)[2]);
}

void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (!old || !block) return block;
    is_own(old);
    size_t before = head_of(old)[1];
    memcpy(block, old, before < size ? before : size);
    free(old);
    return block;
}

size_t malloc_usable_size(void *block) {
    if (!block) return 0;
    is_own(block);
    return head_of(block)[1];
}

#endif
