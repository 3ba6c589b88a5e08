/* How many threads a program reads that it has, in /proc/self/stat as a stream: its own. */
#include "expect.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* As CPython reads it. The rest must be a process's. */
static int threads(const char *mode) {
    char line[4096], name[64], state;
    int next = dup(0), pid = 0, parent = 0, count = -1;
    close(next);
    FILE *stream = fopen("/proc/self/stat", mode);
    if (!stream) return -1;
    CHECK(fileno(stream) == next);
    CHECK(!(fcntl(fileno(stream), F_GETFD) & FD_CLOEXEC) == !strchr(mode, 'e'));
    CHECK(fgets(line, sizeof line, stream) && strchr(line, '\n') && fgetc(stream) == EOF);
    CHECK(sscanf(line, "%d %63s %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &pid, name, &state, &parent, &count) == 5);
    CHECK(pid == getpid() && parent == getppid() && state == 'R');
    fclose(stream);
    return count;
}

static pthread_barrier_t begun, ends;

static void *waits(void *unused) {
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&ends);
    return unused;
}

int main(void) {
    size_t size = (size_t)64 << 20;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(p, size, 1);
    CHECK(threads("r") == 1);
    CHECK(threads("re") == 1);
    CHECK(threads("rb") == 1);
    /* A file may hold nothing: the copy is no reason to be ended. */
    struct rlimit all, none = {0, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_FSIZE, &all) == 0 && setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK(threads("r") >= 1);
    CHECK(setrlimit(RLIMIT_FSIZE, &all) == 0);
    pthread_t thread;
    pthread_barrier_init(&begun, NULL, 2);
    pthread_barrier_init(&ends, NULL, 2);
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    pthread_barrier_wait(&begun);
    CHECK(threads("r") == 2);
    pid_t child = fork();
    if (child == 0) _exit(threads("r") == 1 ? DONE : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pthread_barrier_wait(&ends);
    pthread_join(thread, NULL);
    /* A thread is counted for a moment after it was joined. */
    int left = 1000;
    while (threads("r") != 1 && --left) usleep(1000);
    CHECK(left > 0);
    CHECK(filled(p, size, 1));
    return DONE;
}
