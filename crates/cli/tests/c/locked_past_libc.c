/* All memory is locked by an instruction of the program's own: it is what it was, or the program ends with a line. */
#define _GNU_SOURCE
#include "check.h"
#include "raw.h"

#define SIZE (8 * MIB)

int main(int argc, char **argv) {
    arguments(argc, argv);
    unsigned char *at = map_rw(SIZE);
    fill(at, SIZE, 1);
    away(at, SIZE);
    must(raw(SYS_mlockall, MCL_CURRENT | MCL_FUTURE, 0, 0, 0, 0, 0) == 0);
    press();
    must(holds(at, SIZE, 1));
    return 0;
}
