/* Memory that is discarded by a system call which the library does not see is zeros, and its neighbours are what they
   were. */
#define _GNU_SOURCE
#include "check.h"

#define SIZE (16 * MIB)

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *at = map_rw(SIZE);
    press();
    for (size_t i = 0; i < SIZE; i += PAGE) fill(at + i, PAGE, i);
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) must(syscall(SYS_madvise, at + i, PAGE, MADV_DONTNEED) == 0);
    press();
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) {
        must(zero(at + i, PAGE));
        must(holds(at + i + PAGE, PAGE, i + PAGE));
    }
    return 0;
}
