/* dropped_user user|effective|root: gives up its user or its root directory while it is small, and grows then. */
#define _GNU_SOURCE
#include "check.h"

int main(int argc, char **argv) {
    must(argc == 2);
    const int nobody = 65534;
    if (!strcmp(argv[1], "user")) {
        must(setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0);
    } else if (!strcmp(argv[1], "effective")) {
        must(setegid(nobody) == 0 && seteuid(nobody) == 0);
    } else {
        must(chdir("/var/empty") == 0 || chdir("/mnt") == 0);
        must(chroot(".") == 0);
    }
    unsigned char *block = malloc(20 * MIB);
    fill(block, 20 * MIB, 3);
    must(holds(block, 20 * MIB, 3));
    return 0;
}
