/* What the library keeps for each thread, and where threads begin.

   Thread-local storage is initial-exec: part of the thread's static block, so that an access is
   one instruction and never allocates. */

struct ramfold_thread {
    unsigned internal; /* depth: while non-zero, malloc and mmap serve ramfold itself */
    unsigned slot;     /* index into the heap gate's table; 0: none yet */
};

static __thread struct ramfold_thread thread;

struct ramfold_thread *ramfold_thread(void) { return &thread; }

void *ramfold_thread_pointer(void) { return __builtin_thread_pointer(); }

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
