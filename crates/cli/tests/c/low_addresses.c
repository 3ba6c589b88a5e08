// A heap that is wanted below 2 GiB (MAP_32BIT), and goes elsewhere when there is no more of that: as Chez Scheme's.
#define _GNU_SOURCE
#include "check.h"

enum { CHUNK = 1024 * 1024, WORDS = CHUNK / 8 };

static uint64_t word(size_t chunk, size_t at) { return at % 64 ? chunk * 64 + at / 512 : (chunk << 20 | at) * 0x9e3779b97f4a7c15u; }

static uint64_t *chunk_at(int flags) {
    void *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    static uint64_t *chunk[1024];
    size_t count = pressure_mib * 2, low = 0;
    must(count <= 1024);
    for (size_t i = 0; i < count; i++) {
        if ((chunk[i] = chunk_at(MAP_32BIT)) != NULL) {
            must((uintptr_t)chunk[i] < 1ul << 31);
            low++;
        } else {
            must(errno == ENOMEM);
            chunk[i] = chunk_at(0);
            must(chunk[i] != NULL);
        }
        for (size_t at = 0; at < WORDS; at++) chunk[i][at] = word(i, at);
    }
    must(low >= 4);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < WORDS; at++) must(chunk[i][at] == word(i, at));
    // What is given back can be had again, and what is not touched is no memory.
    for (size_t i = 0; i < count; i++) must(munmap(chunk[i], CHUNK) == 0);
    void *reserved = mmap(NULL, 200 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT | MAP_NORESERVE, -1, 0);
    must(reserved != MAP_FAILED);
    for (size_t i = 0; i < 4; i++) must((chunk[i] = chunk_at(MAP_32BIT)) != NULL && *chunk[i] == 0);
    puts("ok");
    return 0;
}
