/* Memory with a protection key (pkeys(7)), as V8 has its code in: it leaves and comes back, whoever may use it just then; the key
   stays with it, through mprotect, MADV_DONTNEED, mremap and fork, and goes with it. Where the processor has no keys, nothing is
   refused: pkey_mprotect takes -1 alone then, for which it is mprotect. */
#define _GNU_SOURCE
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#define SIZE (8 * MIB)
/* Shared memory counts for who looks from outside, and is not held. */
#define FILE_SIZE (16 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

static int key, default_key;
static bool has_keys;
static sigjmp_buf refused;
static volatile siginfo_t told;

static void rights(unsigned denied) {
    if (has_keys) must(pkey_set(key, denied) == 0);
}

static void on_refusal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    told = *info;
    siglongjmp(refused, 1);
}

/* Whether a read, or a write, of the byte is refused because of the key. */
static bool is_refused(volatile unsigned char *at, bool writes, unsigned denied) {
    if (sigsetjmp(refused, 1)) {
        /* A handler begins with the rights of a new process. */
        rights(0);
        return told.si_code == SEGV_PKUERR && told.si_pkey == (unsigned)key;
    }
    rights(denied);
    if (writes) *at = 1;
    else (void)*at;
    rights(0);
    return false;
}

static void check_key(unsigned char *at) {
    if (!has_keys) return;
    must(is_refused(at, false, PKEY_DISABLE_ACCESS));
    must(is_refused(at, true, PKEY_DISABLE_WRITE));
    must(!is_refused(at, false, PKEY_DISABLE_WRITE));
}

static void comes_back(unsigned char *at, uint64_t number, unsigned denied) {
    rights(denied);
    press();
    away(at, PAGE);
    if (denied) check_key(at + PAGE);
    rights(0);
    must(holds(at, SIZE, number));
}

static void check_in_child(unsigned char *at, uint64_t number) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        must(holds(at, SIZE, number));
        check_key(at);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    struct sigaction action = {.sa_sigaction = on_refusal, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGSEGV, &action, NULL) == 0);
    key = pkey_alloc(0, 0);
    has_keys = key > 0;
    if (!has_keys) key = default_key = -1;
    unsigned char *at = map(SIZE, PROT_NONE, MAP_NORESERVE);
    must(pkey_mprotect(at, SIZE, PROT_NONE, key) == 0);
    must(pkey_mprotect(at, SIZE, RW, key) == 0);
    must(pkey_mprotect(at, SIZE, RW, 15) == -1 && errno == EINVAL);
    fill(at, SIZE, 1);
    check_key(at);
    comes_back(at, 1, 0);
    comes_back(at, 1, PKEY_DISABLE_WRITE);
    comes_back(at, 1, PKEY_DISABLE_ACCESS);
    must(mprotect(at, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    comes_back(at, 1, PKEY_DISABLE_ACCESS);
    check_key(at);
    must(syscall(SYS_pkey_mprotect, at, SIZE, PROT_READ, key) == 0);
    press();
    away(at, PAGE);
    if (has_keys) must(is_refused(at, false, PKEY_DISABLE_ACCESS));
    must(holds(at, SIZE, 1));
    must(mprotect(at, SIZE, RW) == 0);
    press();
    check_in_child(at, 1);

    at = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    must(at != MAP_FAILED && holds(at, SIZE, 1) && zero(at + SIZE, SIZE));
    check_key(at);
    check_key(at + SIZE);
    fill(at, SIZE, 2);
    comes_back(at, 2, PKEY_DISABLE_ACCESS);
    must(madvise(at, SIZE, MADV_DONTNEED) == 0 && zero(at, SIZE));
    check_key(at);

    /* What is mapped there next has the default key. */
    must(munmap(at + SIZE, SIZE) == 0);
    must(mmap(at, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    rights(PKEY_DISABLE_ACCESS);
    fill(at, SIZE, 3);
    unsigned char *next = map_rw(SIZE);
    fill(next, SIZE, 4);
    press();
    must(holds(at, SIZE, 3) && holds(next, SIZE, 4));
    rights(0);
    /* A file over it has a key as other memory has. */
    int file = memfd_create("file", 0);
    must(file >= 0 && ftruncate(file, FILE_SIZE) == 0);
    must(mmap(at, FILE_SIZE, RW, MAP_SHARED | MAP_FIXED, file, 0) == at);
    must(pkey_mprotect(at, FILE_SIZE, RW, key) == 0);
    check_key(at);
    must(pkey_mprotect(at, FILE_SIZE, RW, default_key) == 0);
    rights(PKEY_DISABLE_ACCESS);
    must(zero(at, FILE_SIZE));
    rights(0);

    must(pkey_mprotect(next, SIZE, RW, key) == 0);
    check_key(next);
    must(pkey_mprotect(next, SIZE, RW, default_key) == 0);
    rights(PKEY_DISABLE_ACCESS);
    must(holds(next, SIZE, 4));
    press();
    must(holds(next, SIZE, 4));
    return 0;
}
