//! The engine that `ramfold run` puts into programs that need memory.
//!
//! A first, small library (start/, in C) is in every program; it loads this one before the program takes more than a
//! little, and its slots lead here from then on. This library stands between the program and libc, and turns calls
//! into those of the pager (ramfold-pager), which holds the memory. What it replaces, and why:
//!
//! | names | why | file |
//! |---|---|---|
//! | malloc, free and their family | the heap lies in managed memory | heap.rs, large.rs |
//! | mmap and its family, brk, sbrk | so does other private anonymous memory | mappings.rs, request.rs, brk.rs |
//! | shmat, shmdt | what is attached inside managed memory is not the pager's | shared.rs |
//! | `_Fork`, clone, syscall, fork's handlers | the child needs its own copy | fork.rs, clone.c, gate.rs |
//! | clone | what shares the memory may outlive this process | guests.rs |
//! | prctl, syscall | a filter of system calls is not to meet the pager | filters.rs, deputy.rs, clone.c |
//! | pthread_create, thrd_create | their tables are not managed; threads are counted | threads.rs, libc_threads.rs |
//! | `pthread_mutex_init`, syscall | the kernel waits for no page of a futex that it writes to | futexes.rs, clone.c |
//! | fopen and its family | so do streams | streams.rs |
//! | fopen | a program reads how many threads it has | own_stat.rs |
//! | close, dup2, close_range, ... | the pager's descriptors stay open | descriptors.rs |
//! | sigaction, signal, sysv_signal, sigset | what is away is in a core dump all the same | cores.rs |
//! | unshare, setns | the kernel refuses some of it to a process with threads | namespaces.rs |
//! | chroot | the pager goes on in the /proc of before | namespaces.rs |
//!
//! The first library itself replaces more:
//!
//! | names | why | file |
//! |---|---|---|
//! | open and its family, fcntl | no direct I/O into pages that are copied | start/direct.c |
//! | setrlimit, getrlimit, prlimit | the limit of address space is kept by ramfold | start/limits.c |
//! | exec*, posix_spawn | children stay under the limit | start/exec.c |
//! | setuid's family, capset, prctl | who gives up root or its rights is held afterwards | start/users.c, carry.c |
//!
//! What holds a lock that the pager's threads need runs on a stack of ramfold's own (stack.rs), with signals blocked.
//!
//! Order of locks: libc's list of streams, the heap's gate, large blocks, the break, the pager, the internal allocator.
//! Nothing here calls into libc's allocating functions while it holds one, unless it is internal (tls.rs).

mod address_space;
mod bond;
mod brk;
mod cores;
mod deputy;
mod descriptors;
mod ending;
mod environ;
mod filters;
mod fork;
mod futexes;
mod gate;
mod guests;
mod heap;
mod host;
mod init;
mod internal;
mod large;
mod libc_data;
mod libc_threads;
mod loader;
mod lock;
mod low;
mod management;
mod mappings;
mod namespaces;
mod own_stat;
mod pager;
mod real;
mod request;
mod running;
mod shared;
mod stack;
mod streams;
mod sys;
mod threads;
mod tls;
mod untraced;
mod users;
