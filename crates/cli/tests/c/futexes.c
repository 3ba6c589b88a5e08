/* Futexes that the kernel itself changes are there when it does: robust mutexes, those that inherit priorities, and what is
   called by syscall(). */
#define _GNU_SOURCE
#include "check.h"

#include <linux/futex.h>
#include <pthread.h>

static long call(int *word, int operation, int value, long second_value, int *second, int third_value) {
    return syscall(SYS_futex, word, operation, value, second_value, second, third_value);
}

static int *word_away(int value) {
    int *word = map_rw(PAGE);
    *word = value;
    away(word, PAGE);
    return word;
}

static void by_syscall(void) {
    int own = gettid();
    for (int flag = 0; flag <= FUTEX_PRIVATE_FLAG; flag += FUTEX_PRIVATE_FLAG) {
        int *first = word_away(1), *second = word_away(5);
        must(call(first, FUTEX_WAKE_OP | flag, 1, 1, second, FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 5)) == 0);
        must(*second == 8);
        away(first, PAGE);
        away(second, PAGE);
        must(call(first, FUTEX_CMP_REQUEUE_PI | flag, 1, 1, second, 1) == 0);
        int *owned = word_away(0);
        must(call(owned, FUTEX_LOCK_PI | flag, 0, 0, NULL, 0) == 0 && *owned == own);
        away(owned, PAGE);
        must(call(owned, FUTEX_UNLOCK_PI | flag, 0, 0, NULL, 0) == 0 && *owned == 0);
        int *fresh = map_rw(PAGE);
        must(call(fresh, FUTEX_LOCK_PI | flag, 0, 0, NULL, 0) == 0 && *fresh == own);
        must(munmap(fresh, PAGE) == 0);
        must(call(fresh, FUTEX_LOCK_PI | flag, 0, 0, NULL, 0) == -1 && errno == EFAULT);
    }
}

static pthread_mutex_t *mutex_of(int protocol, int robust) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t *mutex = map_rw(PAGE);
    must(pthread_mutexattr_init(&attributes) == 0);
    must(pthread_mutexattr_setprotocol(&attributes, protocol) == 0);
    must(pthread_mutexattr_setrobust(&attributes, robust) == 0);
    must(pthread_mutex_init(mutex, &attributes) == 0);
    return mutex;
}

static pthread_barrier_t barrier;

static void *leaves_locked(void *mutex) {
    must(pthread_mutex_lock(mutex) == 0);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* The thread ends long after it has touched the mutex. */
static void owner_ends(int protocol) {
    pthread_mutex_t *mutex = mutex_of(protocol, PTHREAD_MUTEX_ROBUST), *beside = map_rw(PAGE);
    memset(beside, 1, PAGE);
    pthread_t thread;
    must(pthread_barrier_init(&barrier, NULL, 2) == 0);
    must(pthread_create(&thread, NULL, leaves_locked, mutex) == 0);
    pthread_barrier_wait(&barrier);
    away(beside, PAGE);
    pthread_barrier_wait(&barrier);
    must(pthread_join(thread, NULL) == 0);
    must(pthread_mutex_trylock(mutex) == EOWNERDEAD);
    must(pthread_mutex_consistent(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
    must(munmap(mutex, PAGE) == 0 && munmap(beside, PAGE) == 0);
}

static void inherits(void) {
    pthread_mutex_t *mutex = mutex_of(PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED), *other = map_rw(PAGE);
    memset(other, 1, PAGE);
    away(other, PAGE);
    must(resident(mutex, PAGE) == 1);
    /* It is memory of the program's all the same. */
    must(madvise(mutex, PAGE, MADV_DONTNEED) == 0 && zero(mutex, PAGE));
    memset(mutex, 1, PAGE);
    away(mutex, PAGE);
    must(munmap(mutex, PAGE) == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    press();
    by_syscall();
    owner_ends(PTHREAD_PRIO_NONE);
    owner_ends(PTHREAD_PRIO_INHERIT);
    inherits();
    return 0;
}
