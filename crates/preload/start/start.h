/* What the files of this library share. */

#ifndef RAMFOLD_START_H
#define RAMFOLD_START_H

#include "call.h"

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* Loads the engine, if memory is to be managed and the dynamic linker is not itself at work. `caller` is where the call
   came from. True once the slots lead to the engine. */
int ramfold_load(const void *caller);

/* owner.c: what a copy of this process begins anew, whoever made the copy and how: it reads as zeros there. */
struct ramfold_own {
    int owner;      /* the process whose memory this is */
    int forks;      /* start.c: forks that are under way */
    int lock;       /* command.c */
    unsigned users; /* command.c */
};
extern struct ramfold_own *ramfold_own;

/* In the constructor, and in a forked child. */
void ramfold_own_memory(void);

/* Whether the memory is another process's, which this one shares: the child of vfork, or of clone with CLONE_VM. */
EXPORTED int ramfold_is_guest(void);

/* exec.c: execve by the kernel's own call, past what other libraries have in its place. */
EXPORTED int ramfold_execve(const char *path, char *const *argv, char *const *envp);

/* exec.c: calls LAUNCH with an environment to which what must be kept was added. */
int ramfold_with_environment(char *const *given, int (*launch)(void *call, char **envp), void *call);

/* start.c: the last value of a key of the settings, in `value`. False if there is none, or no room for it. */
int ramfold_setting(const char *key, char *value, size_t room);

/* In decimal; returns the end, where no zero byte is put. */
char *ramfold_write_number(char *at, unsigned long number);

/* carry.c. What is taken along into another namespace: before one is entered with these flags of clone; before root is given up; in who was started with such
   settings; whether a descriptor is one of them; and the path that the library had before this process took it along, or null. */
enum { RAMFOLD_CARRIED = 6 };
EXPORTED void ramfold_carry(unsigned long flags);
void ramfold_carry_now(void);
void ramfold_meet_carried(void);
extern EXPORTED int ramfold_carried[RAMFOLD_CARRIED];
int ramfold_is_carried(int fd);

/* descriptors.c: the same, with errno set. */
int ramfold_looks_closed_yet(int fd);
const char *ramfold_former(void);

/* users.c: before a system call that may give up rights; its first three arguments. */
EXPORTED void ramfold_before_call(long number, long a, long b, long c);

/* start.c: from the first to the second nobody loads the engine, and nobody is loading it; the third is for a copy of the process. */
void ramfold_hold_loading(void);
void ramfold_release_loading(void);
void ramfold_reset_loading(void);

/* fork.c: registers the handlers for fork, once; and the engine's, once it is loaded. */
void ramfold_handle_fork(void);
extern void (*ramfold_before_fork)(void), (*ramfold_after_fork_parent)(void), (*ramfold_after_fork_child)(void);

/* others.c: the function of that name behind this library, libc's or that of a library which replaces it too. Null if there is
   none. It allocates nothing, and takes no lock. */
void *ramfold_behind(const char *name);

/* The function of that name in front of this library: the executable's. Null if there is none. */
void *ramfold_in_front(const char *name);

/* The same, looked for once. */
void *ramfold_find(void **found, const char *name);

/* The same of libc itself: other libraries may have an allocator with functions of these names. */
void *ramfold_in_libc(const char *name);

/* libc's own malloc, known before anybody's first block. */
extern struct ramfold_libcs {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t), *(*valloc)(size_t), *(*pvalloc)(size_t);
    void (*free)(void *);
} ramfold_libcs;

/* The malloc that the program calls is its own, in its executable; or that of a library which it is linked with. */
extern int ramfold_own_malloc, ramfold_next_malloc;

/* linker.c: where the dynamic linker lies; whether the code at this address is its. */
EXPORTED void ramfold_linker(uintptr_t *begin, uintptr_t *end);
int ramfold_is_linker(const void *caller);

/* Puts a function in the place of another in the data of the dynamic linker. Returns how many places there were. There is one thread. */
EXPORTED int ramfold_give_linker(void *old, void *function);

/* linker.c: the dynamic linker takes no memory from the malloc of the executable any more, if that can be. Its functions then: malloc,
   calloc, realloc, free; null if nothing was changed. */
void ramfold_lend_to_linker(void);
extern EXPORTED void *ramfold_lent[4];

/* apart.c: this library has nothing to do in this process but to pass everything on. */
extern int ramfold_apart;

/* Looks at the allocators in the program; before its first block. */
void ramfold_meet(void);

/* start.c: ends the program with a line: its memory cannot be held under the limit. */
void ramfold_refuse(const char *line);

/* others.c: changes the protection of the pages from `from` on. */
long ramfold_protect(uintptr_t from, uintptr_t to, int how);

/* others.c: puts a function into a word of a loaded object, which may be sealed. Returns 0 if it cannot be written. */
int ramfold_put(void **word, void *function);

/* others.c: puts one function into libc's table of symbols, if that can be written. */
void ramfold_lead_to(const char *name, void *function);

/* Puts this library's functions into libc's table of symbols. False if that cannot be written. */
int ramfold_lead_here(void);

/* start.c: lets the slots of the malloc family lead to what they do before the engine comes. */
void ramfold_open_heap(int passed_on);

/* start.c: they lead to whoever would have been called without this library. */
void ramfold_leave_heap(void);

/* start.c: this library's function in the place of libc's, if the name is one of the malloc family's. */
void *ramfold_libc_entry(const char *name);

/* The engine's, once it is loaded: whether this thread works for it, whether a block is not the program's, and the block of a
   stream that is being made, or null. */
extern int (*ramfold_is_internal)(void), (*ramfold_owns)(const void *);
extern void *(*ramfold_stream_block)(size_t);

/* Where the calls of each name lead. */
#define SLOT(name) extern void *ramfold_slot_##name __attribute__((visibility("hidden")));
#define HEAP(name, first, next)                                                       \
    SLOT(name)                                                                        \
    SLOT(libc_##name)                                                                 \
    extern char ramfold_libc_##name[] __attribute__((visibility("hidden")));
#define NAME(name, first) SLOT(name)
#include "names.h"
#undef HEAP
#undef NAME

/* limits.c. The limit of address space that is kept here: false if there is none. */
struct rlimit;
int ramfold_address_space(struct rlimit *limit);
void ramfold_begin_limits(const char *setting);
void ramfold_limits_after_fork(void);

/* The setting that passes it on, the last one. */
#define ADDRESS_SPACE ";address_space="

/* A function of this library's: a jump, not a call: arguments, result and the caller's address are as without it. */
#if defined(__x86_64__)
#define JUMP(slot) "endbr64\n jmp *" #slot "(%rip)\n"
/* The same after a call of `before`, with the arguments kept. */
#define JUMP_AFTER(before, slot)                                                      \
    "endbr64\n push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n push %r9\n sub $8, %rsp\n call " #before \
    "\n add $8, %rsp\n pop %r9\n pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n jmp *" #slot "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(slot) "adrp x16, " #slot "\n ldr x16, [x16, :lo12:" #slot "]\n br x16\n"
#define JUMP_AFTER(before, slot)                                                      \
    "stp x29, x30, [sp, #-80]!\n stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n stp x4, x5, [sp, #48]\n str x8, [sp, #64]\n" \
    "bl " #before "\n ldr x8, [sp, #64]\n ldp x4, x5, [sp, #48]\n ldp x2, x3, [sp, #32]\n ldp x0, x1, [sp, #16]\n" \
    "ldp x29, x30, [sp], #80\n" JUMP(slot)
#else
#error "no jump for this processor"
#endif
#define FUNCTION(scope, name, ...)                                                    \
    __asm__(".text\n." #scope " " #name "\n.type " #name ", @function\n" #name ":\n" __VA_ARGS__ ".size " #name ", .-" #name "\n");

/* direct.c: pages leave by a copy. Set once, before there are threads. */
extern int ramfold_pages_are_copied;

/* Look for what may be called in a signal handler or within the dynamic linker, where looking is not safe. */
void ramfold_find_direct(void);
void ramfold_find_descriptors(void);
void ramfold_find_exec(void);
void ramfold_find_fork(void);
void ramfold_find_heap(void);

#endif
