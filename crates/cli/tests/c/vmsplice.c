/* Pages that were given to a pipe as they are (vmsplice) leave, come back, are dropped or written to before they are read from it:
   what is read is what was given. Of what is written to them meanwhile it may be seen, or not, page by page. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/uio.h>

#define SIZE (16 * PAGE)

enum { KEEP, READ, DROP, UNMAP, WRITE, ENDS };

static void after(int what, unsigned char *at) {
    if (what == READ) must(holds(at, SIZE, 1));
    if (what == DROP) must(madvise(at, SIZE, MADV_DONTNEED) == 0 && zero(at, SIZE));
    if (what == UNMAP) must(munmap(at, SIZE) == 0);
    if (what == WRITE) fill(at, SIZE, 2);
}

static void read_from(int pipe, unsigned char *to) {
    for (size_t done = 0; done < SIZE;) {
        ssize_t got = read(pipe, to + done, SIZE - done);
        must(got > 0);
        done += (size_t)got;
    }
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    int ends[2];
    must(pipe(ends) == 0);
    unsigned char *to = map_rw(SIZE);
    for (unsigned how = 0; how < 2 * ENDS; how++) {
        unsigned char *at = map_rw(SIZE);
        fill(at, SIZE, 1);
        if (how & 1) away(at, SIZE);
        struct iovec vector = {at, SIZE};
        must(vmsplice(ends[1], &vector, 1, how < ENDS ? 0 : SPLICE_F_GIFT) == SIZE);
        away(at, SIZE);
        after(how % ENDS, at);
        read_from(ends[0], to);
        for (size_t i = 0; i < SIZE; i += PAGE) {
            uint64_t word = word_at(1, i / 8), later = word_at(2, i / 8), *found = (uint64_t *)(to + i);
            must(*found == word || (how % ENDS == WRITE && *found == later));
        }
        if (how % ENDS != WRITE) must(holds(to, SIZE, 1));
    }
    return 0;
}
