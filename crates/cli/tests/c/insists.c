/* Reservations that must lie where they are asked for, as those of Go's race detector, come to lie there. Those that need not,
   as those of Go without it, are managed. */
#define _GNU_SOURCE
#include "check.h"

enum { SIZE = 64 * MIB };

static unsigned char *reserve(uintptr_t at) {
    unsigned char *got = mmap((void *)at, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(got != MAP_FAILED);
    if ((uintptr_t)got == at) return got;
    must(munmap(got, SIZE) == 0);
    return NULL;
}

static void use(unsigned char *at, size_t size) {
    must(mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    fill(at, size, 1);
    must(holds(at, size, 1));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    for (uintptr_t i = 1; i < 4; i++) {
        unsigned char *far = reserve(i << 40 | 0xc0ull << 32);
        must(!far == !!getenv("EXPECT_EVICTED"));
    }
    unsigned char *near = NULL;
    for (uintptr_t i = 0xc0; !near && i < 0xe0; i++) near = reserve(i << 32);
    must(near);
    use(near, MIB);
    unsigned char *next = reserve((uintptr_t)near + SIZE);
    must(next == near + SIZE);
    use(next, MIB);
    press();
    must(holds(near, MIB, 1));
    return 0;
}
