/* Children unmap every other page of what they share with the run, go on until that kills them, and leave the run's account as
   they were just about to change it. The parent then has the limit for itself. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

enum { CHILDREN = 100 };

static void unmap_shared(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps);
    char line[512];
    unsigned long from = 0, to = 0;
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, " rw-s ") || !strstr(line, "ramfold-segment")) continue;
        must(sscanf(line, "%lx-%lx", &from, &to) == 2);
        break;
    }
    must(from != 0 || !getenv("EXPECT_EVICTED"));
    for (unsigned long at = from; at < to; at += 2 * PAGE) must(munmap((void *)at, PAGE) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *at = map_rw(8 * MIB);
    fill(at, 8 * MIB, 1);
    for (int number = 0; number < CHILDREN; number++) {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            alarm(10);
            unmap_shared();
            fill(map_rw(MIB), MIB, 2);
            _exit(0);
        }
        must(waitpid(child, NULL, 0) == child);
    }
    press();
    must(holds(at, 8 * MIB, 1));
    return 0;
}
