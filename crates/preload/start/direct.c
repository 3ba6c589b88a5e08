/* Direct I/O where pages leave by a copy: O_DIRECT is taken off.
 *
 * The kernel pins the pages that direct I/O reads into, and writes to their frames when the device answers. UFFDIO_MOVE
 * refuses pinned pages. Without it nothing in user space tells a pinned page from another: the copy would be taken too
 * early, and what the device writes be lost. So files are opened without O_DIRECT then: same contents, by way of the page
 * cache. In C, since these functions vary in their arguments, and threads are cancelled in them. */

#define _GNU_SOURCE
#include "start.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>

int ramfold_pages_are_copied;

static int buffered(int flags) { return ramfold_pages_are_copied ? flags & ~O_DIRECT : flags; }

/* The mode, if there is one. */
#define MODE(mode, flags)                                                             \
    mode_t mode = 0;                                                                  \
    if (__OPEN_NEEDS_MODE(flags)) {                                                   \
        va_list list;                                                                 \
        va_start(list, flags);                                                        \
        mode = va_arg(list, mode_t);                                                  \
        va_end(list);                                                                 \
    }

#define SAME(name, ours) __asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", " #ours "\n");

/* Each calls what is behind it under the same name, libc's or another library's. */
#define OPEN(name)                                                                    \
    static int (*real_##name)(const char *, int, ...);                                \
    int ramfold_##name(const char *path, int flags, ...) {                            \
        MODE(mode, flags)                                                             \
        if (!real_##name) ramfold_find_direct();                                      \
        return real_##name(path, buffered(flags), mode);                              \
    }                                                                                 \
    SAME(name, ramfold_##name)
#define OPENAT(name)                                                                  \
    static int (*real_##name)(int, const char *, int, ...);                           \
    int ramfold_##name(int directory, const char *path, int flags, ...) {             \
        MODE(mode, flags)                                                             \
        if (!real_##name) ramfold_find_direct();                                      \
        return real_##name(directory, path, buffered(flags), mode);                   \
    }                                                                                 \
    SAME(name, ramfold_##name)
#define FCNTL(name)                                                                   \
    static int (*real_##name)(int, int, ...);                                         \
    int ramfold_##name(int fd, int command, ...) {                                    \
        va_list list;                                                                 \
        va_start(list, command);                                                      \
        void *argument = va_arg(list, void *);                                        \
        va_end(list);                                                                 \
        if (!real_##name) ramfold_find_direct();                                      \
        if (command == F_SETFL) return real_##name(fd, command, buffered((int)(long)argument)); \
        return real_##name(fd, command, argument);                                    \
    }                                                                                 \
    SAME(name, ramfold_##name)
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
OPENAT(openat)
OPENAT(openat64)
OPENAT(__openat_2)
OPENAT(__openat64_2)
FCNTL(fcntl)
FCNTL(fcntl64)

/* While there is one thread, since looking is not safe in a signal handler. */
void ramfold_find_direct(void) {
#define FIND(name) real_##name = ramfold_behind(#name);
    FIND(open)
    FIND(open64)
    FIND(__open_2)
    FIND(__open64_2)
    FIND(openat)
    FIND(openat64)
    FIND(__openat_2)
    FIND(__openat64_2)
    FIND(fcntl)
    FIND(fcntl64)
    if (!real_fcntl64) real_fcntl64 = real_fcntl; /* before glibc 2.28 */
}
