/* A parent writes to its static data after two forks: what its children have in common then, each finds in common as
   before. All stay until there is no more input. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

enum { CHILDREN = 2, DATA_MIB = 12 };

static unsigned char data[DATA_MIB * MIB];

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t size = pressure_mib * MIB;
    unsigned char *memory = map_rw(size);
    fill(memory, size, 1);
    fill(data, sizeof data, 2);
    int waiting[2];
    must(pipe(waiting) == 0);
    char byte;
    for (int child = 0; child < CHILDREN; child++) {
        pid_t pid = fork();
        must(pid >= 0);
        if (pid != 0) continue;
        must(close(waiting[1]) == 0);
        must(read(waiting[0], &byte, 1) == 0);
        _exit(holds(data, sizeof data, 2) ? 0 : 1);
    }
    fill(data, sizeof data, 3);
    must(read(0, &byte, 1) == 0);
    must(holds(data, sizeof data, 3) && holds(memory, size, 1));
    must(close(waiting[1]) == 0);
    for (int child = 0; child < CHILDREN; child++) {
        int status;
        must(wait(&status) > 0);
        must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
