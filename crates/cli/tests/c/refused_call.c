/* refused_call PROGRAM [ARGUMENT...]: starts it behind a filter that answers userfaultfd with EPERM, as many a container's does. */
#include "refusing.h"

int main(int argc, char **argv) {
    must(argc > 1);
    refuse(SYS_userfaultfd);
    execvp(argv[1], argv + 1);
    return 127;
}
