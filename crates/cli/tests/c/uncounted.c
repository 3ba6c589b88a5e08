/* Memory that is others' as well, and files: twice the limit of each, in use at once. It is not counted, and nobody is ended for it. */
#define _GNU_SOURCE
#include "check.h"

int main(int argc, char **argv) {
    arguments(argc, argv);
    size_t size = pressure_mib * MIB;
    int file = memfd_create("file", 0);
    must(file >= 0 && ftruncate(file, (off_t)size) == 0);
    unsigned char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char *written = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unsigned char *read_only = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    must(shared != MAP_FAILED && written != MAP_FAILED && read_only != MAP_FAILED);
    fill(shared, size, 1);
    fill(written, size, 2);
    must(holds(read_only, size, 2));
    press();
    must(resident(shared, size) == size / PAGE && resident(written, size) == size / PAGE);
    must(holds(shared, size, 1) && holds(written, size, 2));
    return 0;
}
