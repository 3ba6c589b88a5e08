/* Locked pages stay in memory under any pressure; unlocked ones may leave again. */
#define _GNU_SOURCE
#include "check.h"

#define SIZE (4 * MIB)

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *at = map_rw(SIZE);
    fill(at, SIZE, 1);
    away(at, SIZE);
    if (mlock(at, SIZE / 2) != 0) {
        must(errno == EPERM || errno == ENOMEM); /* RLIMIT_MEMLOCK */
        fprintf(stderr, "mlock: not permitted here\n");
        return 77;
    }
    must(resident(at, SIZE / 2) == SIZE / 2 / PAGE);
    press();
    must(resident(at, SIZE / 2) == SIZE / 2 / PAGE);
    must(holds(at, SIZE, 1));
    must(munlock(at, SIZE / 2) == 0);
    away(at, SIZE);
    must(holds(at, SIZE, 1));
    must(mlock2(at + PAGE, 2 * PAGE, 0) == 0);
    must(resident(at + PAGE, 2 * PAGE) == 2);
    must(munmap(at, SIZE) == 0); /* takes the lock with it */
    return 0;
}
