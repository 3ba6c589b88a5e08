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

/* fork.c: registers the handlers for fork, once; and the engine's, once it is loaded. */
void ramfold_handle_fork(void);
extern void (*ramfold_before_fork)(void), (*ramfold_after_fork_parent)(void), (*ramfold_after_fork_child)(void);

/* libc's function of that name, looked for once. */
void *ramfold_find(void **found, const char *name);

/* The same of libc itself: other libraries may have an allocator with functions of these names. */
void *ramfold_find_in_libc(void **found, const char *name);

/* Where the calls of each name lead. */
#define NAME(name, first) extern void *ramfold_slot_##name __attribute__((visibility("hidden")));
#include "names.h"
#undef NAME

/* limits.c. The limit of address space that is kept here: false if there is none. */
struct rlimit;
int ramfold_address_space(struct rlimit *limit);
void ramfold_begin_limits(const char *setting);
void ramfold_limits_after_fork(void);

/* The setting that passes it on, the last one. */
#define ADDRESS_SPACE ";address_space="

/* direct.c: pages leave by a copy. Set once, before there are threads. */
extern int ramfold_pages_are_copied;

/* Look for what may be called in a signal handler or within the dynamic linker, where looking is not safe. */
void ramfold_find_direct(void);
void ramfold_find_fork(void);
void ramfold_find_heap(void);

#endif
