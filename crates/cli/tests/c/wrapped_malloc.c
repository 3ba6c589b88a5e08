/* A malloc in the program around libc's own, by its names that nobody replaces: it is held, and its blocks are its own. */
#define _GNU_SOURCE
#include <stddef.h>

void *__libc_malloc(size_t size);
void __libc_free(void *block);
#define BELOW(size) __libc_malloc(size)
#define BELOW_FREE(block) __libc_free(block)
#include "heads.h"

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t count = pressure_mib * MIB / 10000;
    unsigned char **blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) fill(blocks[i] = malloc(10000), 10000, i);
    for (size_t i = 0; i < count; i += 3) blocks[i] = realloc(blocks[i], 20000);
    for (size_t i = 0; i < count; i++) must(holds(blocks[i], 10000, i));
    away(blocks[count / 2], 10000);
    char *line = NULL;
    size_t size = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    must(file && getline(&line, &size, file) > 0 && malloc_usable_size(line) == size);
    free(line);
    fclose(file);
    void *aligned;
    must(posix_memalign(&aligned, 4096, 5000) == 0 && (uintptr_t)aligned % 4096 == 0);
    free(aligned);
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    must(given > (long)count && freed > (long)count);
    return 0;
}
