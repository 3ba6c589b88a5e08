/* Children stay under the limit whatever environment they are given: each way to start one, with an environment that
   lacks the variables. The child prints nothing and says by its status whether they were there, and the limit of address
   space if there is one.
   Started with an argument, the program is such a child. */
#define _GNU_SOURCE
#include "expect.h"
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

extern char **environ;
static const char *self;
static char *const bare[] = {"ONLY=this", NULL};
static char *const other[] = {"LD_PRELOAD=/nonexistent/other.so", "ONLY=this", NULL};

enum { GOOD = 0, NO_SETTINGS = 11, NO_PRELOAD = 12, NO_OWN = 13, NO_LIMIT = 14 };

static const struct rlimit space = {64ul << 30, 64ul << 30};

static int child(int argc, char **argv) {
    const char *preload = getenv("LD_PRELOAD");
    if (!getenv("RAMFOLD_RUN")) return NO_SETTINGS;
    if (!preload || !*preload) return NO_PRELOAD;
    if (!getenv("ONLY") || strcmp(getenv("ONLY"), "this") != 0) return NO_OWN;
    if (argc > 2 && strcmp(argv[2], "limited") == 0) {
        struct rlimit limit;
        return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == space.rlim_cur ? GOOD : NO_LIMIT;
    }
    if (argc > 2 && strcmp(argv[2], "two") != 0) return NO_OWN;
    return GOOD;
}

static int status_of(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

#define IN_CHILD(call)                          \
    do {                                        \
        pid_t pid = vfork();                    \
        if (pid == 0) {                         \
            call;                               \
            _exit(101);                         \
        }                                       \
        int status = status_of(pid);            \
        if (status) fprintf(stderr, "%s: status %d\n", #call, status); \
        CHECK(status == GOOD);                  \
    } while (0)

/* libc starts a shell, with the environment as it is; which stays as the program made it. */
static void by_a_shell(const char *argument) {
    static char *array[] = {"ONLY=this", "LD_PRELOAD=/nonexistent/other.so", NULL};
    char command[5000];
    snprintf(command, sizeof command, "ONLY=this '%s' child %s 2>/dev/null", self, argument);
    for (int i = 0; i < 3; i++) {
        if (i == 1) environ = NULL;
        if (i == 2) environ = array;
        char **given = environ;
        int status = system(command);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == GOOD);
        FILE *stream = popen(command, "r");
        CHECK(stream && WEXITSTATUS(pclose(stream)) == GOOD);
        wordexp_t words;
        char substitution[6000];
        snprintf(substitution, sizeof substitution, "$(%s; echo $?)", command);
        CHECK(wordexp(substitution, &words, 0) == 0 && words.we_wordc == 1 && strcmp(words.we_wordv[0], "0") == 0);
        wordfree(&words);
        CHECK(environ == given);
    }
    CHECK(strcmp(array[1], "LD_PRELOAD=/nonexistent/other.so") == 0 && !array[2] && !getenv("RAMFOLD_RUN"));
}

/* What lay on the stack is there no more. */
static void overwrite_stack(void) {
    volatile char stack[64 << 10];
    for (size_t i = 0; i < sizeof stack; i++) stack[i] = 'x';
}

static void *by_two_at_a_time(void *barrier) {
    for (int i = 0; i < 8; i++) {
        pthread_barrier_wait(barrier);
        CHECK(system("sleep 0.02; test -n \"$RAMFOLD_RUN\" && test -n \"$LD_PRELOAD\"") == 0);
    }
    return NULL;
}

/* The same with a limit of address space, which goes on to children with the settings. */
static void by_a_limited_shell(void) {
    CHECK(setrlimit(RLIMIT_AS, &space) == 0);
    by_a_shell("limited");
    for (int i = 0; i < 8; i++) {
        clearenv();
        char **given = environ;
        CHECK(system("test -n \"$RAMFOLD_RUN\" && test -n \"$LD_PRELOAD\"") == 0);
        overwrite_stack();
        CHECK(environ == given && !getenv("RAMFOLD_RUN") && !getenv("LD_PRELOAD"));
        CHECK(setenv("ONLY", "this", 1) == 0);
        given = environ;
        FILE *stream = popen("test -n \"$RAMFOLD_RUN\" && test \"$ONLY\" = this", "r");
        CHECK(stream && pclose(stream) == 0);
        overwrite_stack();
        CHECK(environ == given && strcmp(environ[0], "ONLY=this") == 0 && !environ[1]);
    }
    char **given = environ;
    pthread_barrier_t barrier;
    pthread_t threads[2];
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, by_two_at_a_time, &barrier) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(environ == given && !getenv("RAMFOLD_RUN"));
}

/* An environment that the kernel cannot read is refused, as without ramfold. */
static void unreadable(char *const *args) {
    size_t page = 4096;
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    char *bad = pages + page, *string[] = {"ONLY=this", bad, NULL};
    char **without_end = (char **)bad - 1;
    *without_end = "ONLY=this";
    char **all[] = {(char **)bad, (char **)8, (char **)-1, string, without_end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        errno = 0;
        CHECK(execve(self, args, all[i]) == -1 && errno == EFAULT);
        errno = 0;
        CHECK(syscall(SYS_execveat, AT_FDCWD, self, args, all[i], 0) == -1 && errno == EFAULT);
    }
    /* Where the end is the last that can be read. */
    char **to_the_end = (char **)bad - 2;
    to_the_end[0] = "ONLY=this";
    to_the_end[1] = NULL;
    IN_CHILD(execve(self, args, to_the_end));
    munmap(pages, 2 * page);
}

int main(int argc, char **argv) {
    if (argc > 1) return child(argc, argv);
    self = "/proc/self/exe";
    char path[4096];
    ssize_t length = readlink(self, path, sizeof path - 1);
    path[length] = 0;
    self = path;
    char *const args[] = {path, "child", "two", NULL};

    IN_CHILD(execve(self, args, bare));
    IN_CHILD(execve(self, args, other));
    IN_CHILD(execvpe(self, args, bare));
    IN_CHILD(execle(self, self, "child", "two", NULL, bare));
    IN_CHILD(execveat(AT_FDCWD, self, args, bare, 0));
    int fd = open(self, O_RDONLY);
    IN_CHILD(fexecve(fd, args, bare));
    close(fd);

    pid_t pid;
    CHECK(posix_spawn(&pid, self, NULL, NULL, args, bare) == 0 && status_of(pid) == GOOD);
    CHECK(posix_spawnp(&pid, self, NULL, NULL, args, bare) == 0 && status_of(pid) == GOOD);

    clearenv();
    setenv("ONLY", "this", 1);
    IN_CHILD(execv(self, args));
    IN_CHILD(execvp(self, args));
    IN_CHILD(execl(self, self, "child", "two", NULL));
    IN_CHILD(execlp(self, self, "child", "two", NULL));

    IN_CHILD(syscall(SYS_execve, self, args, bare));
    IN_CHILD(syscall(SYS_execveat, AT_FDCWD, self, args, bare, 0));
    by_a_shell("two");

    unreadable(args);

    errno = 0;
    CHECK(execve("/nonexistent", args, bare) == -1 && errno == ENOENT);
    CHECK(posix_spawn(&pid, "/nonexistent", NULL, NULL, args, bare) == ENOENT);
    by_a_limited_shell();
    return DONE;
}
