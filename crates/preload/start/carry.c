/* What a process takes along into another user or PID namespace, or to another user: the run's files, open.
 *
 * The settings name them by `/proc/PID/fd/N` of `ramfold run`. From another user namespace, or as another user, that is not permitted, and
 * in another PID namespace the number is nobody's, or somebody else's. So before a process, or a child that it makes, goes there, it
 * opens them, and the settings lead to `/proc/self/fd/N` from then on: programs that are started inherit the descriptors, and find
 * them there. The device of userfaultfds comes along where it may be opened: on the other side it may not be there.
 *
 * Price: descriptors with high numbers that stay open over exec. libc's functions do not close them. Where they are closed all the same,
 * or there is no /proc, the dynamic linker says that it does not find the library, and what is started is not managed. */

#define _GNU_SOURCE
#include "start.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const char *ramfold_kept[];

static const char OWN[] = "/proc/self/fd/";

/* What the settings call each file, and how it is opened; the device is not in the first settings. Those that are opened anew by
 * their path need no more than a place. */
static const struct {
    const char *key;
    int flags;
} files[] = {
    {"start", O_PATH}, {"library", O_PATH}, {"shm", O_PATH}, {"swap", O_RDWR}, {"trace", O_WRONLY | O_APPEND}, {"device", O_RDWR},
};
enum { FILES = sizeof files / sizeof *files, START = 0, DEVICE = FILES - 1, PATH = 128 };
_Static_assert(FILES == RAMFOLD_CARRIED, "start.h tells how many");

/* Their numbers, -1 where there is none; the engine reads them too. */
int ramfold_carried[FILES] = {-1, -1, -1, -1, -1, -1};

/* Where the library was found before; empty if it was always here. */
static char former[PATH];

/* A descriptor where programs do not look for theirs (budget/src/fds.rs has the same numbers). */
static int raise_number(int fd) {
    enum { LOWEST = 900, BELOW_LIMIT = 24 };
    struct rlimit limit;
    long lowest = LOWEST;
    if (!ramfold_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) && limit.rlim_cur < LOWEST + BELOW_LIMIT)
        lowest = limit.rlim_cur > BELOW_LIMIT ? (long)limit.rlim_cur - BELOW_LIMIT : 0;
    long raised = ramfold_call(SYS_fcntl, fd, F_DUPFD, lowest, 0, 0, 0);
    if (raised < 0) return fd;
    ramfold_call(SYS_close, fd, 0, 0, 0, 0, 0);
    return (int)raised;
}

static int open_file(const char *path, int flags) {
    long fd = ramfold_call(SYS_openat, AT_FDCWD, (long)path, flags, 0, 0, 0);
    return fd < 0 ? -1 : raise_number((int)fd);
}

static char *append(char *at, const char *text, size_t length) {
    memcpy(at, text, length);
    at[length] = 0;
    return at + length;
}

static char *append_file(char *at, size_t file) {
    char *end = ramfold_write_number(append(at, OWN, sizeof OWN - 1), (unsigned long)ramfold_carried[file]);
    *end = 0;
    return end;
}

static int is_key(const char *key, const char *text, size_t length) {
    return strlen(key) == length && !strncmp(key, text, length);
}

/* Opens what the settings name, and writes the settings that lead here. Null if anything cannot be opened. */
static const char *write_settings(void) {
    static char settings[1024 + FILES * sizeof OWN];
    char path[PATH], *at = settings;
    const char *from = ramfold_kept[0];
    size_t size;
    for (; *from; from += size + (from[size] == ';')) {
        size = strcspn(from, ";");
        size_t key = strcspn(from, "=") + 1, file = 0;
        while (file < DEVICE && !is_key(files[file].key, from, key - 1)) file++;
        if (at != settings) at = append(at, ";", 1);
        if (file == DEVICE || size - key >= PATH) {
            at = append(at, from, size);
            continue;
        }
        append(path, from + key, size - key);
        ramfold_carried[file] = open_file(path, files[file].flags);
        if (ramfold_carried[file] < 0) return NULL;
        at = append_file(append(at, from, key), file);
    }
    ramfold_carried[DEVICE] = open_file("/dev/userfaultfd", O_RDWR);
    if (ramfold_carried[DEVICE] >= 0) append_file(append(at, ";device=", 8), DEVICE);
    return settings;
}

static void forget(void) {
    for (size_t file = 0; file < FILES; file++) {
        if (ramfold_carried[file] >= 0) ramfold_call(SYS_close, ramfold_carried[file], 0, 0, 0, 0, 0);
        ramfold_carried[file] = -1;
    }
}

void ramfold_carry(unsigned long flags) {
    if (flags & (CLONE_NEWUSER | CLONE_NEWPID)) ramfold_carry_now();
}

void ramfold_carry_now(void) {
    static int begun;
    static char preload[PATH] = "LD_PRELOAD=";
    if (!ramfold_kept[0] || !ramfold_kept[1] || ramfold_carried[START] >= 0) return;
    if (ramfold_is_guest() || __atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL)) return;
    int error = errno;
    const char *settings = write_settings();
    if (settings) {
        append_file(preload + 11, START);
        strncpy(former, ramfold_kept[1] + 11, sizeof former - 1);
        __atomic_store_n(&ramfold_kept[0], settings, __ATOMIC_RELEASE);
        __atomic_store_n(&ramfold_kept[1], preload, __ATOMIC_RELEASE);
    } else {
        forget();
    }
    errno = error;
}

/* They lead here all, or none. */
void ramfold_meet_carried(void) {
    char path[PATH];
    for (size_t file = START; file < FILES; file++) {
        if (!ramfold_setting(files[file].key, path, sizeof path)) continue;
        if (strncmp(path, OWN, sizeof OWN - 1)) return;
        ramfold_carried[file] = atoi(path + sizeof OWN - 1);
    }
}

int ramfold_is_carried(int fd) {
    for (size_t file = 0; fd >= 0 && file < FILES; file++)
        if (ramfold_carried[file] == fd) return 1;
    return 0;
}

const char *ramfold_former(void) { return *former ? former : NULL; }
