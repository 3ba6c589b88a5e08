/* Whose memory this is.
 *
 * The child of vfork, and of clone with CLONE_VM, runs in its parent's memory, as a process of its own: a thread that it
 * started would end with it, and a descriptor that it opened is not the parent's. So such a guest neither loads the engine nor
 * begins management: its parent does, later. Who owns the memory is written on a page that the kernel wipes in every copy of the
 * process, even in one that is made by the program's own instructions. */

#define _GNU_SOURCE
#include "start.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct ramfold_own fallback;
struct ramfold_own *ramfold_own = &fallback;

static int own_pid(void) { return (int)ramfold_call(SYS_getpid, 0, 0, 0, 0, 0, 0); }

void ramfold_own_memory(void) {
    if (ramfold_own == &fallback) {
        long size = 4096, flags = MAP_PRIVATE | MAP_ANONYMOUS;
        long page = ramfold_call(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (page != -1 && ramfold_call(SYS_madvise, page, size, MADV_WIPEONFORK, 0, 0, 0) == 0)
            ramfold_own = (struct ramfold_own *)page;
    }
    if (ramfold_own != &fallback) ramfold_own->owner = own_pid();
}

int ramfold_is_guest(void) {
    int pid = own_pid(), expected = 0;
    return !__atomic_compare_exchange_n(&ramfold_own->owner, &expected, pid, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
           expected != pid && ramfold_own != &fallback;
}
