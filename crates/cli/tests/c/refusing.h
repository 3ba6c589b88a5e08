/*
 * A filter of system calls that answers one of them with EPERM, and lets all others through.
 */
#ifndef REFUSING_H
#define REFUSING_H

#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* Its lines. */
#define REFUSING(call)                                                                                                \
    {                                                                                                                 \
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),                                        \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),                                                              \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),                                                         \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),                                                                 \
    }

/* Puts it before the calling thread, and what that starts. */
static inline void refuse(unsigned call) {
    struct sock_filter lines[] = REFUSING(call);
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

#endif
