/* What the library keeps for each thread, and where threads begin. */

#include "thread.h"

__thread struct ramfold_thread ramfold_thread;

/* Where libc keeps this thread's struct rseq; NULL before glibc 2.35. */
extern const long __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

void *ramfold_rseq(void) {
    if (!&__rseq_offset || !&__rseq_size || __rseq_size == 0) return 0;
    return (char *)__builtin_thread_pointer() + __rseq_offset;
}

/* Where a program thread begins. In C: pthread_exit and cancellation unwind through this frame with the program's own
   unwinder, and must find nothing in it that belongs to ours. */

struct ramfold_start {
    void *(*function)(void *);
    void *arg;
};

struct ramfold_start ramfold_started(void *package);

void *ramfold_begin(void *package) {
    struct ramfold_start start = ramfold_started(package);
    return start.function(start.arg);
}
