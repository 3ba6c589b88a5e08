/* system, popen and wordexp: libc starts a shell there, past exec.c, with the environment as it is.
 *
 * Where the program has taken away what must be kept, it is put back while libc is at it: `environ` leads to a copy of the
 * array for so long. What other threads change meanwhile is kept. Price: those threads see the variables for as long as the call lasts; and
 * who jumps out of one of these calls sees them from then on. */

#define _GNU_SOURCE
#include "start.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wordexp.h>

extern char **environ;

/* LD_PRELOAD and the settings. */
enum { CHANGED = 2 };

/* The copy; under the lock. */
static struct {
    char **vector, **before;
    struct {
        char *ours, *theirs; /* the program's variable that ours took the place of; none if it was added */
    } changed[CHANGED];
    size_t size;
} copy;

/* As in Drepper's "Futexes are tricky": free, taken, taken with sleepers. Signals are blocked meanwhile. */
static void take(uint64_t *before) {
    uint64_t all = ~0ull;
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)before, sizeof all, 0, 0);
    int seen = 0, *lock = &ramfold_own->lock;
    if (__atomic_compare_exchange_n(lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
        ramfold_call(SYS_futex, (long)lock, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
}

static void give(const uint64_t *before) {
    int *lock = &ramfold_own->lock;
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
        ramfold_call(SYS_futex, (long)lock, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)before, 0, sizeof *before, 0, 0);
}

/* Whether there is room for so many bytes. A copy that the program goes on using, or a child that begins, is left to it. */
static int has_room(size_t size) {
    int is_free = copy.vector && environ != copy.vector && ramfold_own->users == 0;
    if (is_free && size <= copy.size) return 1;
    long flags = MAP_PRIVATE | MAP_ANONYMOUS;
    long new = ramfold_call(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (new == -1) return 0;
    if (is_free) ramfold_call(SYS_munmap, (long)copy.vector, (long)copy.size, 0, 0, 0, 0);
    copy.vector = (char **)new;
    copy.size = size;
    return 1;
}

/* What the program had in the place of a variable of the copy; NULL if nothing. */
static char *as_it_was(char *variable) {
    for (int i = 0; i < CHANGED; i++)
        if (variable == copy.changed[i].ours) return copy.changed[i].theirs;
    return variable;
}

/* Puts ENVP where `environ` lies. False if it is there already, or there is no room. ENVP and what is new in it lie on the
 * stack, and are copied. */
static int put(void *unused, char **envp) {
    (void)unused;
    char *none[] = {NULL}, **before = environ ? environ : none;
    if (envp == before || (!environ && !*envp)) return 0;
    size_t old = 0, count = 0, text = 0;
    while (before[old]) old++;
    for (; envp[count]; count++)
        if (count >= old || envp[count] != before[count]) text += strlen(envp[count]) + 1;
    if (!has_room((count + 1) * sizeof *envp + text)) return 0;
    memcpy(copy.vector, envp, (count + 1) * sizeof *envp);
    memset(copy.changed, 0, sizeof copy.changed);
    char *room = (char *)(copy.vector + count + 1);
    for (size_t i = 0, n = 0; i < count && n < CHANGED; i++) {
        char *theirs = i < old ? before[i] : NULL;
        if (envp[i] == theirs) continue;
        copy.vector[i] = strcpy(room, envp[i]);
        room += strlen(room) + 1;
        copy.changed[n].ours = copy.vector[i];
        copy.changed[n++].theirs = theirs;
    }
    copy.before = environ;
    __atomic_store_n(&environ, copy.vector, __ATOMIC_RELEASE);
    return 1;
}

/* Takes out of the copy what was added; what it was made of takes its place again, if nobody has changed anything. */
static void take_out(void) {
    char **to = copy.vector;
    for (char **from = copy.vector; *from; from++) {
        char *theirs = as_it_was(*from);
        if (theirs) *to++ = theirs;
    }
    *to = NULL;
    size_t count = (size_t)(to - copy.vector);
    for (size_t i = 0; i < count; i++)
        if (!copy.before || copy.before[i] != copy.vector[i]) return;
    if (!copy.before || !copy.before[count]) __atomic_store_n(&environ, copy.before, __ATOMIC_RELEASE);
}

static int begin(void) {
    uint64_t mask;
    int error = errno;
    take(&mask);
    int is_ours = ramfold_with_environment(environ, put, NULL) || (ramfold_own->users > 0 && environ == copy.vector);
    ramfold_own->users += is_ours;
    give(&mask);
    errno = error;
    return is_ours;
}

static void end(void *is_ours) {
    uint64_t mask;
    int error = errno;
    if (!*(int *)is_ours) return;
    take(&mask);
    if (--ramfold_own->users == 0 && environ == copy.vector) take_out();
    give(&mask);
    errno = error;
}

/* What is called may be cancelled. */
#define COMMAND(result, call)                                                         \
    int is_ours = begin();                                                            \
    pthread_cleanup_push(end, &is_ours);                                              \
    result = call;                                                                    \
    pthread_cleanup_pop(1);                                                           \
    return result;

EXPORTED int system(const char *command) {
    static void *found;
    int (*real)(const char *) = ramfold_find(&found, "system");
    int status;
    COMMAND(status, real(command))
}

EXPORTED FILE *popen(const char *command, const char *mode) {
    extern FILE *ramfold_popen(const char *, const char *);
    FILE *stream;
    COMMAND(stream, ramfold_popen(command, mode))
}

EXPORTED int wordexp(const char *words, wordexp_t *expansion, int flags) {
    static void *found;
    int (*real)(const char *, wordexp_t *, int) = ramfold_find(&found, "wordexp");
    int error;
    COMMAND(error, real(words, expansion, flags))
}
