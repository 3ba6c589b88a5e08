/* What the library keeps for each thread. Initial-exec: part of the thread's static block, so that an access is
   one instruction and never allocates. */

struct ramfold_thread {
    unsigned internal; /* depth: while non-zero, malloc and mmap serve ramfold itself */
    unsigned slot;     /* index into the heap gate's table; 0: none yet */
};

static __thread struct ramfold_thread thread;

struct ramfold_thread *ramfold_thread(void) { return &thread; }
