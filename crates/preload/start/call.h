/* A system call of our own, for both libraries: what libc has under the name of syscall is replaced by them. */

#ifndef RAMFOLD_CALL_H
#define RAMFOLD_CALL_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>

/* As libc's syscall() makes it: -1 and errno on failure. */
static inline long ramfold_call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    if ((unsigned long)result > -4096ul) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/* Of any machine. */
enum { SMALLEST_PAGE = 4096 };

/* Whether the kernel can read the word at this address: it reads a set of signals before it refuses what is to be done with
   it (as in Abseil's AddressIsReadable). Filters of system calls let the call through, which libc makes all the time. */
static inline int ramfold_is_readable(uintptr_t at) {
    enum { WORD = 8, NO_SUCH_THING_TO_DO = -1 };
    int before = errno, is_readable;
    if (at < WORD) return 0;
    errno = 0;
    ramfold_call(SYS_rt_sigprocmask, NO_SUCH_THING_TO_DO, (long)(at / WORD * WORD), 0, WORD, 0, 0);
    is_readable = errno != EFAULT;
    errno = before;
    return is_readable;
}

/* Copies a program's arguments as the kernel would read them. Not where they cannot be read: 0, and EFAULT. */
static inline int ramfold_copy(void *to, const void *from, size_t size) {
    uintptr_t at = (uintptr_t)from, end = at + size;
    for (; at < end; at = (at / SMALLEST_PAGE + 1) * SMALLEST_PAGE) {
        if (ramfold_is_readable(at)) continue;
        errno = EFAULT;
        return 0;
    }
    memcpy(to, from, size);
    return 1;
}

#endif
