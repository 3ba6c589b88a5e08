/* Memory of a given size, touched at random for a given time, and verified in the end.
 *
 *     worker MIB SECONDS SEED      SECONDS 0: asleep until standard input ends
 */
#include "check.h"

#include <time.h>

static time_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

int main(int argc, char **argv) {
    must(argc == 4);
    size_t size = strtoul(argv[1], NULL, 0) * MIB;
    time_t seconds = strtol(argv[2], NULL, 0);
    uint64_t random = strtoul(argv[3], NULL, 0) * 2654435761u + 1;
    unsigned char *at = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(at + i, PAGE, i ^ random);
    uint64_t seed = random;
    time_t end = now() + seconds;
    for (size_t touched = 0; seconds > 0 && now() < end; touched++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t i = (random >> 33) % (size / PAGE) * PAGE;
        must(holds(at + i, 64, i ^ seed));
        *(volatile unsigned char *)(at + i) = at[i];
    }
    while (seconds == 0 && getchar() != EOF) {}
    for (size_t i = 0; i < size; i += PAGE) must(holds(at + i, PAGE, i ^ seed));
    return 0;
}
