/* Dies with a core that must hold what is away, and not what the program keeps out of it. Meanwhile all signals have the
   dispositions that the program knows. Arguments: PRESSURE_MIB abort|segv|kill; in ways in which what is away is left out,
   partial (coredump_filter has no shared memory), blocked (its signal), deep (no stack is left), pieces (too many).
   Prints the addresses of both, how many pages of text there are, and how many pages from one to the next. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

/* sigset is old, and still there. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

enum { PAGES = 1000, PIECES = 33500 };

static volatile sig_atomic_t caught;

static void on_signal(int number) { caught = number; }

static void *write_to_null(void *unused) {
    (void)unused;
    *(volatile int *)8 = 1;
    return NULL;
}

static int deep(volatile int depth) {
    volatile char frame[1024];
    frame[0] = (char)depth;
    return depth < 0 ? 0 : deep(depth + 1) + frame[0];
}

static void die_of_a_blocked_signal(void) {
    sigset_t set;
    must(sigemptyset(&set) == 0 && sigaddset(&set, SIGSEGV) == 0 && sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    write_to_null(NULL);
}

static void leave_out_shared_memory(void) {
    FILE *filter = fopen("/proc/self/coredump_filter", "w");
    must(filter && fputs("0x31", filter) > 0 && fclose(filter) == 0);
}

static void *disposition(int number) {
    struct sigaction action;
    must(sigaction(number, NULL, &action) == 0);
    return (void *)action.sa_handler;
}

/* What the program sets is what it finds, and what is run. */
static void dispositions(void) {
    must(disposition(SIGSEGV) == (void *)SIG_DFL && disposition(SIGTERM) == (void *)SIG_DFL);
    must(signal(SIGQUIT, on_signal) == SIG_DFL && disposition(SIGQUIT) == (void *)on_signal);
    must(raise(SIGQUIT) == 0 && caught == SIGQUIT);
    must(signal(SIGQUIT, SIG_DFL) == on_signal && disposition(SIGQUIT) == (void *)SIG_DFL);
    must(sysv_signal(SIGSYS, on_signal) == SIG_DFL && raise(SIGSYS) == 0 && caught == SIGSYS);
    must(disposition(SIGSYS) == (void *)SIG_DFL);
    must(signal(SIGXFSZ, SIG_IGN) == SIG_DFL && raise(SIGXFSZ) == 0 && signal(SIGXFSZ, SIG_DFL) == SIG_IGN);
    must(sigset(SIGXCPU, SIG_HOLD) == SIG_DFL && disposition(SIGXCPU) == (void *)SIG_DFL);
}

static void text_of(char *page, int number) {
    for (int part = 0; part < 64; part++) sprintf(page + part * 64, "in the core: %d.%d", number, part);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    const char *how = argc > 2 ? argv[2] : "";
    /* Whoever started this may ignore some. */
    for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
    struct rlimit core;
    must(getrlimit(RLIMIT_CORE, &core) == 0);
    if (core.rlim_max == 0) core.rlim_max = RLIM_INFINITY;
    core.rlim_cur = core.rlim_max;
    must(setrlimit(RLIMIT_CORE, &core) == 0);
    size_t pages = strcmp(how, "pieces") ? PAGES : PIECES, apart = pages == PAGES ? 1 : 2;
    char *texts = map_rw(pages * apart * PAGE), *secret = map_rw(PAGE);
    must(madvise(secret, PAGE, MADV_DONTDUMP) == 0);
    strcpy(secret, "not in the core");
    for (size_t i = 0; i < pages; i++) text_of(texts + i * apart * PAGE, (int)i);
    press();
    away(texts, pages * apart * PAGE);
    /* What lies between has been touched by nobody, and is told so: memory may have come there unasked. */
    for (size_t i = 0; apart > 1 && i < pages; i++) must(madvise(texts + (i * apart + 1) * PAGE, PAGE, MADV_DONTNEED) == 0);
    dispositions();
    /* Some are back. */
    for (int i = 0; i < PAGES; i += 7) must(texts[i * apart * PAGE] == 'i');
    printf("%lx %lx %zu %zu\n", (unsigned long)texts, (unsigned long)secret, pages, apart);
    fflush(stdout);
    if (!strcmp(how, "partial")) leave_out_shared_memory();
    if (!strcmp(how, "blocked")) die_of_a_blocked_signal();
    if (!strcmp(how, "deep")) return deep(0);
    pthread_t thread;
    if (!strcmp(how, "segv")) must(pthread_create(&thread, NULL, write_to_null, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (!strcmp(how, "kill")) must(kill(getpid(), SIGQUIT) == 0);
    abort();
}
