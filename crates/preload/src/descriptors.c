/* close, for descriptors.rs: ramfold's own calls go to the kernel, the program's to who is behind, libc or a library that replaces
 * the function too.
 *
 * In C: threads are cancelled in it, and unwind through this frame. */

#include <stddef.h>

/* descriptors.rs */
int ramfold_looks_closed(int one, int other);
int ramfold_closes_own(int fd, int *result);

/* start/others.c */
void *ramfold_behind(const char *name);

static int (*real_close)(int);

/* While there is one thread. */
void ramfold_find_close(void) { real_close = ramfold_behind("close"); }

int ramfold_close(int fd) {
    int result;
    if (ramfold_looks_closed(fd, fd)) return -1;
    if (!real_close) ramfold_find_close();
    return ramfold_closes_own(fd, &result) ? result : real_close(fd);
}
