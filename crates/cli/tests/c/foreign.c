/* Files and shared memory among managed memory: each call on them does what the kernel does, and one that fails leaves what was
 * there. What was unmapped is free for them. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/shm.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)

enum { SIZE = 64 * 4096 };

static int file_of(size_t size) {
    int fd = memfd_create("file", 0);
    must(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    return fd;
}

/* A shared mapping of the file, with as much free room behind it as it has. */
static unsigned char *put(int fd, bool with_room) {
    unsigned char *at = map(4 * SIZE, PROT_NONE, 0);
    must(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    if (with_room) must(munmap(at + SIZE, 3 * SIZE) == 0);
    fill(at, SIZE, 1);
    return at;
}

static bool child_reads(void *at, uint64_t number) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(!holds(at, SIZE, number));
    must(child > 0 && waitpid(child, &status, 0) == child);
    return status == 0;
}

static void advised(void) {
    int fd = file_of(2 * SIZE);
    unsigned char *at = put(fd, false);
    must(madvise(at, SIZE, MADV_DONTNEED) == 0 && holds(at, SIZE, 1));
    must(madvise(at, SIZE, MADV_FREE) == -1 && errno == EINVAL);
    must(madvise(at, SIZE, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    must(madvise(at, SIZE, MADV_POPULATE_WRITE) == 0 && holds(at, SIZE, 1));
    must(madvise(at + SIZE / 2, SIZE / 2, MADV_REMOVE) == 0);
    must(holds(at, SIZE / 2, 1) && zero(at + SIZE / 2, SIZE / 2));
    unsigned char *own = map_rw(PAGE);
    must(madvise(own, PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
    must(munmap(own, PAGE) == 0 && munmap(at, 4 * SIZE) == 0 && close(fd) == 0);
}

/* Of what a child does not have of shared memory it can make its own. */
static void not_for_children(void) {
    int status, fd = file_of(2 * SIZE);
    unsigned char *at = put(fd, false);
    must(madvise(at + PAGE, PAGE, MADV_DONTFORK) == 0);
    pid_t child = fork();
    if (child == 0) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        must(mmap(at + PAGE, PAGE, RW, flags, -1, 0) == at + PAGE && zero(at + PAGE, PAGE));
        fill(at + PAGE, PAGE, 9);
        press();
        must(holds(at + PAGE, PAGE, 9) && holds(at, PAGE, 1));
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
    must(holds(at, SIZE, 1));
    must(munmap(at, 4 * SIZE) == 0 && close(fd) == 0);
}

static void resized_and_moved(void) {
    int fd = file_of(4 * SIZE);
    unsigned char *at = put(fd, true);
    must(mremap(at, SIZE, 2 * SIZE, 0) == at);
    fill(at + SIZE, SIZE, 2);
    must(mremap(at, 2 * SIZE, SIZE, 0) == at);
    /* The tail is free again. */
    must(mmap(at + SIZE, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at + SIZE);
    fill(at + SIZE, SIZE, 3);
    must(mremap(at, SIZE, 2 * SIZE, 0) == MAP_FAILED && errno == ENOMEM);
    unsigned char *moved = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED && holds(moved, SIZE, 1) && holds(moved + SIZE, SIZE, 2));
    /* So is where it was; and it can come back, over memory of the pager's. */
    must(mmap(at, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
    must(zero(at, SIZE));
    fill(at, SIZE, 4);
    press();
    must(holds(at, SIZE, 4) && holds(at + SIZE, SIZE, 3));
    must(mremap(moved, 2 * SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
    press();
    must(holds(at, SIZE, 1) && holds(at + SIZE, SIZE, 3));
    unsigned char *twice = mremap(at, 0, SIZE, MREMAP_MAYMOVE);
    must(twice != MAP_FAILED && twice != at && holds(twice, SIZE, 1));
    fill(twice, SIZE, 5);
    must(holds(at, SIZE, 5) && munmap(twice, SIZE) == 0);
    must(munmap(at, 2 * SIZE) == 0 && close(fd) == 0);
}

static void failed_calls(void) {
    int fd = file_of(SIZE), for_writing = open("/dev/null", O_WRONLY);
    unsigned char *at = map_rw(SIZE);
    fill(at, SIZE, 6);
    away(at, SIZE);
    must(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EBADF);
    must(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, for_writing, 0) == MAP_FAILED && errno == EACCES);
    must(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
    must(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at + PAGE) == MAP_FAILED && errno == EINVAL);
    must(shmat(-1, at, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    must(child_reads(at, 6));
    press();
    must(holds(at, SIZE, 6));
    must(munmap(at, SIZE) == 0 && close(fd) == 0 && close(for_writing) == 0);
}

static void in_free_room(void) {
    int fd = file_of(SIZE);
    unsigned char *room = map_rw(SIZE);
    fill(room, SIZE, 7);
    must(munmap(room, SIZE) == 0);
    must(mmap(room, SIZE, RW, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_POPULATE, fd, 0) == room);
    must(zero(room, SIZE));
    must(munmap(room, SIZE) == 0);
    must(mmap(room, SIZE, RW, MAP_PRIVATE, fd, 0) == room); /* a hint that can be kept */
    fill(room, SIZE, 8);
    press();
    must(holds(room, SIZE, 8));
    must(munmap(room, SIZE) == 0 && close(fd) == 0);
}

static void attached(void) {
    int id = shmget(IPC_PRIVATE, SIZE, 0600 | IPC_CREAT);
    must(id >= 0);
    unsigned char *at = map_rw(2 * SIZE);
    fill(at, 2 * SIZE, 1);
    away(at, 2 * SIZE);
    must(shmat(id, at, 0) == (void *)-1 && errno == EINVAL);
    must(holds(at, 2 * SIZE, 1));
    must(shmat(id, at, SHM_REMAP) == at && zero(at, SIZE));
    fill(at, SIZE, 2);
    press();
    must(holds(at, SIZE, 2) && child_reads(at, 2));
    /* Anonymous memory over a part of it stays. */
    must(mmap(at + PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + PAGE);
    fill(at + PAGE, PAGE, 3);
    must(shmdt(at) == 0);
    must(shmdt(at) == -1 && errno == EINVAL);
    must(mmap(at, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
    fill(at, PAGE, 4);
    press();
    must(holds(at, PAGE, 4) && holds(at + PAGE, PAGE, 3));
    must(munmap(at, 2 * SIZE) == 0);
    must(shmat(id, at + 5, SHM_RND) == at && holds(at, PAGE, 2) && shmdt(at) == 0);
    must(shmctl(id, IPC_RMID, NULL) == 0);
}

/* Nothing that the kernel maps may come to lie where shared memory was. */
static void nothing_in_holes(void) {
    int id = shmget(IPC_PRIVATE, SIZE, 0600 | IPC_CREAT), fd = file_of(SIZE);
    must(id >= 0);
    unsigned char *at = map_rw(SIZE);
    must(shmat(id, at, SHM_REMAP) == at && shmctl(id, IPC_RMID, NULL) == 0);
    must(shmdt(at) == 0);
    unsigned char *raw = (void *)syscall(SYS_mmap, NULL, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(raw != MAP_FAILED);
    fill(raw, SIZE, 2);
    press();
    must(holds(raw, SIZE, 2));
    must(syscall(SYS_munmap, raw, SIZE) == 0 && close(fd) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    advised();
    not_for_children();
    resized_and_moved();
    failed_calls();
    in_free_room();
    attached();
    nothing_in_holes();
    return 0;
}
