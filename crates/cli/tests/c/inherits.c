/* What a child has inherited counts once, also while its first pages come: many children, each of which begins with some. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/wait.h>

enum { PAGES = 24576, NEW = 40, FORKS = 40 };

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *memory = map_rw((PAGES + NEW) * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    for (int forks = 0; forks < FORKS; forks++) {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            for (size_t i = PAGES; i < PAGES + NEW; i++) memory[i * PAGE] = 1;
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("ok");
    return 0;
}
