/* What the library keeps for each thread (tls.rs has the same).

   Thread-local storage is initial-exec: part of the thread's static block, so that an access is
   one instruction and never allocates. */

#ifndef RAMFOLD_THREAD_H
#define RAMFOLD_THREAD_H

struct ramfold_thread {
    unsigned internal;      /* depth: while non-zero, malloc and mmap serve ramfold itself */
    unsigned stream_blocks; /* blocks of malloc that may be a stream's (streams.rs) */
    unsigned slot;          /* index into the heap gate's table; 0: none yet */
    unsigned masked;        /* depth: while non-zero, all signals are blocked and the thread cannot be cancelled */
    unsigned long long mask; /* what was blocked before */
    int cancelstate;         /* whether it could be cancelled before */
    unsigned in_shared;      /* depth inside the heap, of a thread without a slot of its own */
    unsigned tid;            /* the thread that is counted (threads.rs); 0: none */
    _Bool off_stack;         /* runs on a stack of ramfold's own */
};

extern __thread struct ramfold_thread ramfold_thread;

#endif
