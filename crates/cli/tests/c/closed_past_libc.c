/* A program closes every descriptor but the first three, by libc's syscall() and by an instruction of its own. Its memory is
   what it was, and its pipes are closed when it closes them. `closed_past_libc MIB forks`: what it forks then cannot be held. */
#define _GNU_SOURCE
#include "check.h"
#include "raw.h"

#include <fcntl.h>
#include <sys/wait.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#define PAGES 3072ul

static void look(const unsigned char *memory) {
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, i));
        press();
    }
}

static void fork_in_vain(void) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) _exit(0);
    int status;
    must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 125);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    int ends[2];
    char byte;
    must(pipe(ends) == 0);
    unsigned char *memory = map_rw(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, i);
    press();
    must(close(ends[1]) == 0 && read(ends[0], &byte, 1) == 0);
    long result = syscall(SYS_close_range, 3, ~0u, 0);
    if (result == -1 && errno == ENOSYS) {
        fprintf(stderr, "needs close_range (5.9)\n");
        return 77;
    }
    must(result == 0 && fcntl(ends[0], F_GETFD) == -1);
    look(memory);
    must(open("/dev/null", O_RDWR) == 3 && dup2(3, 4) == 4 && syscall(SYS_close, 4) == 0);
    must(syscall(SYS_close, 4) == -1 && errno == EBADF);
    must(raw(SYS_close_range, 3, -1, 0, 0, 0, 0) == 0);
    must(open("/dev/null", O_RDWR) == 3);
    for (int fd = 4; fd < 960; fd++) dup2(3, fd);
    look(memory);
    if (argc > 2) fork_in_vain();
    return 0;
}
