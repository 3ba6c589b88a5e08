/* Closing while the process is small: what is carried into other namespaces (carry.c) looks closed. */

#include "start.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bound to libc under names that nobody replaces: they may be called in a signal handler. */
extern int __close(int), __dup2(int, int);

static int is_kept(int fd) {
    if (!ramfold_is_carried(fd)) return 0;
    errno = EBADF;
    return 1;
}

int first_close(int fd) { return is_kept(fd) ? -1 : __close(fd); }

int first_dup2(int old, int new) { return is_kept(new) || is_kept(old) ? -1 : __dup2(old, new); }

int first_dup3(int old, int new, int flags) {
    return is_kept(new) || is_kept(old) ? -1 : (int)ramfold_call(SYS_dup3, old, new, flags, 0, 0, 0);
}

/* Around them. */
int first_close_range(unsigned first, unsigned last, int flags) {
    for (;;) {
        unsigned next = -1u;
        for (int i = 0; i < RAMFOLD_CARRIED; i++)
            if (ramfold_carried[i] >= 0 && (unsigned)ramfold_carried[i] >= first && (unsigned)ramfold_carried[i] < next) next = (unsigned)ramfold_carried[i];
        if (next == -1u || next > last || first > last) return (int)ramfold_call(SYS_close_range, first, last, flags, 0, 0, 0);
        if (next > first && ramfold_call(SYS_close_range, first, next - 1, flags, 0, 0, 0)) return -1;
        if (next == last) return 0;
        first = next + 1;
    }
}

void first_closefrom(int first) { first_close_range(first < 0 ? 0 : (unsigned)first, -1u, 0); }
