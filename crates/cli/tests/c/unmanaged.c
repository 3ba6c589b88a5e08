/*
 * More memory than the limit at an address of the program's own choice, which is not managed, beside little that is
 * managed: `unmanaged MIB [sleeps|alone]`. The program must be told that it is too much, and not wait for ever in its next touch
 * of what could not be kept; nor go on with it where it touches nothing that is managed, and sleeps until it is killed, or
 * has nothing that is managed at all.
 */
#define _GNU_SOURCE
#include "check.h"

enum { MANAGED_PAGES = 600 };

/* Above where the kernel may put the heap of a static program: within 1 GiB of its image's end (arch_randomize_brk). */
#define OWN ((void *)0x100000000)

int main(int argc, char **argv) {
    arguments(argc, argv);
    int alone = argc > 2 && strcmp(argv[2], "alone") == 0;
    unsigned char *managed = alone ? NULL : map_rw(MANAGED_PAGES * PAGE);
    if (!alone)
        for (size_t i = 0; i < MANAGED_PAGES / 2; i++) fill(managed + i * PAGE, PAGE, i);
    size_t size = pressure_mib * MIB;
    unsigned char *own = mmap(OWN, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(own == OWN);
    for (size_t i = 0; i < size; i += PAGE) *(volatile uint64_t *)(own + i) = i;
    if (argc > 2) {
        alarm(120);
        pause();
    }
    for (size_t i = 0; i < MANAGED_PAGES; i++) *(volatile unsigned char *)(managed + i * PAGE) += 1;
    return 0;
}
