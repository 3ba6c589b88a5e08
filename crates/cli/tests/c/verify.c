/*
 * Fills memory with pages that follow from their numbers, a quarter of them without any order, says `filled`, waits for
 * a line on its standard input, and reads every page.
 *
 *     verify MIB      exit 0, or 3 and a line that names the first page that differed
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t word(uint64_t page, uint64_t index)
{
    uint64_t x = (page << 20 | index / 4) * 0x9e3779b97f4a7c15ull;
    return index % 4 ? page : x ^ x >> 29;
}

int main(int argc, char **argv)
{
    uint64_t pages = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 8;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 4;
    }
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t index = 0; index < WORDS; index++)
            memory[page * WORDS + index] = word(page, index);
    puts("filled");
    fflush(stdout);
    getchar();
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t index = 0; index < WORDS; index++)
            if (memory[page * WORDS + index] != word(page, index)) {
                printf("page %llu differs\n", (unsigned long long)page);
                return 3;
            }
    puts("all as written");
    return 0;
}
