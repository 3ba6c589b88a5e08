/* What the kernel writes into pages that it holds on to for a moment (process_vm_writev pins some at a time) is there,
   though the pages were about to leave when it began. Whether one is caught between the two is a matter of chance. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/uio.h>

enum { WRITERS = 3, PAGES = 2560, AT_ONCE = 64, WRITES = 8000 };

static void *writer(void *argument) {
    uint64_t random = 88172645463325252u + (uintptr_t)argument;
    unsigned char *memory = map_rw(PAGES * PAGE), *from = map_rw(AT_ONCE * PAGE);
    fill(memory, PAGES * PAGE, 1);
    must(mlock(from, AT_ONCE * PAGE) == 0);
    for (uint64_t number = 0; number < WRITES; number++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned char *to = memory + random % (PAGES - AT_ONCE) * PAGE;
        fill(from, AT_ONCE * PAGE, number);
        struct iovec local = {from, AT_ONCE * PAGE}, remote = {to, AT_ONCE * PAGE};
        must(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == AT_ONCE * PAGE);
        must(holds(to, AT_ONCE * PAGE, number));
    }
    return NULL;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    pthread_t threads[WRITERS];
    for (uintptr_t i = 0; i < WRITERS; i++) must(pthread_create(&threads[i], NULL, writer, (void *)i) == 0);
    for (int i = 0; i < WRITERS; i++) must(pthread_join(threads[i], NULL) == 0);
    return 0;
}
