/* Private mappings of /dev/zero are memory as any, and are managed; shared ones are shared. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/wait.h>

#define SIZE (8 * MIB)

int main(int argc, char **argv) {
    arguments(argc, argv);
    int file = open("/dev/zero", O_RDWR), status;
    must(file >= 0);
    unsigned char *first = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    must(first != MAP_FAILED && zero(first, SIZE));
    for (size_t i = 0; i < SIZE; i += PAGE) fill(first + i, PAGE, i);
    press();
    unsigned char *second = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, PAGE);
    must(second != MAP_FAILED && zero(second, SIZE));
    for (size_t i = 0; i < SIZE; i += PAGE) fill(second + i, PAGE, i);
    away(first, SIZE);
    away(second, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) must(holds(first + i, PAGE, i) && holds(second + i, PAGE, i));
    must(mmap(first, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == first && zero(first, PAGE));

    unsigned char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(shared != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        shared[0] = 7;
        _exit(0);
    }
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0 && shared[0] == 7);
    return 0;
}
