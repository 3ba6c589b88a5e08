/* Dies with a core that must hold what is away, and not what the program keeps out of it. Meanwhile all signals have the
   dispositions that the program knows. Arguments: PRESSURE_MIB abort|segv|kill. Prints the addresses of both. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

/* sigset is old, and still there. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

enum { PAGES = 1000 };

static volatile sig_atomic_t caught;

static void on_signal(int number) { caught = number; }

static void *write_to_null(void *unused) {
    (void)unused;
    *(volatile int *)8 = 1;
    return NULL;
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
    char *texts = map_rw(PAGES * PAGE), *secret = map_rw(PAGE);
    must(madvise(secret, PAGE, MADV_DONTDUMP) == 0);
    strcpy(secret, "not in the core");
    for (int i = 0; i < PAGES; i++) text_of(texts + i * PAGE, i);
    press();
    away(texts, PAGES * PAGE);
    dispositions();
    /* Some are back. */
    for (int i = 0; i < PAGES; i += 7) must(texts[i * PAGE] == 'i');
    printf("%lx %lx %d\n", (unsigned long)texts, (unsigned long)secret, PAGES);
    fflush(stdout);
    pthread_t thread;
    if (!strcmp(how, "segv")) must(pthread_create(&thread, NULL, write_to_null, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (!strcmp(how, "kill")) must(kill(getpid(), SIGQUIT) == 0);
    abort();
}
