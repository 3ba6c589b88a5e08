/* Where managed memory answers otherwise than the kernel's, as docs/platform.md says; and the program goes on as it is. */
#define _GNU_SOURCE
#include "raw.h"

#include "check.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>

#define SIZE (8 * MIB)
#define GUARD_INSTALL 102
#define HUGE (2 * MIB)

static int managed;
static unsigned char *memory;
static sigjmp_buf back;
static volatile int code;

static void note(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    code = info->si_code;
    siglongjmp(back, 1);
}

static void unmapped(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO}, before;
    must(sigaction(SIGSEGV, &action, &before) == 0);
    unsigned char *at = map_rw(64 * PAGE);
    fill(at, 64 * PAGE, 7);
    must(munmap(at + 16 * PAGE, 16 * PAGE) == 0);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile unsigned char *)(at + 20 * PAGE) = 1;
        must(0);
    }
    must(code == (managed ? SEGV_ACCERR : SEGV_MAPERR));
    must(sigaction(SIGSEGV, &before, NULL) == 0);
    must(munmap(at, 64 * PAGE) == 0);
}

static void in_core(void) {
    unsigned char there = 1;
    away(memory, PAGE);
    must(mincore(memory, PAGE, &there) == 0 && (there & 1) == !managed);
    must(holds(memory, PAGE, 0));
    must(mincore(memory, PAGE, &there) == 0 && there & 1);
}

static void guards(void) {
    int result = madvise(memory, PAGE, GUARD_INSTALL);
    if (managed) must(result == -1 && errno == EINVAL);
    if (result == 0) must(madvise(memory, PAGE, GUARD_INSTALL + 1) == 0);
    if (result == 0) fill(memory, PAGE, 0);
}

static void userfaultfd(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) return;
    struct uffdio_register range = {.range = {(uintptr_t)memory, SIZE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    int result = ioctl(fd, UFFDIO_REGISTER, &range);
    must(managed ? result == -1 && errno == EBUSY : result == 0);
    must(close(fd) == 0);
}

static void moved_outside(void) {
    unsigned char *at = map_rw(PAGE), *place = (unsigned char *)0x30000000;
    fill(at, PAGE, 9);
    void *moved = mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    must(managed ? moved == MAP_FAILED && errno == EINVAL : moved == place);
    must(holds(managed ? at : place, PAGE, 9));
    must(munmap(managed ? at : place, PAGE) == 0);
}

static void huge(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB;
    unsigned char *at = map(4 * HUGE, PROT_NONE, MAP_NORESERVE);
    unsigned char *start = (unsigned char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
    /* Where there are none: ENOMEM. */
    if (managed) must(mmap(start, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED);
    if (managed) must(errno == EINVAL || errno == ENOMEM);
    must(munmap(at, 4 * HUGE) == 0);
}

/* Of the mappings that this memory lies in, by smaps. */
static unsigned long kilobytes_of(const char *field, const void *memory, size_t size) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512], pattern[64];
    unsigned long start, end, inside = 0, kilobytes, found = 0;
    must(maps && snprintf(pattern, sizeof pattern, "%s: %%lu", field) > 0);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start < (uintptr_t)memory + size && end > (uintptr_t)memory;
        else if (inside && sscanf(line, pattern, &kilobytes) == 1)
            found += kilobytes;
    }
    must(fclose(maps) == 0);
    return found;
}

/* Transparent ones. */
static void of_one_piece(void) {
    unsigned char *at = map_rw(4 * HUGE);
    must(madvise(at, 4 * HUGE, MADV_HUGEPAGE) == 0 || errno == EINVAL);
    memset(at, 1, 4 * HUGE);
    if (managed) must(kilobytes_of("AnonHugePages", at, 4 * HUGE) == 0);
    must(munmap(at, 4 * HUGE) == 0);
}

/* All memory that is locked is private and anonymous. */
static void locked_all(void) {
    int file = memfd_create("file", 0);
    must(file >= 0 && ftruncate(file, 16 * PAGE) == 0);
    unsigned char *at = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(at != MAP_FAILED);
    fill(at, 16 * PAGE, 5);
    if (mlockall(MCL_CURRENT) == 0) {
        must(kilobytes_of("Locked", at, 16 * PAGE) == (managed ? 0 : 64));
        must(munlockall() == 0);
    }
    must(munmap(at, 16 * PAGE) == 0 && close(file) == 0);
}

/* A hint outside of managed memory is kept where it is for little, and that stays. */
static void hinted(void) {
    enum { COUNT = 6, KEPT = 4 };
    const int rw = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *given[COUNT];
    int kept = 0;
    long address = raw(SYS_mmap, 0, 64 * MIB, PROT_NONE, own | MAP_NORESERVE, -1, 0);
    must(address > 0 && raw(SYS_munmap, address, 64 * MIB, 0, 0, 0, 0) == 0);
    unsigned char *place = (unsigned char *)address;
    for (int i = 0; i < COUNT; i++) {
        given[i] = mmap(place + i * MIB, MIB, rw, own, -1, 0);
        must(given[i] != MAP_FAILED);
        kept += given[i] == place + i * MIB;
        fill(given[i], MIB, i);
    }
    must(kept == (managed ? KEPT : COUNT));
    void *larger = mmap(place + 8 * MIB, MIB + PAGE, rw, own, -1, 0);
    must((larger == place + 8 * MIB) == !managed && munmap(larger, MIB + PAGE) == 0);
    press();
    for (int i = 0; i < KEPT; i++) must(resident(given[i], MIB) == MIB / PAGE);
    for (int i = 0; i < COUNT; i++) must(holds(given[i], MIB, i) && munmap(given[i], MIB) == 0);
}

/* It is the kernel's, and one page of it more or less is as any other. */
static void vast(void) {
    size_t size = 20ul << 40;
    unsigned char *at = map(size, PROT_NONE, MAP_NORESERVE);
    must(mprotect(at + size / 2, PAGE, PROT_READ | PROT_WRITE) == 0);
    fill(at + size / 2, PAGE, 3);
    press();
    must(holds(at + size / 2, PAGE, 3) && resident(at + size / 2, PAGE) == 1);
    must(munmap(at, size) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    const char *expected = getenv("EXPECT_EVICTED");
    managed = expected && *expected == '1';
    memory = map_rw(SIZE);
    for (size_t i = 0; i < SIZE / PAGE; i++) fill(memory + i * PAGE, PAGE, i);
    void (*all[])(void) = {unmapped, in_core, guards, userfaultfd, moved_outside, huge, of_one_piece, locked_all, hinted, vast};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i]();
    for (size_t i = 0; i < SIZE / PAGE; i++) must(holds(memory + i * PAGE, PAGE, i));
    return 0;
}
