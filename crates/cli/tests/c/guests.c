/* A process that was made by clone with CLONE_VM shares its creator's memory, ends before it or outlives it, however that
   ends: by exit, by exec, by SIGKILL. What the creator left is there. */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define SIZE (24 * MIB)
#define STACK (256 * 1024ul)

static unsigned char *memory;
static pid_t creator;
static int answers[2];

static int writes(void *argument) {
    fill(memory, SIZE, (uintptr_t)argument);
    _exit(0);
}

static int outlives(void *argument) {
    while (getppid() == creator) usleep(10000);
    usleep(300000);
    char answer = holds(memory, SIZE, (uintptr_t)argument) ? 'y' : 'n';
    _exit(write(answers[1], &answer, 1) != 1);
}

static pid_t guest(int (*function)(void *), uint64_t number) {
    unsigned char *stack = map_rw(STACK);
    pid_t pid = clone(function, stack + STACK, CLONE_VM | SIGCHLD, (void *)number);
    must(pid > 0);
    return pid;
}

static void one_that_ends_first(uint64_t number) {
    int status = -1;
    pid_t pid = guest(writes, number);
    must(waitpid(pid, &status, 0) == pid && status == 0);
    must(holds(memory, SIZE, number));
    press();
    must(holds(memory, SIZE, number));
    must(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
}

enum end { EXIT, EXEC, KILL };

static void two_that_outlive(enum end end, uint64_t number) {
    must(pipe(answers) == 0);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        creator = getpid();
        fill(memory, SIZE, number);
        guest(outlives, number);
        guest(outlives, number);
        press();
        if (end == EXEC) execl("/bin/sleep", "sleep", "0.3", (char *)NULL);
        if (end == KILL) raise(SIGKILL);
        _exit(0);
    }
    int status = -1;
    char answer[2] = "";
    must(close(answers[1]) == 0);
    must(waitpid(child, &status, 0) == child && status == (end == KILL ? SIGKILL : 0));
    must(read(answers[0], answer, 1) == 1 && read(answers[0], answer + 1, 1) == 1);
    must(answer[0] == 'y' && answer[1] == 'y');
    /* Nobody keeps what the guests have closed. */
    must(read(answers[0], answer, 1) == 0 && close(answers[0]) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    memory = map_rw(SIZE);
    for (uint64_t number = 1; number <= 3; number++) one_that_ends_first(number);
    away(memory + MIB, PAGE);
    must(holds(memory, SIZE, 3));
    for (enum end end = EXIT; end <= KILL; end++) two_that_outlive(end, 10 + end);
    must(holds(memory, SIZE, 3));
    one_that_ends_first(4);
    return 0;
}
