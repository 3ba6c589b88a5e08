/* Closing while the process is small: what is carried into other namespaces (carry.c) looks closed. The rest is the affair of who is
 * behind, libc or a library that replaces these functions too (torsocks). */

#include "start.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

static int (*real_close)(int), (*real_dup2)(int, int), (*real_dup3)(int, int, int);

void ramfold_find_descriptors(void) {
    real_close = ramfold_behind("close");
    real_dup2 = ramfold_behind("dup2");
    real_dup3 = ramfold_behind("dup3");
}

int ramfold_looks_closed_yet(int fd) {
    if (!ramfold_is_carried(fd)) return 0;
    errno = EBADF;
    return 1;
}

static int are_closed(int one, int other) {
    if (!real_close) ramfold_find_descriptors();
    return ramfold_looks_closed_yet(one) || ramfold_looks_closed_yet(other);
}

int first_close(int fd) { return are_closed(fd, fd) ? -1 : real_close(fd); }

int first_dup2(int old, int new) { return are_closed(old, new) ? -1 : real_dup2(old, new); }

int first_dup3(int old, int new, int flags) { return are_closed(old, new) ? -1 : real_dup3(old, new, flags); }

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
