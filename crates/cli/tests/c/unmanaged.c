/*
 * More memory than the limit that is not managed, beside little that is: `unmanaged MIB [sleeps|alone [KIND]]`. The program must
 * be told that it is too much, and not wait for ever in its next touch of what could not be kept; nor go on with it where it
 * touches nothing that is managed, and sleeps until it is killed, or has nothing that is managed at all. The memory lies at an
 * address of the program's own choice, or is of a KIND: mapped by its own instructions (raw), a file's private pages that it
 * has written to (file), a thread's stack (stack), data of the program (bss), of a
 * malloc in a namespace of dlmopen (namespace).
 */
#define _GNU_SOURCE
#include "raw.h"

#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MANAGED_PAGES = 600 };

/* Above where the kernel may put the heap of a static program: within 1 GiB of its image's end (arch_randomize_brk). */
#define OWN ((void *)0x100000000)

static unsigned char data[64 * MIB];

static void write_all(unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i += PAGE) *(volatile uint64_t *)(at + i) = i;
}

static void *on_stack(void *argument) {
    size_t size = *(size_t *)argument;
    write_all(__builtin_alloca(size), size);
    pause();
    return NULL;
}

static void take(size_t size, const char *kind) {
    const int rw = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    if (!strcmp(kind, "bss")) {
        write_all(data, sizeof data);
    } else if (!strcmp(kind, "raw")) {
        long at = raw(SYS_mmap, 0, (long)size, rw, own, -1, 0);
        must(at > 0);
        write_all((unsigned char *)at, size);
    } else if (!strcmp(kind, "file")) {
        int file = memfd_create("file", 0);
        must(file >= 0 && ftruncate(file, (off_t)size) == 0);
        unsigned char *at = mmap(NULL, size, rw, MAP_PRIVATE, file, 0);
        must(at != MAP_FAILED);
        write_all(at, size);
    } else if (!strcmp(kind, "namespace")) {
        void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
        must(libc);
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(libc, "malloc");
        unsigned char *at = allocate(size);
        must(at);
        write_all(at, size);
    } else if (!strcmp(kind, "stack")) {
        static size_t of_stack;
        of_stack = size;
        pthread_attr_t attributes;
        pthread_t thread;
        must(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, size + 4 * MIB) == 0);
        must(pthread_create(&thread, &attributes, on_stack, &of_stack) == 0);
    } else {
        unsigned char *at = mmap(OWN, size, rw, own | MAP_FIXED_NOREPLACE, -1, 0);
        must(at == OWN);
        write_all(at, size);
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    int alone = argc > 2 && strcmp(argv[2], "alone") == 0;
    unsigned char *managed = alone ? NULL : map_rw(MANAGED_PAGES * PAGE);
    if (!alone)
        for (size_t i = 0; i < MANAGED_PAGES / 2; i++) fill(managed + i * PAGE, PAGE, i);
    take(pressure_mib * MIB, argc > 3 ? argv[3] : "place");
    if (argc > 2) {
        alarm(120);
        pause();
    }
    for (size_t i = 0; i < MANAGED_PAGES; i++) *(volatile unsigned char *)(managed + i * PAGE) += 1;
    return 0;
}
