/* A limit of address space (RLIMIT_AS) holds for what the program maps, is told back, goes on to children, and nothing else fails
 * for it. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { GIB = 1 << 30 };

extern char **environ;
static const struct rlimit four = {4ul * GIB, 6ul * GIB};

static bool limited_to(rlim_t soft) {
    struct rlimit limit, same;
    must(getrlimit(RLIMIT_AS, &limit) == 0 && prlimit(getpid(), RLIMIT_AS, NULL, &same) == 0);
    return limit.rlim_cur == soft && same.rlim_cur == soft && limit.rlim_max == four.rlim_max;
}

static int status_of(pid_t child) {
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void *nothing(void *argument) {
    return argument;
}

static void what_can_be_had(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    must(dlopen("libresolv.so.2", RTLD_NOW));
    unsigned char *block = malloc(8 * MIB);
    must(block);
    fill(block, 8 * MIB, 1);
    press();
    must(holds(block, 8 * MIB, 1));
    free(block);
}

static void what_cannot(void) {
    enum { MOST = 64 };
    void *mapped[MOST];
    int count = 0;
    must(mmap(NULL, 5ul * GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    must(malloc(5ul * GIB) == NULL && errno == ENOMEM);
    for (; count < MOST; count++) {
        mapped[count] = mmap(NULL, GIB / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped[count] == MAP_FAILED) break;
    }
    must(count > 8 && count < 16);
    must(realloc(malloc(4 * MIB), 2ul * GIB) == NULL && errno == ENOMEM);
    must(mremap(mapped[0], GIB / 4, GIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    while (count) must(munmap(mapped[--count], GIB / 4) == 0);
    void *again = mmap(NULL, 2ul * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(again != MAP_FAILED && munmap(again, 2ul * GIB) == 0);
}

/* Small blocks, and what was freed of them. */
static void small_blocks(void) {
    void **first = NULL, **block;
    size_t count = 0;
    struct rlimit tight = {0, four.rlim_max}, now;
    must(getrlimit(RLIMIT_AS, &now) == 0);
    /* 64 MiB more than the process has. */
    long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    must(file && fscanf(file, "%ld", &pages) == 1 && fclose(file) == 0);
    tight.rlim_cur = getenv("EXPECT_EVICTED") ? 160 * MIB : (rlim_t)pages * PAGE + 64 * MIB;
    must(setrlimit(RLIMIT_AS, &tight) == 0);
    while (count < 1 << 20 && (block = malloc(1000))) {
        *block = first;
        first = block;
        count++;
    }
    must(count > 10000 && count < 1 << 20);
    while (first) {
        block = *first;
        free(first);
        first = block;
    }
    must(setrlimit(RLIMIT_AS, &now) == 0);
}

static void children(const char *self) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit less = {2ul * GIB, four.rlim_max};
        must(limited_to(four.rlim_cur) && setrlimit(RLIMIT_AS, &less) == 0 && limited_to(less.rlim_cur));
        execl(self, self, "exec", "2", NULL);
        _exit(127);
    }
    must(status_of(child) == 0 && limited_to(four.rlim_cur));
    char *arguments[] = {(char *)self, "exec", "4", NULL};
    must(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    char *bare[] = {NULL};
    must(posix_spawn(&child, self, NULL, NULL, arguments, bare) == 0 && status_of(child) == 0);
    child = vfork();
    if (child == 0) {
        struct rlimit less = {3ul * GIB, four.rlim_max};
        if (setrlimit(RLIMIT_AS, &less)) _exit(1);
        execl(self, self, "exec", "3", NULL);
        _exit(127);
    }
    must(status_of(child) == 0 && limited_to(four.rlim_cur));
}

int main(int argc, char **argv) {
    if (argc > 2) {
        must(limited_to(strtoul(argv[2], NULL, 10) * GIB));
        what_can_be_had();
        return 0;
    }
    arguments(argc, argv);
    struct rlimit wrong = {2, 1}, before;
    must(getrlimit(RLIMIT_AS, &before) == 0);
    if (before.rlim_max < four.rlim_max) {
        fprintf(stderr, "the address space is limited here\n");
        return 77;
    }
    what_can_be_had();
    must(setrlimit(RLIMIT_AS, &four) == 0 && limited_to(four.rlim_cur));
    must(setrlimit(RLIMIT_AS, &wrong) == -1 && errno == EINVAL && limited_to(four.rlim_cur));
    what_can_be_had();
    what_cannot();
    small_blocks();
    children(argv[0]);
    what_can_be_had();
    return 0;
}
