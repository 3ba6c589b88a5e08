/* A block grows to 150 MB step by step, and nothing of it is lost on the way. */
#include "check.h"

#define END (150 * 1000 * 1000ul)

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *block = NULL;
    size_t size = 0;
    for (size_t next = PAGE; size < END; next = next * 5 / 4 / PAGE * PAGE + PAGE) {
        if (next > END) next = END;
        block = realloc(block, next);
        must(block);
        for (size_t at = 0; at < size; at += PAGE) must(*(uint64_t *)(block + at) == at * 3);
        for (size_t at = (size + PAGE - 1) / PAGE * PAGE; at + 8 <= next; at += PAGE) {
            fill(block + at, at + PAGE <= next ? PAGE : (next - at) / 8 * 8, at);
            *(uint64_t *)(block + at) = at * 3;
        }
        size = next;
    }
    for (size_t at = 0; at + PAGE <= size; at += PAGE) {
        *(uint64_t *)(block + at) = word_at(at, 0);
        must(holds(block + at, PAGE, at));
    }
    block = realloc(block, 1000);
    must(block && holds(block, 1000 / 8 * 8, 0));
    free(block);
    return 0;
}
