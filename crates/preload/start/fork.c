/* The handlers for fork, which have to be the first that are registered.
 *
 * Then before a fork they are the last to run, and after it the first: whatever other handlers touch is served by the pager. Others
 * come early: an allocator in the executable has handlers of its own before any constructor has run, a library's constructor
 * may register some before this library's. But all register them by __register_atfork, which pthread_atfork is a name for
 * within each object; so whoever registers handlers registers ours before.
 *
 * Price: nothing. Guarantee: no handler of anybody's runs while the pager stands still. */

#define _GNU_SOURCE
#include "start.h"

#include <stdatomic.h>
#include <stddef.h>

void (*ramfold_before_fork)(void), (*ramfold_after_fork_parent)(void), (*ramfold_after_fork_child)(void);

typedef void (*handler)(void);
typedef int (*registers)(handler, handler, handler, void *);

static void prepare(void) {
    ramfold_hold_loading();
    if (ramfold_before_fork) ramfold_before_fork();
}

static void in_parent(void) {
    if (ramfold_after_fork_parent) ramfold_after_fork_parent();
    ramfold_release_loading();
}

static void in_child(void) {
    ramfold_reset_loading();
    ramfold_own_memory();
    ramfold_limits_after_fork();
    if (ramfold_after_fork_child) ramfold_after_fork_child();
}

static registers real(void) {
    static void *found;
    if (!found) found = ramfold_behind("__register_atfork");
    return (registers)found;
}

void ramfold_handle_fork(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&done)) real()(prepare, in_parent, in_child, NULL);
}

/* `object` is whose handlers they are: libc forgets them when it is unloaded. Ours has none, and stays. */
EXPORTED int __register_atfork(handler before, handler parent, handler child, void *object) {
    ramfold_handle_fork();
    return real()(before, parent, child, object);
}
