/* The child of vfork takes memory, little or much, before its exec, while its parent is small. The parent becomes large later, and
   is managed then. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

static unsigned char *volatile taken;

static void take_in_child(volatile size_t size) {
    pid_t pid = vfork();
    if (pid == 0) {
        taken = malloc(size);
        if (!taken) _exit(1);
        fill(taken, size, size);
        execl("/bin/true", "true", (char *)NULL);
        _exit(2);
    }
    int status = -1;
    must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    take_in_child(100 * 1024);
    unsigned char *first = taken;
    take_in_child(3 * MIB);
    unsigned char *second = taken;
    unsigned char *block = malloc(8 * MIB);
    must(block);
    fill(block, 8 * MIB, 1);
    away(block + PAGE, PAGE);
    take_in_child(5 * MIB);
    unsigned char *third = taken;
    press();
    must(holds(first, 100 * 1024, 100 * 1024) && holds(second, 3 * MIB, 3 * MIB) && holds(third, 5 * MIB, 5 * MIB));
    must(holds(block, 8 * MIB, 1));
    free(first);
    free(second);
    free(third);
    return 0;
}
