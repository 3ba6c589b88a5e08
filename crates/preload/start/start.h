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
    int lock;       /* command.c */
    unsigned users; /* command.c */
};
extern struct ramfold_own *ramfold_own;

/* In the constructor, and in a forked child. */
void ramfold_own_memory(void);

/* Whether the memory is another process's, which this one shares: the child of vfork, or of clone with CLONE_VM. */
EXPORTED int ramfold_is_guest(void);

/* exec.c: calls LAUNCH with an environment to which what must be kept was added. */
int ramfold_with_environment(char *const *given, int (*launch)(void *call, char **envp), void *call);

/* Registers the handlers for fork, once. */
void ramfold_handle_fork(void);

/* libc's function of that name, looked for once. */
void *ramfold_find(void **found, const char *name);

/* The same of libc itself: other libraries may have an allocator with functions of these names. */
void *ramfold_find_in_libc(void **found, const char *name);

/* Where the calls of each name lead. */
#define NAME(name, first) extern void *ramfold_slot_##name __attribute__((visibility("hidden")));
#include "names.h"
#undef NAME

/* direct.c: pages leave by a copy. Set once, before there are threads. */
extern int ramfold_pages_are_copied;

/* Look for what may be called in a signal handler or within the dynamic linker, where looking is not safe. */
void ramfold_find_direct(void);
void ramfold_find_fork(void);
void ramfold_find_heap(void);

#endif
