/* System calls with arguments in memory that is away, under a tracer that reads them (strace -f): also of a forked child, and
 * behind a filter of system calls, as containers have it: `traced MIB [filtered]`. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PAGES 2048ul

static unsigned char *memory;

static void write_all(int fd) {
    for (size_t i = 0; i < PAGES; i += 64) {
        away(memory + i * PAGE, PAGE);
        must(write(fd, memory + i * PAGE, PAGE) == PAGE);
    }
}

static void allow_all(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &allow};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    if (argc > 2) allow_all();
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
