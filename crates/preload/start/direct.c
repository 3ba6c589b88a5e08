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

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_open_2)(const char *, int);
static int (*real_openat_2)(int, const char *, int);
static int (*real_fcntl)(int, int, ...);

/* What libc has under these names: looked for while there is one thread, since looking is not safe in a signal handler. */
void ramfold_find_direct(void) {
    real_open = ramfold_behind("open64");
    real_openat = ramfold_behind("openat64");
    real_open_2 = ramfold_behind("__open64_2");
    real_openat_2 = ramfold_behind("__openat64_2");
    real_fcntl = ramfold_behind("fcntl64");
    if (!real_fcntl) real_fcntl = ramfold_behind("fcntl"); /* before glibc 2.28 */
}

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

int ramfold_open(const char *path, int flags, ...) {
    MODE(mode, flags)
    if (!real_open) ramfold_find_direct();
    return real_open(path, buffered(flags), mode);
}

int ramfold_openat(int directory, const char *path, int flags, ...) {
    MODE(mode, flags)
    if (!real_openat) ramfold_find_direct();
    return real_openat(directory, path, buffered(flags), mode);
}

int ramfold_open_2(const char *path, int flags) {
    if (!real_open_2) ramfold_find_direct();
    return real_open_2(path, buffered(flags));
}

int ramfold_openat_2(int directory, const char *path, int flags) {
    if (!real_openat_2) ramfold_find_direct();
    return real_openat_2(directory, path, buffered(flags));
}

int ramfold_fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!real_fcntl) ramfold_find_direct();
    if (command == F_SETFL) return real_fcntl(fd, command, buffered((int)(long)argument));
    return real_fcntl(fd, command, argument);
}

#define SAME(name, ours) __asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", " #ours "\n");
SAME(open, ramfold_open)
SAME(open64, ramfold_open)
SAME(openat, ramfold_openat)
SAME(openat64, ramfold_openat)
SAME(__open_2, ramfold_open_2)
SAME(__open64_2, ramfold_open_2)
SAME(__openat_2, ramfold_openat_2)
SAME(__openat64_2, ramfold_openat_2)
SAME(fcntl, ramfold_fcntl)
SAME(fcntl64, ramfold_fcntl)
