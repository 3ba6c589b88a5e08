/* A program that forbids itself new executable memory (PR_SET_MDWE, Linux 6.3): what it maps as readable and executable in one
   call it gets, what was writable does not become executable, and what was mapped before is as it was. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#define PAGES 2048ul

static void look(unsigned char *memory) {
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
    unsigned char *executable = map(4 * PAGE, PROT_READ | PROT_EXEC, 0);
    must(zero(executable, 4 * PAGE));
    must(mprotect(executable, PAGE, PROT_READ) == 0);
    must(mprotect(executable, PAGE, PROT_READ | PROT_EXEC) == -1 && errno == EACCES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    unsigned char *reserved = map(64 * PAGE, PROT_NONE, MAP_NORESERVE);
    must(mmap(reserved + 16 * PAGE, PAGE, PROT_READ | PROT_EXEC, flags, -1, 0) == reserved + 16 * PAGE);
    must(zero(reserved + 16 * PAGE, PAGE));
    must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    must(errno == EACCES);
    unsigned char *writable = map_rw(PAGE);
    must(mprotect(writable, PAGE, PROT_READ | PROT_EXEC) == -1 && errno == EACCES);
    must(munmap(executable, 4 * PAGE) == 0 && munmap(reserved, 64 * PAGE) == 0 && munmap(writable, PAGE) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *memory = map_rw(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    press();
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0) {
        fprintf(stderr, "needs PR_SET_MDWE (6.3)\n");
        return 77;
    }
    look(memory);
    press();
    look(memory);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        look(memory);
        press();
        look(memory);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
