/* Locked pages stay in memory under any pressure; unlocked ones may leave again. */
#define _GNU_SOURCE
#include "check.h"

#define SIZE (4 * MIB)

/* What there is and what comes stays in memory until munlockall. */
static void all(void) {
    unsigned char *before = map_rw(SIZE);
    fill(before, SIZE, 2);
    must(mlockall(0) == -1 && errno == EINVAL);
    must(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    must(resident(before, SIZE) == SIZE / PAGE);
    unsigned char *after = malloc(2 * MIB);
    must(after);
    fill(after, 2 * MIB, 3);
    after = realloc(after, 3 * MIB);
    must(after && holds(after, 2 * MIB, 3));
    after = realloc(after, 2 * MIB);
    must(mlockall(MCL_CURRENT) == 0); /* what comes is free again */
    press();
    must(resident(before, SIZE) == SIZE / PAGE && resident(after, 2 * MIB) >= 2 * MIB / PAGE);
    must(munlockall() == 0);
    away(before, SIZE);
    must(holds(before, SIZE, 2) && holds(after, 2 * MIB, 3));
    /* The same by syscall(). */
    must(syscall(SYS_mlockall, MCL_CURRENT) == 0);
    press();
    must(resident(before, SIZE) == SIZE / PAGE);
    must(syscall(SYS_munlockall) == 0);
    away(before, SIZE);
    must(syscall(SYS_mlock2, before, SIZE, 0) == 0 && resident(before, SIZE) == SIZE / PAGE);
    must(holds(before, SIZE, 2) && munmap(before, SIZE) == 0);
    free(after);
}

/* Page by page, as much as one will: it is refused before nothing else fits. */
static void too_much(void) {
    unsigned char *at = map_rw(64 * MIB);
    size_t locked = 0;
    while (locked < 64 * MIB && mlock(at + locked, 16 * PAGE) == 0) {
        fill(at + locked, 16 * PAGE, 4);
        locked += 16 * PAGE;
    }
    must(locked == 64 * MIB || errno == ENOMEM);
    must(locked >= 8 * MIB && (!getenv("EXPECT_EVICTED") || locked <= 16 * MIB)); /* half of the limit */
    press();
    must(holds(at, 16 * PAGE, 4) && resident(at, locked) == locked / PAGE);
    must(munmap(at, 64 * MIB) == 0);
}

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
    must(madvise(at, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    must(madvise(at, PAGE, MADV_FREE) == -1 && errno == EINVAL);
    must(munlock(at, SIZE / 2) == 0);
    away(at, SIZE);
    must(holds(at, SIZE, 1));
#ifdef MADV_DONTNEED_LOCKED
    must(mlock(at, 2 * PAGE) == 0);
    int dropped = madvise(at, PAGE, MADV_DONTNEED_LOCKED);
    must(dropped == 0 || (!getenv("EXPECT_EVICTED") && errno == EINVAL)); /* Linux 5.18 */
    must(dropped != 0 || zero(at, PAGE));
    press();
    must(resident(at, 2 * PAGE) == 2 && munlock(at, 2 * PAGE) == 0);
#endif
    must(mlock2(at + PAGE, 2 * PAGE, 0) == 0);
    must(resident(at + PAGE, 2 * PAGE) == 2);
    must(munmap(at, SIZE) == 0); /* takes the lock with it */
    too_much();
    all();
    return 0;
}
