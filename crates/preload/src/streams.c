/* Functions that make a stream, with a note for streams.rs of how many blocks to come may be a stream's own.
 *
 * In C: fopen blocks (a FIFO), so threads are cancelled in it, and unwind through these frames. */

#define _GNU_SOURCE
#include "thread.h"

#include <mntent.h>
#include <stdio.h>
#include <unistd.h>
#include <wchar.h>

/* start/others.c. */
void *ramfold_behind(const char *name);

/* A note that is left behind, by a signal handler that jumps out, is wiped by the next of these calls. */
#define STREAM(name, blocks, parameters, arguments)                                   \
    static FILE *(*real_##name) parameters;                                           \
    FILE *ramfold_make_##name parameters {                                            \
        ramfold_thread.stream_blocks = blocks;                                        \
        FILE *stream = real_##name arguments;                                         \
        ramfold_thread.stream_blocks = 0;                                             \
        return stream;                                                                \
    }

/* own_stat.rs */
int ramfold_own_stat(const char *path, const char *mode);

STREAM(fdopen, 1, (int fd, const char *mode), (fd, mode))

/* A stream of /proc/self/stat is of a copy. */
#define OPENS(name)                                                                   \
    STREAM(name, 1, (const char *path, const char *mode), (path, mode))               \
    FILE *ramfold_open_##name(const char *path, const char *mode) {                   \
        int copy = ramfold_own_stat(path, mode);                                      \
        FILE *stream = copy < 0 ? NULL : ramfold_make_fdopen(copy, mode);             \
        if (copy >= 0 && !stream) close(copy);                                        \
        return stream ? stream : ramfold_make_##name(path, mode);                     \
    }

OPENS(fopen)
OPENS(fopen64)
STREAM(popen, 1, (const char *command, const char *mode), (command, mode))
STREAM(tmpfile, 1, (void), ())
STREAM(tmpfile64, 1, (void), ())
/* The buffer, if libc allocates it, comes before the stream, and may look like one. */
STREAM(fmemopen, 2, (void *buffer, size_t size, const char *mode), (buffer, size, mode))
STREAM(fopencookie, 1, (void *cookie, const char *mode, cookie_io_functions_t functions), (cookie, mode, functions))
STREAM(open_memstream, 1, (char **buffer, size_t *size), (buffer, size))
STREAM(open_wmemstream, 1, (wchar_t **buffer, size_t *size), (buffer, size))
STREAM(setmntent, 1, (const char *path, const char *mode), (path, mode))

#define FIND(name) real_##name = ramfold_behind(#name);

/* While there is one thread. */
void ramfold_find_streams(void) {
    FIND(fopen)
    FIND(fopen64)
    FIND(fdopen)
    FIND(popen)
    FIND(tmpfile)
    FIND(tmpfile64)
    FIND(fmemopen)
    FIND(fopencookie)
    FIND(open_memstream)
    FIND(open_wmemstream)
    FIND(setmntent)
}
