/* Direct I/O writes into pages that it has pinned, while others are pushed out: what it wrote is there.
 * direct_io PRESSURE_MIB how: prints `direct` or `buffered`, as the file was opened, and ends. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

#define SECONDS 4
#define PIECE (256 * 1024ul)
#define PIECES 32
#define SKIPPED 77

static volatile bool done;

static time_t seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

static void *presser(void *unused) {
    size_t size = pressure_mib * MIB;
    unsigned char *other = map_rw(size);
    for (uint64_t round = 1; !done; round++)
        for (size_t i = 0; i < size && !done; i += PAGE) fill(other + i, PAGE, round << 32 | i);
    return unused;
}

/* A file of pieces, each with contents of its own; opened for direct I/O. */
static int file_of_pieces(unsigned char *buffer) {
    char name[] = "/var/tmp/direct_io.XXXXXX";
    int file = mkstemp(name);
    must(file >= 0);
    for (size_t i = 0; i < PIECES; i++) {
        fill(buffer, PIECE, i);
        must(write(file, buffer, PIECE) == PIECE);
    }
    must(fsync(file) == 0);
    close(file);
    file = open(name, O_RDONLY | O_DIRECT);
    must(unlink(name) == 0);
    return file;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *buffers = map_rw(PIECES * PIECE);
    int file = file_of_pieces(buffers);
    if (file < 0) {
        fprintf(stderr, "/var/tmp has no direct I/O\n");
        return SKIPPED;
    }
    if (argc > 2) {
        puts(fcntl(file, F_GETFL) & O_DIRECT ? "direct" : "buffered");
        return 0;
    }
    pthread_t thread;
    must(pthread_create(&thread, NULL, presser, NULL) == 0);
    time_t end = seconds() + SECONDS;
    for (size_t i = 0; seconds() < end; i++) {
        unsigned char *buffer = buffers + random() % PIECES * PIECE;
        usleep(random() % 3000);
        size_t piece = i * 7 % PIECES;
        must(pread(file, buffer, PIECE, piece * PIECE) == PIECE);
        must(holds(buffer, PIECE, piece));
    }
    done = true;
    must(pthread_join(thread, NULL) == 0);
    return 0;
}
