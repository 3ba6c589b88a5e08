/* A program with a malloc of its own, as rustc has: it maps memory under its lock, and must not be called from there; it
   holds the lock across fork. It is of no use before main, as GCL's. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#define CHUNK (4 * MIB)
#define HEAD 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t owner;
static volatile int owned, begun;
static char *chunk;
static size_t left;
static volatile long calls;

static void end_with(const char *line) {
    _exit(write(2, line, strlen(line)) < 0 ? 3 : 2);
}

static void take(void) {
    if (!begun) end_with("malloc was called before main\n");
    if (owned && pthread_equal(owner, pthread_self()))
        end_with("malloc was called within malloc, or between fork and its handlers\n");
    pthread_mutex_lock(&lock);
    owner = pthread_self();
    owned = 1;
}

static void give(void) {
    owned = 0;
    pthread_mutex_unlock(&lock);
}

void *memalign(size_t align, size_t size) {
    take();
    calls++;
    size_t need = size + align + HEAD;
    if (need > left) {
        size_t more = need > CHUNK ? need : CHUNK;
        chunk = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        left = chunk == MAP_FAILED ? 0 : more;
    }
    char *block = NULL;
    if (left) {
        block = (char *)(((uintptr_t)chunk + HEAD + align - 1) & ~(align - 1));
        left -= block + size - chunk;
        chunk = block + size;
        ((size_t *)block)[-1] = size;
    }
    give();
    return block;
}

void *malloc(size_t size) {
    return memalign(16, size);
}

void *calloc(size_t count, size_t size) {
    return memalign(16, count * size);
}

void free(void *block) {
    take();
    (void)block;
    give();
}

void *realloc(void *old, size_t size) {
    void *block = memalign(16, size);
    if (old && block) {
        size_t before = ((size_t *)old)[-1];
        memcpy(block, old, before < size ? before : size);
    }
    return block;
}

static _Thread_local uint64_t seed = 7;
static int each;

static void *work(void *number) {
    seed = (uintptr_t)number;
    unsigned char *blocks[256];
    for (int i = 0; i < each; i++) fill(blocks[i] = malloc(4096), 4096, seed << 32 | i);
    for (int i = 0; i < each; i++) must(holds(blocks[i], 4096, seed << 32 | i));
    return NULL;
}

static void threads(int blocks) {
    each = blocks;
    pthread_t all[4];
    for (uintptr_t i = 0; i < 4; i++) must(pthread_create(&all[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) must(pthread_join(all[i], NULL) == 0);
}

/* Blocks that the dynamic linker and libc have, change and free. */
static void of_others(void) {
    for (int round = 0; round < 20; round++) {
        void *library = dlopen("libresolv.so.2", RTLD_NOW);
        must(library && dlsym(library, "ns_name_pton") && dlclose(library) == 0);
        must(!dlopen("no such library", RTLD_NOW) && dlerror());
        FILE *file = fopen("/proc/self/maps", "r");
        char *line = NULL;
        size_t size = 0;
        must(file && getdelim(&line, &size, 0, file) > 1000 && fclose(file) == 0);
        free(line);
    }
}

int main(int argc, char **argv) {
    begun = 1;
    arguments(argc, argv);
    of_others();
    must(getenv("PATH") && strcmp(program_invocation_name, argv[0]) == 0);
    must(pthread_atfork(take, give, give) == 0);
    size_t count = pressure_mib * MIB / 1000;
    unsigned char **blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) fill(blocks[i] = malloc(1000), 1000, i);
    must(calls > (long)count);
    threads(256);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        must(pid >= 0);
        if (pid == 0) {
            /* A few: what a child copies of what it shares is counted some milliseconds later (docs/platform.md). */
            threads(8);
            for (size_t i = round; i < count; i += 997) must(holds(blocks[i], 1000, i));
            _exit(0);
        }
        int status;
        must(waitpid(pid, &status, 0) == pid && status == 0);
    }
    of_others();
    for (size_t i = 0; i < count; i++) must(holds(blocks[i], 1000, i));
    return 0;
}
