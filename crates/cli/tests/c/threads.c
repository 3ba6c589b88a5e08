/* Threads: allocation across threads, stacks of one's own, cancellation, fork beside busy threads, pthread_exit of
   the main thread. The argument "exit" runs the last part alone: the process must end with status 0. */
#define _GNU_SOURCE
#include "expect.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

static pthread_key_t key;
static _Atomic int destroyed;
static _Atomic int stop;

static void destroy(void *p) {
    free(p);
    free(malloc(100));
    destroyed++;
}

static void *allocate(void *seed) {
    pthread_setspecific(key, malloc(50));
    char *blocks[200] = {0};
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 20000; i++) {
        random = random * 1103515245 + 12345;
        unsigned at = random % 200;
        free(blocks[at]);
        blocks[at] = malloc((random >> 10) % 5000);
        if (blocks[at]) blocks[at][0] = 1;
    }
    /* Freed by another thread. */
    char **left = malloc(sizeof blocks);
    memcpy(left, blocks, sizeof blocks);
    return left;
}

static void join(pthread_t thread) {
    char **left = NULL;
    CHECK(pthread_join(thread, (void **)&left) == 0);
    for (int i = 0; left && i < 200; i++) free(left[i]);
    free(left);
}

static void many(void) {
    pthread_t threads[16];
    for (int round = 0; round < 4; round++) {
        for (uintptr_t i = 0; i < 16; i++) CHECK(pthread_create(&threads[i], NULL, allocate, (void *)(i + 1)) == 0);
        for (int i = 0; i < 16; i++) join(threads[i]);
    }
    CHECK(destroyed == 64);
}

static void own_stack(void) {
    size_t size = 1 << 20;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstack(&attr, stack, size) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, &attr, allocate, (void *)9) == 0);
    join(thread);
    pthread_attr_destroy(&attr);
    munmap(stack, size);
}

static void *sleeper(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

static void cancellation(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

static int c11(void *p) { return *(int *)p; }

static void c11_threads(void) {
    thrd_t thread;
    int value = 42, result = 0;
    CHECK(thrd_create(&thread, c11, &value) == thrd_success && thrd_join(thread, &result) == thrd_success);
    CHECK(result == 42);
}

static void *busy(void *unused) {
    (void)unused;
    while (!stop) {
        char *p = malloc(100), *q = malloc(2 << 20), *r = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (q) q[0] = 1;
        munmap(r, 65536);
        free(p);
        free(q);
    }
    return NULL;
}

/* A fork at any moment leaves the child a heap that works. */
static void forks(void) {
    pthread_t threads[4];
    char *known = malloc(1 << 20);
    fill(known, 1 << 20, 11);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, busy, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            int ok = filled(known, 1 << 20, 11);
            for (int j = 0; j < 1000; j++) free(malloc((size_t)j * 10));
            free(calloc(3, 1 << 20));
            FILE *f = fopen("/dev/null", "w");
            ok &= f && fprintf(f, "%d", i) > 0 && fclose(f) == 0;
            pthread_t thread;
            ok &= pthread_create(&thread, NULL, allocate, (void *)3) == 0 && pthread_join(thread, NULL) == 0;
            _exit(ok ? 0 : 1);
        }
        int status = -1;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    free(known);
}

static void *last(void *unused) {
    (void)unused;
    usleep(50000);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_key_create(&key, destroy);
    if (argc > 1 && strcmp(argv[1], "exit") == 0) {
        alarm(20);
        char *p = malloc((size_t)256 << 20); /* managed memory, so that there are threads beside the program's */
        memset(p, 1, (size_t)256 << 20);
        free(p);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
        if (failures) return 1;
        pthread_exit(NULL);
    }
    many();
    own_stack();
    cancellation();
    c11_threads();
    forks();
    return DONE;
}
