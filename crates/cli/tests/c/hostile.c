/*
 * A member of a run that writes noise over all that the processes of the run share and that it can reach.
 */
#define _GNU_SOURCE
#include "check.h"

static void scribble(unsigned char *at, size_t size, unsigned seed) {
    if (mprotect(at, size, PROT_READ | PROT_WRITE)) return;
    for (size_t i = 0; i < size; i += 1 + rand_r(&seed) % 16) at[i] = (unsigned char)rand_r(&seed);
    memset(at, 0xff, PAGE);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *mine = map_rw(8 * MIB);
    memset(mine, 1, 8 * MIB);
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (!strstr(line, "memfd:ramfold-segment") || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
        found++;
        scribble((void *)from, to - from < MIB ? to - from : MIB, (unsigned)found);
    }
    puts(found ? "written" : "nothing found");
    fflush(stdout);
    usleep(500000);
    return 0;
}
