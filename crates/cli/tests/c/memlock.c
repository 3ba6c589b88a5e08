/* Who may lock no more memory than it has (RLIMIT_MEMLOCK, CAP_IPC_LOCK given up) forks, moves its memory, and unlocks all:
   nothing is refused and nothing lost for what is kept in memory because the kernel writes to it, or was locked before. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

int capset(cap_user_header_t, const cap_user_data_t);
int capget(cap_user_header_t, cap_user_data_t);

enum { BLOCK = 2 << 20, STACK = 1 << 18 };

/* From here on this thread may lock nothing. */
static void give_up_locking(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[2];
    must(capget(&header, has) == 0);
    has[0].effective &= ~(1u << CAP_IPC_LOCK);
    has[0].permitted &= ~(1u << CAP_IPC_LOCK);
    must(capset(&header, has) == 0);
    struct rlimit none = {0, 0};
    must(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
}

static pthread_mutex_t *robust(void *at) {
    pthread_mutexattr_t attributes;
    must(pthread_mutexattr_init(&attributes) == 0);
    must(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    must(pthread_mutex_init(at, &attributes) == 0);
    return at;
}

/* A page with a robust mutex, and what is beside it. */
static unsigned char *page_with_mutex(void) {
    unsigned char *page = map_rw(PAGE);
    fill(page, PAGE, 1);
    robust(page + PAGE / 2);
    return page;
}

static bool mutex_works(unsigned char *page) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)(page + PAGE / 2);
    return holds(page, PAGE / 2, 1) && pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0;
}

/* What was not to leave has not. */
static bool stays(unsigned char *page) {
    unsigned char *beside = map_rw(PAGE);
    memset(beside, 1, PAGE);
    away(beside, PAGE);
    return resident(page, PAGE) == 1 && munmap(beside, PAGE) == 0;
}

static unsigned char *moved(unsigned char *page) {
    unsigned char *to = map_rw(PAGE);
    must(mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    return to;
}

static void succeeds(pid_t child) {
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static unsigned char *kept, *locked, *wiped, *block;

static void uses_all(void) {
    must(mutex_works(kept) && stays(kept));
    must(holds(block, BLOCK / 2, 2) && mutex_works(block + BLOCK / 2));
    press();
    must(mutex_works(kept) && holds(locked, PAGE, 3));
    kept = moved(kept);
    must(mutex_works(kept) && stays(kept));
    must(mprotect(kept, PAGE, PROT_READ) == 0 && mprotect(kept, PAGE, PROT_READ | PROT_WRITE) == 0);
    must(mutex_works(kept));
    block = realloc(block, 4 * BLOCK);
    must(block && holds(block, BLOCK / 2, 2) && mutex_works(block + BLOCK / 2));
    locked = moved(locked);
    must(holds(locked, PAGE, 3));
}

static pthread_barrier_t barrier, end;

static void *rests(void *argument) {
    pthread_barrier_wait(&end);
    return argument;
}

/* On a stack of the program's. */
static void *forks(void *argument) {
    give_up_locking();
    pid_t child = fork();
    if (child == 0) {
        uses_all();
        _exit(0);
    }
    succeeds(child);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return argument;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    press();
    kept = page_with_mutex();
    wiped = page_with_mutex();
    block = malloc(BLOCK);
    fill(block, BLOCK / 2, 2);
    fill(block + BLOCK / 2, PAGE, 1);
    robust(block + BLOCK / 2 + PAGE / 2);
    locked = map_rw(PAGE);
    fill(locked, PAGE, 3);
    if (mlock(locked, PAGE)) {
        fprintf(stderr, "no memory can be locked here\n");
        return 77;
    }
    must(madvise(wiped, PAGE, MADV_WIPEONFORK) == 0);
    pid_t child = fork();
    if (child == 0) _exit(!(zero(wiped, PAGE) && mutex_works(kept)));
    succeeds(child);
    must(mutex_works(wiped));

    pthread_attr_t attributes;
    pthread_t thread;
    must(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, map_rw(STACK), STACK) == 0);
    must(pthread_barrier_init(&barrier, NULL, 2) == 0);
    must(pthread_create(&thread, &attributes, forks, NULL) == 0);
    pthread_barrier_wait(&barrier);
    give_up_locking();
    /* A stack of the program's has what the kernel writes to as well. */
    unsigned char *late_stack = map_rw(STACK);
    pthread_t late_thread;
    must(pthread_attr_setstack(&attributes, late_stack, STACK) == 0 && pthread_barrier_init(&end, NULL, 2) == 0);
    must(pthread_create(&late_thread, &attributes, rests, NULL) == 0 && stays(late_stack + STACK - PAGE));
    unsigned char *late = page_with_mutex();
    must(mutex_works(late));
    child = fork();
    if (child == 0) {
        must(zero(wiped, PAGE) && mutex_works(late));
        child = fork();
        if (child == 0) {
            uses_all();
            _exit(0);
        }
        succeeds(child);
        uses_all();
        _exit(0);
    }
    succeeds(child);
    must(mutex_works(wiped) && mutex_works(late));
    must(munlockall() == 0);
    uses_all();
    pthread_barrier_wait(&barrier);
    must(pthread_join(thread, NULL) == 0);
    must(stays(late_stack + STACK - PAGE));
    pthread_barrier_wait(&end);
    must(pthread_join(late_thread, NULL) == 0);
    return 0;
}
