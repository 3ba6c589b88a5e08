/* exec and posix_spawn: this library stays in the programs that this one starts.
 *
 * A program that passes an environment of its own, without LD_PRELOAD and the settings, would start children
 * outside the limit. Missing variables are put back. Everything is built on the stack: these functions are called
 * between vfork and exec, where the parent's heap must not change. */

#define _GNU_SOURCE
#include "start.h"

#include <alloca.h>
#include <errno.h>
#include <sys/types.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_KEPT = 2 };

/* NAME=VALUE strings to keep, the settings first; filled once, before there are threads. The engine reads it too. */
EXPORTED const char *ramfold_kept[MOST_KEPT + 1];

extern char **environ;

static size_t name_length(const char *variable) { return strcspn(variable, "=") + 1; }

static char **find(char **envp, const char *variable) {
    size_t length = name_length(variable);
    for (; *envp; envp++)
        if (strncmp(*envp, variable, length) == 0) return envp;
    return NULL;
}

char *ramfold_write_number(char *at, unsigned long number) {
    char digits[24];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count) *at++ = digits[--count];
    return at;
}

/* The settings with the limit of address space. `room` is for them and two numbers. */
static void write_settings(char *room, struct rlimit limit) {
    strcpy(room, ramfold_kept[0]);
    strcat(room, ADDRESS_SPACE);
    char *end = ramfold_write_number(room + strlen(room), limit.rlim_cur);
    *end++ = ',';
    *ramfold_write_number(end, limit.rlim_max) = 0;
}

/* THEIRS with our library: in the place of the path that it had before (carry.c), or in front. `room` is for both. */
static void write_preload(char *room, const char *ours, const char *theirs) {
    const char *former = ramfold_former(), *at = former ? strstr(theirs, former) : NULL;
    size_t length = at ? strlen(former) : 0;
    strcpy(room, "LD_PRELOAD=");
    if (at && strchr(": ", at[length])) {
        strncat(room, theirs, (size_t)(at - theirs));
        strcat(strcat(room, ours), at + length);
    } else {
        strcat(strcat(strcat(room, ours), ":"), theirs);
    }
}

/* Whether this address is readable. `seen`: one that is, if there is one. */
static int is_readable(const void *address, uintptr_t *seen) {
    uintptr_t at = (uintptr_t)address;
    if ((!*seen || at / SMALLEST_PAGE != *seen / SMALLEST_PAGE) && !ramfold_is_readable(at)) return 0;
    *seen = at;
    return 1;
}

/* Counts an environment. Not one that the kernel cannot read: 0. */
static int count_variables(char **envp, size_t *count) {
    uintptr_t array = 0, string = 0;
    for (*count = 0;; ++*count) {
        if (!is_readable(&envp[*count], &array)) return 0;
        if (!envp[*count]) return 1;
        if (!is_readable(envp[*count], &string)) return 0;
    }
}

/* Runs LAUNCH with ENVP plus what must be kept. A LD_PRELOAD of the program's own gets our library in front. */
int ramfold_with_environment(char *const *given, int (*launch)(void *call, char **envp), void *call) {
    char *empty[] = {NULL};
    char **envp = given ? (char **)given : empty;
    size_t count, added = 0;
    if (!count_variables(envp, &count)) return launch(call, envp);

    char **merged = alloca((count + MOST_KEPT + 1) * sizeof *merged);
    memcpy(merged, envp, count * sizeof *merged);
    merged[count] = NULL;
    int changed = 0;
    struct rlimit limit;
    int is_limited = ramfold_address_space(&limit);
    if (*ramfold_kept && (is_limited || ramfold_former())) {
        char **old = find(merged, *ramfold_kept), *settings = (char *)*ramfold_kept;
        if (is_limited) write_settings(settings = alloca(strlen(*ramfold_kept) + 80), limit);
        /* Two calls at a time in command.c: the second finds what the first has put there. */
        if (!old || strcmp(*old, settings) != 0) {
            if (old) *old = settings;
            else merged[count + added++] = settings;
            merged[count + added] = NULL;
            changed = 1;
        }
    }
    for (const char **kept = ramfold_kept; *kept; kept++) {
        char **old = find(merged, *kept);
        if (!old) {
            merged[count + added++] = (char *)*kept;
            merged[count + added] = NULL;
            changed = 1;
        } else if (strncmp(*kept, "LD_PRELOAD=", 11) == 0 && !strstr(*old, *kept + 11)) {
            char *both = alloca(strlen(*kept) + strlen(*old) + 2);
            write_preload(both, *kept + 11, *old + 11);
            *old = both;
            changed = 1;
        }
    }
    return launch(call, changed ? merged : envp);
}

struct call {
    void *real;
    int directory, flags;
    pid_t *pid;
    const char *path;
    char *const *argv;
    const void *actions, *attributes;
};

typedef int execve_function(const char *, char *const *, char *const *);

/* libc's, or that of a library which replaces it too (Bear, fakechroot). And whether such a library has the other names: libc's own
   do not pass through execve. */
static execve_function *real_execve;
static int has_execv, has_execl, has_execle;
static int (*their_execvp)(const char *, char *const *);
static int has_execlp;

static int is_replaced(const char *name) {
    void *behind = ramfold_behind(name);
    return behind && behind != ramfold_in_libc(name);
}

/* What such a library looks for behind it is libc's: there it finds what adds the environment once more, since it may have taken from
   that. */
void ramfold_find_exec(void) {
    real_execve = ramfold_behind("execve");
    if (is_replaced("execvp")) their_execvp = ramfold_behind("execvp");
    has_execlp = is_replaced("execlp");
    if (!is_replaced("execve")) return;
    has_execv = is_replaced("execv");
    has_execl = is_replaced("execl");
    has_execle = is_replaced("execle");
    ramfold_lead_to("execve", (void *)ramfold_execve);
}

static int launch_execve(void *p, char **envp) {
    struct call *c = p;
    if (c->real) return ((execve_function *)c->real)(c->path, c->argv, envp);
    return (int)ramfold_call(SYS_execve, (long)c->path, (long)c->argv, (long)envp, 0, 0, 0);
}

static int launch_execveat(void *p, char **envp) {
    struct call *c = p;
    return (int)ramfold_call(SYS_execveat, c->directory, (long)c->path, (long)c->argv, (long)envp, c->flags, 0);
}

static int launch_execvpe(void *p, char **envp) {
    struct call *c = p;
    static void *found;
    int (*execvpe)(const char *, char *const *, char *const *) = ramfold_find(&found, "execvpe");
    return execvpe(c->path, c->argv, envp);
}

static int launch_spawn(void *p, char **envp) {
    struct call *c = p;
    int (*spawn)(pid_t *, const char *, const void *, const void *, char *const *, char *const *) = c->real;
    return spawn(c->pid, c->path, c->actions, c->attributes, c->argv, envp);
}

EXPORTED int execve(const char *path, char *const *argv, char *const *envp) {
    if (!real_execve) ramfold_find_exec();
    struct call c = {.real = (void *)real_execve, .path = path, .argv = argv};
    return ramfold_with_environment(envp, launch_execve, &c);
}

EXPORTED int ramfold_execve(const char *path, char *const *argv, char *const *envp) {
    struct call c = {.path = path, .argv = argv};
    return ramfold_with_environment(envp, launch_execve, &c);
}

EXPORTED int execveat(int directory, const char *path, char *const *argv, char *const *envp, int flags) {
    struct call c = {.directory = directory, .path = path, .argv = argv, .flags = flags};
    return ramfold_with_environment(envp, launch_execveat, &c);
}

EXPORTED int execvpe(const char *file, char *const *argv, char *const *envp) {
    struct call c = {.path = file, .argv = argv};
    return ramfold_with_environment(envp, launch_execvpe, &c);
}

static int through(int replaced, const char *path, char *const *argv, char *const *envp) {
    return (replaced ? execve : ramfold_execve)(path, argv, envp);
}

EXPORTED int execv(const char *path, char *const *argv) { return through(has_execv, path, argv, environ); }

/* Theirs comes back to execve. */
static int through_path(int replaced, const char *file, char *const *argv) {
    return replaced && their_execvp ? their_execvp(file, argv) : execvpe(file, argv, environ);
}

EXPORTED int execvp(const char *file, char *const *argv) { return through_path(1, file, argv); }

EXPORTED int fexecve(int fd, char *const *argv, char *const *envp) {
    if (fd < 0 || !argv || !envp) {
        errno = EINVAL;
        return -1;
    }
    return execveat(fd, "", argv, envp, 0x1000 /* AT_EMPTY_PATH */);
}

#define SPAWN(name)                                                                   \
    EXPORTED int name(pid_t *pid, const char *path, const void *actions, const void *attributes, \
                      char *const *argv, char *const *envp) {                         \
        static void *found;                                                           \
        struct call c = {.real = ramfold_find(&found, #name), .pid = pid, .path = path, .actions = actions, \
                         .attributes = attributes, .argv = argv};                     \
        return ramfold_with_environment(envp, launch_spawn, &c);                              \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* The arguments up to the null pointer, as an array on the caller's stack. */
#define COLLECT(argv, first, list, start)                                             \
    size_t count = 1;                                                                 \
    va_start(list, start);                                                            \
    while (va_arg(list, char *)) count++;                                             \
    va_end(list);                                                                     \
    char **argv = alloca((count + 1) * sizeof *argv);                                 \
    argv[0] = (char *)first;                                                          \
    va_start(list, start);                                                            \
    for (size_t i = 1; i <= count; i++) argv[i] = va_arg(list, char *);

EXPORTED int execl(const char *path, const char *first, ...) {
    va_list list;
    COLLECT(argv, first, list, first)
    va_end(list);
    return through(has_execl, path, argv, environ);
}

EXPORTED int execlp(const char *file, const char *first, ...) {
    va_list list;
    COLLECT(argv, first, list, first)
    va_end(list);
    return through_path(has_execlp, file, argv);
}

EXPORTED int execle(const char *path, const char *first, ...) {
    va_list list;
    COLLECT(argv, first, list, first)
    char *const *envp = va_arg(list, char *const *);
    va_end(list);
    return through(has_execle, path, argv, envp);
}
