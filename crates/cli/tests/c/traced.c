/* System calls with arguments in memory that is away, under a tracer that reads them (strace -f): also of a forked child, and
 * behind a filter of system calls, as containers have it: `traced MIB [filtered]`. */
#define _GNU_SOURCE
#include "refusing.h"

#include <fcntl.h>
#include <sys/wait.h>

#define PAGES 2048ul

static unsigned char *memory;

static void write_all(int fd) {
    for (size_t i = 0; i < PAGES; i += 64) {
        away(memory + i * PAGE, PAGE);
        must(write(fd, memory + i * PAGE, PAGE) == PAGE);
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    if (argc > 2) refuse(SYS_swapon);
    int fd = open("/dev/null", O_WRONLY);
    memory = map_rw(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    press();
    write_all(fd);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        write_all(fd);
        for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
    return 0;
}
