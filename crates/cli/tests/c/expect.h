/* CHECK prints what failed and counts; DONE is the exit status. */
#ifndef EXPECT_H
#define EXPECT_H
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s (errno: %s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            failures++;                                                                         \
        }                                                                                       \
    } while (0)

#define DONE (failures != 0)

/* Memory with a pattern that depends on its position, and the check of it. */
static inline void fill(void *p, size_t bytes, unsigned seed) {
    unsigned *words = p;
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = (unsigned)(i * 2654435761u) ^ seed;
}

static inline int filled(const void *p, size_t bytes, unsigned seed) {
    const unsigned *words = p;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if (words[i] != ((unsigned)(i * 2654435761u) ^ seed)) return 0;
    return 1;
}

static inline int zero(const void *p, size_t bytes) {
    const char *c = p;
    for (size_t i = 0; i < bytes; i++)
        if (c[i]) return 0;
    return 1;
}
#endif
