// A program whose memory others look at: texts in blocks of which most are away, printed by their addresses. It goes on
// writing to some of them, so that pages leave and come, and looks at all when its standard input ends.
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 800, SIZE = 60000 };

static char *block[COUNT];

static void text(char *to, int number) { snprintf(to, 32, "seen %d", number); }

int main(void) {
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < COUNT; i++) {
        block[i] = malloc(SIZE);
        for (int at = 0; at < SIZE / 2; at++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            block[i][at] = (char)random;
        }
        memset(block[i] + SIZE / 2, 0, SIZE / 2);
        text(block[i], i);
    }
    for (int i = 0; i < COUNT; i++) printf("%p\n", (void *)block[i]);
    printf("end\n");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (unsigned turn = 0; poll(&input, 1, 1) == 0; turn++) block[turn * 7919 % COUNT][SIZE - 1 - turn % 100]++;
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        char own[32];
        text(own, i);
        wrong += strcmp(own, block[i]) != 0;
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
