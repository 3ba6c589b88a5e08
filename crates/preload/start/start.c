/* The small library that `ramfold run` puts into every program, and the way from it to the engine.
 *
 * Most processes of a build or a shell script are small and short: to load the engine into each would take longer than
 * many of them run. This library has the names that the engine replaces (names.h), and while the process is small it
 * passes them on to libc. Before the process takes more than a little memory (heap.c, calls.c) it loads the engine, the
 * slots lead there from then on, and what libc has given out until then stays where it is: at most LITTLE bytes, which are
 * never evicted.
 *
 * Price: a jump more in each call; the path of the engine leads through `ramfold run`, so a process that is still small when
 * that has ended is not managed any more, and says so once. Guarantee: nobody gets more than LITTLE bytes of anonymous memory
 * (and what libc may give out between two looks) without the engine, and no thread is started without it, but in the moments in which another
 * thread, one of libc's own, forks or loads it. So the engine is loaded while there is one thread, except those that
 * libc has started for itself; with signals blocked; never from within the dynamic linker. */

#define _GNU_SOURCE
#include "start.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* exec.c: what programs that this one starts are given. */
extern const char *ramfold_kept[];

static const char SETTINGS[] = "RAMFOLD_RUN=";

#define NAME(name, first)                                                             \
    FUNCTION(globl, name, JUMP(ramfold_slot_##name))                                  \
    extern char first[] __attribute__((visibility("hidden")));                        \
    void *ramfold_slot_##name = first;
/* The first call of any of these looks at the allocators in the program. */
#define HEAP(name, first, next)                                                       \
    FUNCTION(local, meet_##name, JUMP_AFTER(ramfold_meet, ramfold_slot_##name))       \
    FUNCTION(local, meet_libc_##name, JUMP_AFTER(ramfold_meet, ramfold_slot_libc_##name)) \
    FUNCTION(globl, name, JUMP(ramfold_slot_##name))                                  \
    FUNCTION(globl, ramfold_libc_##name, ".hidden ramfold_libc_" #name "\n" JUMP(ramfold_slot_libc_##name)) \
    extern char meet_##name[], meet_libc_##name[], first[], next[] __attribute__((visibility("hidden"))); \
    void *ramfold_slot_##name = meet_##name, *ramfold_slot_libc_##name = meet_libc_##name;
#include "names.h"
#undef NAME
#undef HEAP

/* Under these names libc's malloc is called by programs that have one of their own around it. */
#define ALIAS(name)                                                                   \
    __asm__(".globl __libc_" #name "\n.type __libc_" #name ", @function\n"           \
            ".set __libc_" #name ", ramfold_libc_" #name "\n");
ALIAS(malloc)
ALIAS(calloc)
ALIAS(realloc)
ALIAS(free)
ALIAS(memalign)
ALIAS(valloc)
ALIAS(pvalloc)
#undef ALIAS

static const struct {
    const char *name;
    void **slot;
} names[] = {
#define NAME(name, first) {#name, &ramfold_slot_##name},
#include "names.h"
#undef NAME
};

static const struct {
    const char *name;
    void **slot, **libc_slot;
    void *libc_entry, *first, *next;
} heap[] = {
#define HEAP(name, first, next) {#name, &ramfold_slot_##name, &ramfold_slot_libc_##name, ramfold_libc_##name, first, next},
#include "names.h"
#undef HEAP
};
enum { HEAP_NAMES = sizeof heap / sizeof *heap };

void ramfold_open_heap(int passed_on) {
    for (size_t i = 0; i < HEAP_NAMES; i++) {
        *heap[i].slot = passed_on ? heap[i].next : heap[i].first;
        *heap[i].libc_slot = heap[i].first;
    }
}

void ramfold_leave_heap(void) {
    for (size_t i = 0; i < HEAP_NAMES; i++) {
        *heap[i].slot = ramfold_behind(heap[i].name);
        *heap[i].libc_slot = ramfold_in_libc(heap[i].name);
    }
}

void *ramfold_libc_entry(const char *name) {
    for (size_t i = 0; i < HEAP_NAMES; i++)
        if (!strcmp(heap[i].name, name)) return heap[i].libc_entry;
    return NULL;
}

static void (*publish)(void);

/* The engine: not wanted, to be loaded when it is needed, being loaded, loaded, not to be had. */
enum { NONE, WANTED, LOADING, LOADED, LOST };
static atomic_int state;

int (*ramfold_is_internal)(void), (*ramfold_owns)(const void *);
void *(*ramfold_stream_block)(size_t);

void *ramfold_find(void **found, const char *name) {
    if (!*found) *found = ramfold_behind(name);
    return *found;
}

static void complain(const char *line) { ramfold_call(SYS_write, 2, (long)line, (long)strlen(line), 0, 0, 0); }

void ramfold_refuse(const char *line) {
    complain(line);
    ramfold_call(SYS_exit_group, 125, 0, 0, 0, 0, 0);
}

int ramfold_setting(const char *key, char *value, size_t room) {
    const char *settings = ramfold_kept[0] ? ramfold_kept[0] + sizeof SETTINGS - 1 : NULL;
    size_t length = strlen(key);
    int found = 0;
    for (; settings && *settings; settings += *settings == ';') {
        size_t size = strcspn(settings, ";");
        if (size > length && !strncmp(settings, key, length) && settings[length] == '=' && size - length <= room) {
            memcpy(value, settings + length + 1, size - length - 1);
            value[size - length - 1] = 0;
            found = 1;
        }
        settings += size;
    }
    return found;
}

/* Lets this process, which has one thread, open as many files as its hard limit says. */
static int make_room(struct rlimit *before, struct rlimit *most) {
    if (ramfold_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)before, 0, 0)) return 0;
    most->rlim_cur = most->rlim_max = before->rlim_max;
    return before->rlim_cur != before->rlim_max && !ramfold_call(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)most, 0, 0, 0);
}

/* Why the engine's file cannot be read: a daemon gave up its user, or its root directory, or ramfold run is no more. */
static const char *why_lost(int error) {
    if (error == EACCES || error == EPERM)
        return "ramfold: this process is not held under the limit any more: it gave up the user that ramfold run is of, and grew after that "
               "(start ramfold run as the user that it becomes)\n";
    if (ramfold_call(SYS_faccessat, AT_FDCWD, (long)"/proc/self", F_OK, 0, 0, 0))
        return "ramfold: this process is not held under the limit any more: there is no /proc where it is (chroot?)\n";
    return "ramfold: this process is not held under the limit any more: ramfold run has ended\n";
}

static int can_read(const char *path) {
    return !ramfold_call(SYS_faccessat2, AT_FDCWD, (long)path, R_OK, AT_EACCESS, 0, 0);
}

static void *open_engine(const char *path) {
    struct rlimit before, most;
    int has_room = make_room(&before, &most);
    /* Of what cannot be opened libc keeps a line, in the linker's memory, and frees it by the program's function. */
    if (ramfold_own_malloc && can_read(path)) ramfold_lend_to_linker();
    void *engine = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (has_room) ramfold_call(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)&before, 0, 0, 0);
    return engine;
}

static void load_engine(void) {
    char path[128] = "";
    ramfold_setting("library", path, sizeof path);
    void *engine = *path ? open_engine(path) : NULL;
    if (!engine && !can_read(path)) {
        atomic_store(&state, LOST);
        return complain(why_lost(errno));
    }
    if (!engine) ramfold_refuse("ramfold: memory cannot be held under the limit: the library cannot be loaded\n");
    ramfold_before_fork = dlsym(engine, "ramfold_before_fork");
    ramfold_after_fork_parent = dlsym(engine, "ramfold_after_fork_parent");
    ramfold_after_fork_child = dlsym(engine, "ramfold_after_fork_child");
    publish = dlsym(engine, "ramfold_publish");
    ramfold_is_internal = dlsym(engine, "ramfold_is_internal");
    ramfold_stream_block = dlsym(engine, "ramfold_stream_block");
    ramfold_owns = dlsym(engine, "ramfold_owns");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) *names[i].slot = dlsym(engine, names[i].name);
    for (size_t i = 0; i < HEAP_NAMES; i++) {
        *heap[i].libc_slot = dlsym(engine, heap[i].name);
        if (!ramfold_next_malloc) *heap[i].slot = *heap[i].libc_slot;
    }
    atomic_store(&state, LOADED);
}

static void wake(char **envp);

/* A malloc of the program's own is not to be called again from within its mmap, by the dynamic linker. */
static int has_other_malloc(void) {
    ramfold_meet();
    return ramfold_own_malloc || ramfold_next_malloc;
}

/* A copy that is made while another thread loads the engine would never have one. The wait has an end: who forks may have a lock of
   the dynamic linker's (a library's constructor). */
void ramfold_hold_loading(void) {
    struct timespec moment = {0, 1000000};
    __atomic_fetch_add(&ramfold_own->forks, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 1000 && atomic_load(&state) == LOADING; i++) ramfold_call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0, 0);
}

void ramfold_release_loading(void) { __atomic_fetch_sub(&ramfold_own->forks, 1, __ATOMIC_SEQ_CST); }

void ramfold_reset_loading(void) {
    int loading = LOADING;
    __atomic_store_n(&ramfold_own->forks, 0, __ATOMIC_SEQ_CST);
    /* Who was about to load saw the fork, and left it. */
    atomic_compare_exchange_strong(&state, &loading, WANTED);
}

int ramfold_load(const void *caller) {
    if (ramfold_apart) return 0;
    int seen = atomic_load(&state);
    if (seen == LOADED) return 1;
    /* A constructor that comes before this library's takes memory. */
    if (seen == NONE && environ && !ramfold_is_linker(caller) && !has_other_malloc()) {
        wake(environ);
        seen = atomic_load(&state);
    }
    if (seen != WANTED || ramfold_is_linker(caller) || ramfold_is_guest()) return 0;
    int error = errno;
    /* From before it is said that somebody loads: a handler that forks would wait for whom it has interrupted. */
    uint64_t all = ~0ull, before;
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof all, 0, 0);
    if (atomic_compare_exchange_strong(&state, &seen, LOADING)) {
        if (__atomic_load_n(&ramfold_own->forks, __ATOMIC_SEQ_CST)) atomic_store(&state, WANTED);
        else load_engine();
    }
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof all, 0, 0);
    errno = error;
    return atomic_load(&state) == LOADED;
}

/* The limit of address space that the settings tell of. */
static const char *address_space;

extern char **environ;

/* Keeps the settings and this library for the programs that this one starts. Copies: programs overwrite the place where
   the originals are. */
static void keep(char **envp) {
    static char settings[1024], preload[128] = "LD_PRELOAD=";
    while (*envp && strncmp(*envp, SETTINGS, sizeof SETTINGS - 1)) envp++;
    if (!*envp) return;
    size_t size = strlen(*envp) + 1;
    if (size > sizeof settings) ramfold_refuse("ramfold: memory cannot be held under the limit: RAMFOLD_RUN is too long\n");
    ramfold_kept[0] = memcpy(settings, *envp, size);
    /* exec.c adds what holds then. */
    char *limit = strstr(settings, ADDRESS_SPACE);
    if (limit) {
        *limit = 0;
        address_space = limit + sizeof ADDRESS_SPACE - 1;
    }
    if (ramfold_setting("start", preload + 11, sizeof preload - 11)) ramfold_kept[1] = preload;
    ramfold_meet_carried();
}

/* Reads the settings, once: before the program's first line, or when somebody's constructor takes memory before. */
static void wake(char **envp) {
    static int done;
    if (done) return;
    done = 1;
    keep(envp);
    ramfold_own_memory();
    ramfold_find_direct();
    ramfold_find_descriptors();
    ramfold_find_exec();
    ramfold_find_fork();
    ramfold_find_heap();
    char value[32];
    if (ramfold_apart || !ramfold_setting("limit", value, sizeof value)) return;
    ramfold_pages_are_copied = ramfold_setting("mode", value, sizeof value) && !strcmp(value, "wp");
    ramfold_begin_limits(address_space);
    ramfold_handle_fork();
    atomic_store(&state, WANTED);
}

/* After libc's own constructor and before the program's. */
__attribute__((constructor)) static void begin(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    wake(envp);
    if (has_other_malloc()) ramfold_load(begin);
}

/* After the program's own destructors. */
__attribute__((destructor)) static void end(void) {
    if (publish) publish();
}
