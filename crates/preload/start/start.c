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
 * (and what libc may give out between two looks) without the engine, and no thread is started without it. So the engine is loaded while there is one thread, except those that
 * libc has started for itself; with signals blocked; never from within the dynamic linker. */

#define _GNU_SOURCE
#include "start.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

/* exec.c: what programs that this one starts are given. */
extern const char *ramfold_kept[];

static const char SETTINGS[] = "RAMFOLD_RUN=";

#if defined(__x86_64__)
#define JUMP(name) "endbr64\n jmp *ramfold_slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "adrp x16, ramfold_slot_" #name "\n ldr x16, [x16, :lo12:ramfold_slot_" #name "]\n br x16\n"
#else
#error "no jump for this processor"
#endif

/* A jump, not a call: arguments, result and the caller's address are as without this library. */
#define NAME(name, first)                                                             \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" JUMP(name) ".size " #name \
            ", .-" #name "\n");                                                      \
    extern char first[] __attribute__((visibility("hidden")));                        \
    void *ramfold_slot_##name = first;
#include "names.h"
#undef NAME

static const struct {
    const char *name;
    void **slot;
} names[] = {
#define NAME(name, first) {#name, &ramfold_slot_##name},
#include "names.h"
#undef NAME
};

/* The engine's handlers for fork, once it is loaded. */
static void (*before_fork)(void), (*after_fork_parent)(void), (*after_fork_child)(void), (*publish)(void);

/* The engine: not wanted, to be loaded when it is needed, being loaded, loaded, not to be had. */
enum { NONE, WANTED, LOADING, LOADED, LOST };
static atomic_int state;

void *ramfold_find(void **found, const char *name) {
    if (!*found) *found = dlsym(RTLD_NEXT, name);
    return *found;
}

void *ramfold_find_in_libc(void **found, const char *name) {
    static void *libc;
    if (!libc) libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (!*found) *found = dlsym(libc, name);
    return *found;
}

static void complain(const char *line) { ramfold_call(SYS_write, 2, (long)line, (long)strlen(line), 0, 0, 0); }

/* Ends a program whose memory cannot be held under the limit, before it can pass it. */
static void refuse(const char *line) {
    complain(line);
    ramfold_call(SYS_exit_group, 125, 0, 0, 0, 0, 0);
}

/* Whether the code at this address is the dynamic linker's. */
static int is_linker(const void *caller) {
    uintptr_t base = getauxval(AT_BASE), end = base;
    if (!base) return 0;
    const ElfW(Ehdr) *header = (const void *)base;
    const ElfW(Phdr) *part = (const void *)(base + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++)
        if (part[i].p_type == PT_LOAD && base + part[i].p_vaddr + part[i].p_memsz > end)
            end = base + part[i].p_vaddr + part[i].p_memsz;
    return (uintptr_t)caller - base < end - base;
}

/* The last value of a key of the settings, in `value`. False if there is none, or no room for it. */
static int setting(const char *key, char *value, size_t room) {
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

static void load_engine(void) {
    char path[128] = "";
    setting("library", path, sizeof path);
    void *engine = *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!engine && ramfold_call(SYS_faccessat, AT_FDCWD, (long)path, R_OK, 0, 0, 0)) {
        atomic_store(&state, LOST);
        return complain("ramfold: this process is not held under the limit any more (has ramfold run ended?)\n");
    }
    if (!engine) refuse("ramfold: memory cannot be held under the limit: the library cannot be loaded\n");
    before_fork = dlsym(engine, "ramfold_before_fork");
    after_fork_parent = dlsym(engine, "ramfold_after_fork_parent");
    after_fork_child = dlsym(engine, "ramfold_after_fork_child");
    publish = dlsym(engine, "ramfold_publish");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) *names[i].slot = dlsym(engine, names[i].name);
    atomic_store(&state, LOADED);
}

int ramfold_load(const void *caller) {
    int seen = atomic_load(&state);
    if (seen == LOADED) return 1;
    if (seen != WANTED || is_linker(caller) || ramfold_is_guest() || !atomic_compare_exchange_strong(&state, &seen, LOADING)) return 0;
    int error = errno;
    uint64_t all = ~0ull, before;
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof all, 0, 0);
    load_engine();
    ramfold_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof all, 0, 0);
    errno = error;
    return atomic_load(&state) == LOADED;
}

static void prepare(void) {
    if (before_fork) before_fork();
}

static void in_parent(void) {
    if (after_fork_parent) after_fork_parent();
}

static void in_child(void) {
    ramfold_own_memory();
    if (after_fork_child) after_fork_child();
}

void ramfold_handle_fork(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&done)) pthread_atfork(prepare, in_parent, in_child);
}

/* Keeps the settings and this library for the programs that this one starts. Copies: programs overwrite the place where
   the originals are. */
static void keep(char **envp) {
    static char settings[1024], preload[128] = "LD_PRELOAD=";
    while (*envp && strncmp(*envp, SETTINGS, sizeof SETTINGS - 1)) envp++;
    if (!*envp) return;
    size_t size = strlen(*envp) + 1;
    if (size > sizeof settings) refuse("ramfold: memory cannot be held under the limit: RAMFOLD_RUN is too long\n");
    ramfold_kept[0] = memcpy(settings, *envp, size);
    if (setting("start", preload + 11, sizeof preload - 11)) ramfold_kept[1] = preload;
}

/* Whether the program, or a library of it, has a malloc of its own that comes before ours. (Where a program that is not
   position-independent takes the address of a function, that is a jump of its own, under the name of what it has not.) */
static int has_own_malloc(void) {
    void *first = dlsym(RTLD_DEFAULT, "malloc");
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (first == (void *)malloc) return 0;
    return !dladdr1(first, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol || symbol->st_shndx != SHN_UNDEF;
}

/* After libc's own constructor and before the program's. The handlers for fork have to be the first to be registered, so that
   before a fork they are the last to run, and after it the first, before anybody else's that touches memory: the first block that
   a library's constructor takes registers them, if it comes before this one (heap.c). */
__attribute__((constructor)) static void begin(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    keep(envp);
    ramfold_own_memory();
    ramfold_find_direct();
    ramfold_find_fork();
    ramfold_find_heap();
    char value[32];
    if (!setting("limit", value, sizeof value)) return;
    ramfold_pages_are_copied = setting("mode", value, sizeof value) && !strcmp(value, "wp");
    ramfold_handle_fork();
    atomic_store(&state, WANTED);
    /* A malloc of the program's own is not to be called again from within its mmap, by the dynamic linker. */
    if (has_own_malloc()) ramfold_load(begin);
}

/* After the program's own destructors. */
__attribute__((destructor)) static void end(void) {
    if (publish) publish();
}
