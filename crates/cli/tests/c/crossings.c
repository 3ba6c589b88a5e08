/* Blocks cross between the program and a module that finds libc's functions first (RTLD_DEEPBIND, as PHP opens its extensions),
   or that are found by a handle of libc's; before the program has much memory and afterwards. What the module takes is managed. */
#define _GNU_SOURCE
#include "check.h"

#include <malloc.h>

#ifdef MODULE
extern void *host_block(size_t size);

/* Runs before dlopen returns. */
__attribute__((constructor)) static void cross_early(void) {
    free(host_block(100));
    free(host_block(3 << 20));
}

void *made(int how, size_t size) {
    void *block = NULL;
    switch (how) {
    case 0: return malloc(size);
    case 1: return calloc(size, 1);
    case 2: return realloc(NULL, size);
    case 3: return posix_memalign(&block, 256, size) ? NULL : block;
    case 4: return memset(aligned_alloc(64, size), 0, size);
    case 5: return strndup("made by the module", size);
    case 6: return reallocarray(malloc(1), size, 1);
    default: return valloc(size);
    }
}

void gone(void *block) {
    must(malloc_usable_size(block) > 0);
    free(block);
}

void *grown(void *block, size_t size) {
    return realloc(block, size);
}

void *mapped(size_t size) {
    return map_rw(size);
}

void unmapped(void *at, size_t size) {
    must(munmap(at, size) == 0);
}
#else
#include <dlfcn.h>

void *host_block(size_t size) {
    return memset(malloc(size), 1, size);
}

static void *(*made)(int, size_t), *(*grown)(void *, size_t), *(*mapped)(size_t);
static void (*gone)(void *), (*unmapped)(void *, size_t);
static void *(*libcs_malloc)(size_t);
static void (*libcs_free)(void *);

static const size_t sizes[] = {19, 5000, 200000, 3 << 20};

static void cross(void) {
    for (int i = 0; i < 4; i++) {
        size_t size = sizes[i];
        for (int how = 0; how < 8; how++) {
            char *block = made(how, size);
            must(block && malloc_usable_size(block) > 0);
            block = realloc(block, size + 100);
            memset(block, 7, size + 100);
            block = grown(block, 2 * size + 100);
            for (size_t at = 0; at < size + 100; at++) must(block[at] == 7);
            gone(block);
            free(made(how, size));
            libcs_free(made(how, size));
        }
        gone(malloc(size));
        gone(memalign(4096, size));
        gone(grown(calloc(1, size), size / 2));
        libcs_free(host_block(size));
        free(libcs_malloc(size));
        gone(libcs_malloc(size));
    }
    gone(strdup("made by the program"));
    char *text = NULL;
    size_t length;
    FILE *memory = open_memstream(&text, &length);
    must(memory && fputs("kept", memory) >= 0 && fclose(memory) == 0);
    gone(text);
}

static void *found(void *module, const char *name) {
    void *function = dlsym(module, name);
    must(function);
    return function;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    char path[4096];
    snprintf(path, sizeof path, "%s_module.so", argv[0]);
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    libcs_malloc = (void *(*)(size_t))found(libc, "malloc");
    libcs_free = (void (*)(void *))found(libc, "free");
    void *early = libcs_malloc(1000);
    void *module = dlopen(path, RTLD_LAZY | RTLD_DEEPBIND);
    if (!module) fprintf(stderr, "%s\n", dlerror());
    must(module);
    made = (void *(*)(int, size_t))found(module, "made");
    grown = (void *(*)(void *, size_t))found(module, "grown");
    mapped = (void *(*)(size_t))found(module, "mapped");
    gone = (void (*)(void *))found(module, "gone");
    unmapped = (void (*)(void *, size_t))found(module, "unmapped");
    cross();
    size_t size = pressure_mib * MIB;
    unsigned char *modules = made(0, size), *map = mapped(size), *theirs = libcs_malloc(size);
    fill(modules, size, 1);
    fill(map, size, 2);
    fill(theirs, size, 3);
    cross();
    away(modules, PAGE);
    away(map, PAGE);
    must(holds(modules, size, 1) && holds(map, size, 2) && holds(theirs, size, 3));
    unmapped(map, size);
    munmap(mapped(size), size);
    free(modules);
    gone(theirs);
    gone(early);
    return 0;
}
#endif
