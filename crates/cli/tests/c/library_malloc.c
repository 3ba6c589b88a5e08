/* A library that the program is linked with has a malloc (jemalloc is such a one), and a further function that gives blocks: it
   is the program's, as without ramfold, and what it maps is managed. */
#define _GNU_SOURCE
#ifdef MODULE
#ifdef OVER_NEXT
#include <dlfcn.h>
#include <stddef.h>

typedef void *(*give)(size_t);
typedef void (*take)(void *);
static void *next(const char *name, void **found) {
    if (!*found) *found = dlsym(RTLD_NEXT, name);
    return *found;
}
static void *next_malloc, *next_free;
#define BELOW(size) ((give)next("malloc", &next_malloc))(size)
#define BELOW_FREE(block) ((take)next("free", &next_free))(block)
#endif
#include "heads.h"

void *further(size_t size) {
    return memalign(64, size);
}

size_t further_size(void *block) {
    return malloc_usable_size(block);
}

static unsigned char *early;

__attribute__((constructor)) static void take_early(void) {
    fill(early = malloc(10000), 10000, 99);
}

unsigned char *taken_early(void) {
    return early;
}
#else
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

void *further(size_t size);
size_t further_size(void *block);
unsigned char *taken_early(void);

static void *work(void *unused) {
    (void)unused;
    for (int i = 0; i < 100; i++) {
        must(further_size(strdup("abc")) == 4);
        free(further(i + 1));
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) must(pthread_create(&all[i], NULL, work, NULL) == 0);
        for (int i = 0; i < 4; i++) must(pthread_join(all[i], NULL) == 0);
    }
}

static void libcs_blocks(void) {
    char *text = NULL, *line = NULL;
    size_t size = 0;
    must(asprintf(&text, "%d words", 3) == 7 && further_size(text) >= 8);
    free(text);
    FILE *memory = open_memstream(&text, &size);
    must(memory && fputs("kept", memory) >= 0 && fclose(memory) == 0 && strcmp(text, "kept") == 0);
    free(text);
    FILE *file = fopen("/proc/self/maps", "r");
    must(file && getline(&line, &size, file) > 0 && fclose(file) == 0);
    line = realloc(line, 2 * size);
    free(line);
    must(!dlopen("/no/such/module.so", RTLD_NOW) && dlerror());
    free(reallocarray(NULL, 3, 100));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    libcs_blocks();
    free(realloc(further(1000), 3000));
    size_t count = pressure_mib * MIB / 10000;
    unsigned char **blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) fill(blocks[i] = i % 2 ? malloc(10000) : further(10000), 10000, i);
    away(blocks[count / 2], 10000);
    must(further_size(blocks[1]) == 10000 && further_size(blocks[2]) == 10000);
    threads();
    libcs_blocks();
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < count; i += 97) must(holds(blocks[i], 10000, i));
        free(further(100));
        _exit(0);
    }
    int status;
    must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    for (size_t i = 0; i < count; i++) must(holds(blocks[i], 10000, i));
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    must(holds(taken_early(), 10000, 99));
    return 0;
}
#endif
