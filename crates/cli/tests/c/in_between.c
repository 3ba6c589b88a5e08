/* A library that wraps calls, in LD_PRELOAD behind ramfold's, is asked for what it wraps: while the process is small, and when its
   memory is managed. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>

#ifdef MODULE
#include <dlfcn.h>
#include <stdarg.h>

int wrapped[16];

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
int close(int fd) {
    NEXT(close);
    wrapped[0]++;
    return next(fd);
}
int dup2(int old, int new) {
    NEXT(dup2);
    wrapped[1]++;
    return next(old, new);
}
int dup3(int old, int new, int flags) {
    NEXT(dup3);
    wrapped[2]++;
    return next(old, new, flags);
}
int chroot(const char *path) {
    NEXT(chroot);
    wrapped[3]++;
    return next(path);
}
/* What it wraps has libc's other name for itself. */
int open(const char *path, int flags, ...) {
    NEXT(open);
    wrapped[4]++;
    va_list list;
    va_start(list, flags);
    int mode = va_arg(list, int);
    va_end(list);
    return next(path, flags, mode);
}
int execve(const char *path, char *const *argv, char *const *envp) {
    NEXT(execve);
    char *more[200] = {"WRAPPED=1"};
    int count = 1;
    /* It throws out what is new, as fakechroot does. But ramfold itself, which has it loaded too, starts the program. */
    for (; *envp && count < 199; envp++)
        if (!dlsym(RTLD_DEFAULT, "ramfold_behind") || strncmp(*envp, "RAMFOLD_RUN=", 12) != 0) more[count++] = *envp;
    return next(path, argv, more);
}
int execv(const char *path, char *const *argv) { return execve(path, argv, environ); }
int execvp(const char *file, char *const *argv) {
    char path[300] = "/bin/";
    return execve(strchr(file, '/') ? file : strcat(path, file), argv, environ);
}
#else

extern int wrapped[16] __attribute__((weak));

static void calls(void) {
    int before[16];
    memcpy(before, wrapped, sizeof before);
    int fd = open("/dev/null", O_RDWR);
    must(fd >= 0 && wrapped[4] == before[4] + 1);
    must(dup2(fd, 50) == 50 && wrapped[1] == before[1] + 1);
    must(dup3(fd, 51, O_CLOEXEC) == 51 && wrapped[2] == before[2] + 1);
    must(close(50) == 0 && close(51) == 0 && wrapped[0] == before[0] + 2);
    must(chroot("/nowhere") == -1 && wrapped[3] == before[3] + 1);
    /* By the kernel's own call it is not asked. */
    must(syscall(SYS_close, fd) == 0 && syscall(SYS_close, fd) == -1 && errno == EBADF && wrapped[0] == before[0] + 2);
    for (int how = 0; how < 6; how++) {
        pid_t child = fork();
        if (!child) {
            /* Held as before. */
            char *held = getenv("RAMFOLD_RUN") ? "test \"$RAMFOLD_RUN\" || exit 5; exit ${WRAPPED:-0}" : "exit ${WRAPPED:-0}";
            char *argv[] = {"sh", "-c", held, NULL};
            if (how == 0) syscall(SYS_execve, "/bin/sh", argv, environ);
            if (how == 1) execl("/bin/sh", argv[0], argv[1], argv[2], NULL);
            if (how == 2) execlp("sh", argv[0], argv[1], argv[2], NULL);
            if (how == 3) execve("/bin/sh", argv, environ);
            if (how == 4) execv("/bin/sh", argv);
            if (how == 5) execvp("sh", argv);
            _exit(77);
        }
        int status;
        must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == (how > 2));
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    must(wrapped);
    /* Who started this program may have been wrapped as well. */
    unsetenv("WRAPPED");
    calls();
    unsigned char *memory = malloc(8 * MIB);
    fill(memory, 8 * MIB, 1);
    press();
    calls();
    must(holds(memory, 8 * MIB, 1));
    return 0;
}
#endif
