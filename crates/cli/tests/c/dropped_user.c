/* dropped_user user|effective|past|root: gives up its user (past libc's functions for that), or its root directory, while it is small,
 * and grows then.
 * dropped_user starts: gives up its user, and starts a program that grows.
 * dropped_user server: gives up its user once it has a thread, as a server's worker, and grows to twice the limit. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

static void *nothing(void *argument) { return argument; }

static void server(int nobody) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    must(setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0);
    unsigned char *block = malloc(64 * MIB);
    fill(block, 64 * MIB, 5);
    must(holds(block, 64 * MIB, 5));
    int status;
    pid_t child = fork();
    if (child == 0) _exit(!holds(block, 64 * MIB, 5));
    must(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    must(argc == 2);
    const int nobody = 65534, own = open("/proc/self/exe", O_RDONLY);
    if (!strcmp(argv[1], "server")) {
        server(nobody);
        return 0;
    }
    if (!strcmp(argv[1], "started")) {
        must(getuid() == (uid_t)nobody);
    } else if (!strcmp(argv[1], "user") || !strcmp(argv[1], "starts")) {
        must(setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0);
    } else if (!strcmp(argv[1], "past")) {
        must(syscall(SYS_setresuid, nobody, nobody, nobody) == 0);
    } else if (!strcmp(argv[1], "effective")) {
        must(setegid(nobody) == 0 && seteuid(nobody) == 0);
    } else {
        must(chdir("/var/empty") == 0 || chdir("/mnt") == 0);
        must(chroot(".") == 0);
    }
    if (!strcmp(argv[1], "starts")) {
        // What this file's directory permits nobody to run, a descriptor does.
        must(fexecve(own, (char *[]){argv[0], "started", NULL}, environ) == 0);
    }
    unsigned char *block = malloc(64 * MIB);
    fill(block, 64 * MIB, 3);
    must(holds(block, 64 * MIB, 3));
    return 0;
}
