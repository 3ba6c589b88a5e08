/* What libc and the dynamic linker allocated for themselves is as good after a fork, however cold it is. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pwd.h>
#include <sys/wait.h>
#include <time.h>

static void look_up(void) {
    must(getpwnam("root") && getpwuid(0));
    must(getservbyname("http", "tcp") || errno != EFAULT);
    time_t now = time(NULL);
    must(localtime(&now));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    alarm(200);
    must(setenv("TZ", "Europe/Berlin", 1) == 0);
    look_up();
    must(dlopen("libm.so.6", RTLD_NOW) || dlopen("libc.so.6", RTLD_NOW));
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 4; j++) crowd();
        int pid = fork();
        must(pid >= 0);
        if (pid == 0) {
            look_up();
            must(getenv("TZ") && strcmp(getenv("TZ"), "Europe/Berlin") == 0);
            exit(0);
        }
        int status = -1;
        must(waitpid(pid, &status, 0) == pid && status == 0);
        look_up();
    }
    return 0;
}
