/* What one process has dropped in the swap file, a little of each extent alive, is there for another that needs the room:
   sleepers clean their extents before anybody is refused. */
#include "check.h"

#include <sys/wait.h>

enum { KEPT = 16 };

static unsigned char *filled(size_t size, uint64_t number) {
    unsigned char *all = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(all + i, PAGE, number + i);
    return all;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t size = pressure_mib * MIB;
    int ready[2], go[2];
    char byte;
    must(pipe(ready) == 0 && pipe(go) == 0);
    pid_t sleeper = fork();
    must(sleeper >= 0);
    if (!sleeper) {
        close(go[1]);
        unsigned char *all = filled(size, 1);
        for (size_t i = 0; i < size; i += KEPT * PAGE) must(madvise(all + i + PAGE, (KEPT - 1) * PAGE, MADV_DONTNEED) == 0);
        must(write(ready[1], "", 1) == 1 && read(go[0], &byte, 1) == 0);
        for (size_t i = 0; i < size; i += KEPT * PAGE) must(holds(all + i, PAGE, 1 + i));
        _exit(0);
    }
    close(ready[1]);
    must(read(ready[0], &byte, 1) == 1);
    unsigned char *all = filled(size, 7);
    for (size_t i = 0; i < size; i += PAGE) must(holds(all + i, PAGE, 7 + i));
    close(go[1]);
    int status;
    must(waitpid(sleeper, &status, 0) == sleeper && status == 0);
    return 0;
}
