/*
 * A child in a time namespace of its own, where every process seems to have started at another time: it is alive all the
 * same, and keeps what it inherited while its parent gives that up and writes anew.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define SKIPPED 77

static bool shift_clocks(void) {
    static const char shift[] = "boottime 500000 0\n";
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, shift, sizeof shift - 1) == (ssize_t)sizeof shift - 1;
    if (fd >= 0) close(fd);
    return done;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t size = pressure_mib * MIB;
    unsigned char *at = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(at + i, PAGE, i);
    if (unshare(CLONE_NEWTIME) || !shift_clocks()) return SKIPPED;
    int gate[2];
    must(pipe(gate) == 0);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        char byte;
        must(close(gate[1]) == 0 && read(gate[0], &byte, 1) == 0);
        for (size_t i = 0; i < size; i += PAGE) must(holds(at + i, PAGE, i));
        _exit(0);
    }
    sleep(1);
    for (uint64_t round = 1; round <= 3; round++)
        for (size_t i = 0; i < size; i += PAGE) fill(at + i, PAGE, round << 32 | i);
    must(close(gate[1]) == 0);
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0);
    for (size_t i = 0; i < size; i += PAGE) must(holds(at + i, PAGE, 3ul << 32 | i));
    return 0;
}
