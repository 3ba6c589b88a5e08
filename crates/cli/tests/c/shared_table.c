/* Children that have their creator's table of descriptors, but not its memory: by clone with CLONE_FILES. Their creator forks
   afterwards, and while they live; they fork, and outlive its closing of all that it does not know; what either opens the other
   sees. Many of them leave no descriptor behind: the last gets the numbers that the first had. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define PAGES 3072ul
#define STACK (256 * 1024ul)
#define MANY 40

static unsigned char *memory;

static void expect(uint64_t number) {
    for (size_t i = 0; i < PAGES; i++) must(holds(memory + i * PAGE, PAGE, number + i));
}

static void write_all(uint64_t number) {
    for (size_t i = 0; i < PAGES; i++) fill(memory + i * PAGE, PAGE, number + i);
}

static void end_well(pid_t pid) {
    int status = -1;
    must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void forks(uint64_t number) {
    pid_t pid = fork();
    if (pid == 0) {
        expect(number);
        press();
        expect(number);
        _exit(0);
    }
    end_well(pid);
}

static int to_child[2], to_parent[2];

/* They take turns. */
static void tell(int *ends) { must(write(ends[1], "x", 1) == 1); }
static void hear(int *ends) {
    char byte;
    must(read(ends[0], &byte, 1) == 1);
}

static int works(void *argument) {
    (void)argument;
    expect(1);
    write_all(100000);
    press();
    must(open("/dev/null", O_RDONLY) == 10);
    tell(to_parent);
    hear(to_child);
    forks(100000);
    expect(100000);
    must(fcntl(11, F_GETFD) == -1 && errno == EBADF);
    write_all(200000);
    press();
    expect(200000);
    return 0;
}

static int turn;

static int ends(void *argument) {
    must(holds(argument, PAGE, 1));
    if (turn % 2) execl("/bin/true", "true", (char *)NULL);
    return 0;
}

static pid_t shares_table(int (*function)(void *)) {
    static unsigned char stack[STACK] __attribute__((aligned(16)));
    return clone(function, stack + STACK, CLONE_FILES | SIGCHLD, memory);
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) != -1;
    return count;
}

static int waits(void *argument) {
    (void)argument;
    alarm(60);
    expect(1);
    pause();
    return 0;
}

/* More of them at a time than there are numbers for. */
static void too_many(void) {
    for (int i = 0; i < 12; i++) {
        unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(stack != MAP_FAILED);
        must(clone(waits, stack + STACK, CLONE_FILES | SIGCHLD, memory) > 0);
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = map_rw(PAGES * PAGE);
    write_all(1);
    press();
    if (argc > 2) {
        too_many();
        return 0;
    }
    must(pipe(to_child) == 0 && pipe(to_parent) == 0);
    for (int fd = 7; fd < 12; fd++) must(dup2(2, fd) == fd);
    must(close(10) == 0);
    pid_t child = shares_table(works);
    must(child > 0);
    hear(to_parent);
    must(fcntl(10, F_GETFD) != -1);
    closefrom(10);
    forks(1);
    tell(to_child);
    end_well(child);
    forks(1);
    int before = 0;
    for (turn = 0; turn < MANY; turn++) {
        end_well(shares_table(ends));
        if (turn == 0) before = open_descriptors();
    }
    must(open_descriptors() == before);
    forks(1);
    expect(1);
    return 0;
}
