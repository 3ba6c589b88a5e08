/* The program break: what is above it after shrinking reads as zeros when it grows again; malloc goes on beside it. */
#define _GNU_SOURCE
#include "check.h"

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *start = sbrk(0);
    start += (PAGE - (uintptr_t)start % PAGE) % PAGE;
    must(brk(start + 16 * MIB) == 0 && sbrk(0) == start + 16 * MIB);
    must(zero(start, 16 * MIB));
    fill(start, 16 * MIB, 1);
    unsigned char *block = malloc(8 * MIB);
    must(block);
    fill(block, 8 * MIB, 2);
    press();
    must(holds(start, 16 * MIB, 1) && holds(block, 8 * MIB, 2));
    if (sbrk(0) == start + 16 * MIB) { /* malloc has not put its own on top */
        must(brk(start + 4 * MIB) == 0);
        must(brk(start + 16 * MIB) == 0);
        must(holds(start, 4 * MIB, 1) && zero(start + 4 * MIB, 12 * MIB));
    }
    must(holds(block, 8 * MIB, 2));
    free(block);
    return 0;
}
