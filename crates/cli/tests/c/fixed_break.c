// A program that is linked to fixed addresses, starts itself again without random addresses, and takes the break for the
// end of its own image, as Lisps do that are saved as executables (GCL). It has a malloc of its own on that.
#define _GNU_SOURCE
#include "check.h"

#include <sys/personality.h>

extern char end;
static char *top;

void *malloc(size_t size) {
    size = (size + 31) & ~15ul;
    if (top == NULL) top = sbrk(0);
    char *block = top;
    if (brk(block + size) != 0) return NULL;
    top += size;
    *(size_t *)block = size;
    return block + 16;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t size) {
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : NULL;
}

void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (old && block) {
        size_t had = ((size_t *)old)[-2] - 16;
        memcpy(block, old, had < size ? had : size);
    }
    return block;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    int now = personality(0xffffffff);
    if (!(now & ADDR_NO_RANDOMIZE)) {
        personality(now | ADDR_NO_RANDOMIZE);
        execv("/proc/self/exe", argv);
        must(!"exec");
    }
    char *image = (char *)(((uintptr_t)&end + PAGE - 1) & ~(PAGE - 1));
    must((char *)sbrk(0) >= image && (char *)sbrk(0) < image + 64 * MIB);
    enum { COUNT = 100000 };
    static uint32_t *block[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        block[i] = malloc(40);
        must(block[i] != NULL && (char *)block[i] > image && (char *)block[i] < image + 64 * MIB);
        *block[i] = i;
    }
    for (uint32_t i = 0; i < COUNT; i++) must(*block[i] == i);
    puts("ok");
    return 0;
}
