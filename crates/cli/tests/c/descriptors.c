/* Descriptors: a program that closes everything keeps its memory, and close and its kin do what they should. */
#define _GNU_SOURCE
#include "expect.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    size_t size = (size_t)64 << 20;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(p, size, 1);

    int fd = open("/dev/null", O_WRONLY);
    CHECK(fd == 3);
    CHECK(dup2(fd, 50) == 50 && dup2(50, 50) == 50 && dup3(fd, 51, O_CLOEXEC) == 51);
    errno = 0;
    CHECK(dup2(99, 99) == -1 && errno == EBADF);
    errno = 0;
    CHECK(dup3(fd, fd, 0) == -1 && errno == EINVAL);
    CHECK(close(50) == 0);
    errno = 0;
    CHECK(close(50) == -1 && errno == EBADF);
    errno = 0;
    CHECK(close(-1) == -1 && errno == EBADF);
    errno = 0;
    CHECK(close_range(5, 4, 0) == -1 && errno == EINVAL);
    CHECK(close_range(51, 51, 0) == 0 && fcntl(51, F_GETFD) == -1);

    long most = sysconf(_SC_OPEN_MAX);
    for (int i = 3; i < most && i < 65536; i++) close(i);
    CHECK(filled(p, size, 1));
    CHECK(close_range(3, ~0U, 0) == 0);
    CHECK(filled(p, size, 1));
    closefrom(3);
    fill(p, size, 2);
    CHECK(filled(p, size, 2));
    for (int i = 3; i < 2000; i++) dup2(2, i);
    CHECK(filled(p, size, 2));
    CHECK(munmap(p, size) == 0);
    return DONE;
}
