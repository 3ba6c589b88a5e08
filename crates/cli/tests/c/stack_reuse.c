/* A program with a malloc of its own, as browsers have: what the dynamic linker has allocated never comes to it. A thread takes
   over the stack of one that has ended, and libc frees the thread-local storage there that a module had. */
#define _GNU_SOURCE
#ifdef MODULE
static __thread unsigned char much[64 * 1024];

unsigned char *storage(void) {
    return much;
}
#else
#include "heads.h"

#include <dlfcn.h>

static unsigned char *(*storage)(void);

static void *work(void *number) {
    fill(storage(), 64 * 1024, (uintptr_t)number);
    must(holds(storage(), 64 * 1024, (uintptr_t)number));
    free(strdup("a block of the thread's"));
    return NULL;
}

static void threads(int rounds) {
    for (int round = 0; round < rounds; round++) {
        pthread_t all[4];
        for (uintptr_t i = 0; i < 4; i++) must(pthread_create(&all[i], NULL, work, (void *)(i + round)) == 0);
        for (int i = 0; i < 4; i++) must(pthread_join(all[i], NULL) == 0);
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    char path[4096];
    snprintf(path, sizeof path, "%s_module.so", argv[0]);
    void *module = dlopen(path, RTLD_NOW);
    must(module && (storage = (unsigned char *(*)(void))dlsym(module, "storage")));
    threads(8);
    size_t size = pressure_mib * MIB;
    unsigned char *much = malloc(size);
    fill(much, size, 1);
    threads(8);
    must(holds(much, size, 1));
    must(!dlopen("/no/such/module.so", RTLD_NOW) && dlerror());
    must(dlclose(module) == 0);
    threads(0);
    must(freed > 0);
    return 0;
}
#endif
