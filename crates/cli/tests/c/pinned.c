/* What the kernel writes into pages that it holds on to (buffers registered with io_uring) is there, though they were cold for
   long, and those beside them have left. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <sys/uio.h>

enum { SIZE = 64 * PAGE, ENTRIES = 8 };

static int ring;
static unsigned char *submissions, *completions;
static struct io_uring_sqe *entries;
static struct io_uring_params parameters;

static void *shared(size_t size, off_t what) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
    must(at != MAP_FAILED);
    return at;
}

static void set_up(void) {
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &parameters);
    if (ring < 0 && (errno == ENOSYS || errno == EPERM)) {
        fprintf(stderr, "io_uring is not allowed here\n");
        _exit(77);
    }
    must(ring >= 0);
    submissions = shared(parameters.sq_off.array + ENTRIES * sizeof(unsigned), IORING_OFF_SQ_RING);
    completions = shared(parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    entries = shared(ENTRIES * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
}

/* Reads the file into the registered buffer. */
static void read_fixed(int file, void *at, size_t size) {
    atomic_uint *tail = (atomic_uint *)(submissions + parameters.sq_off.tail);
    unsigned mask = *(unsigned *)(submissions + parameters.sq_off.ring_mask), now = atomic_load(tail);
    entries[now & mask] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)at, .len = (unsigned)size, .buf_index = 0};
    ((unsigned *)(submissions + parameters.sq_off.array))[now & mask] = now & mask;
    atomic_store(tail, now + 1);
    must(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    atomic_uint *head = (atomic_uint *)(completions + parameters.cq_off.head);
    unsigned last = atomic_load(head) & *(unsigned *)(completions + parameters.cq_off.ring_mask);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(completions + parameters.cq_off.cqes) + last;
    must(done->res == (int)size);
    atomic_fetch_add(head, 1);
}

/* More than may be in memory is held by the kernel: the program ends here, and is told why. */
static int all(void) {
    size_t size = pressure_mib * MIB;
    unsigned char *buffer = map_rw(size);
    fill(buffer, size, 1);
    struct iovec vector = {buffer, size};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &vector, 1) == 0) return 0;
    must(errno == ENOMEM); /* RLIMIT_MEMLOCK */
    fprintf(stderr, "so much may not be registered here\n");
    return 77;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    set_up();
    if (argc > 2) return all();
    unsigned char *buffer = map_rw(SIZE);
    fill(buffer, SIZE, 1);
    struct iovec vector = {buffer, SIZE};
    must(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &vector, 1) == 0);
    char name[] = "pinned-XXXXXX";
    int file = mkstemp(name);
    must(file >= 0 && unlink(name) == 0);
    for (uint64_t round = 2; round < 5; round++) {
        unsigned char contents[4 * PAGE];
        for (size_t i = 0; i < SIZE; i += sizeof(contents)) {
            fill(contents, sizeof(contents), round + i);
            must(pwrite(file, contents, sizeof(contents), (off_t)i) == sizeof(contents));
        }
        press();
        read_fixed(file, buffer, SIZE);
        for (size_t i = 0; i < SIZE; i += sizeof(contents)) must(holds(buffer + i, sizeof(contents), round + i));
    }
    return 0;
}
