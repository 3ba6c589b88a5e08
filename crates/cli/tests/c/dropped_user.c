/* dropped_user user|called|effective|past|root: gives up its user (by syscall(), past libc), or its root directory, while it is small,
 * and grows then.
 * dropped_user starts|sheds|bars|locks: gives up its user, or all that root may beyond another user (bars: for what it starts), or puts
 * itself under Landlock, and starts a program that grows.
 * dropped_user server: gives up its user once it has a thread, as a server's worker, and grows to twice the limit. */
#define _GNU_SOURCE
#include "check.h"

#include "raw.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int capset(cap_user_header_t, const cap_user_data_t);
int capget(cap_user_header_t, cap_user_data_t);

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

/* As a container's or a service's first process does. */
static void shed(void) {
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        must(prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    must(capset(&header, none) == 0);
}

static bool has_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[2];
    must(capget(&header, has) == 0);
    return has[0].effective || has[0].permitted;
}

/* It forbids to make sockets, and with that what lies outside of its domain (ptrace). False where the kernel has none. */
static bool locks(void) {
    struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK};
    int file = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    return file >= 0 && syscall(SYS_landlock_restrict_self, file, 0) == 0;
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
    } else if (!strcmp(argv[1], "shed")) {
        must(prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE, 0, 0, 0) == 0);
    } else if (!strcmp(argv[1], "barred")) {
        must(getuid() == 0 && !has_capabilities());
    } else if (!strcmp(argv[1], "locked")) {
        char path[16];
        must(readlink("/proc/1/exe", path, sizeof path) == -1 && errno == EACCES);
    } else if (!strcmp(argv[1], "sheds")) {
        shed();
    } else if (!strcmp(argv[1], "bars")) {
        must(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED, 0, 0, 0) == 0);
    } else if (!strcmp(argv[1], "locks")) {
        if (!locks()) return 0;
    } else if (!strcmp(argv[1], "user") || !strcmp(argv[1], "starts")) {
        must(setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0);
    } else if (!strcmp(argv[1], "called")) {
        must(syscall(SYS_setresuid, nobody, nobody, nobody) == 0);
    } else if (!strcmp(argv[1], "past")) {
        must(raw(SYS_setresuid, nobody, nobody, nobody, 0, 0, 0) == 0);
    } else if (!strcmp(argv[1], "effective")) {
        must(setegid(nobody) == 0 && seteuid(nobody) == 0);
    } else {
        must(chdir("/var/empty") == 0 || chdir("/mnt") == 0);
        must(chroot(".") == 0);
    }
    static char *const starts[][2] = {{"starts", "started"}, {"sheds", "shed"}, {"bars", "barred"}, {"locks", "locked"}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        // What this file's directory permits nobody to run, a descriptor does.
        if (!strcmp(argv[1], starts[i][0])) must(fexecve(own, (char *[]){argv[0], starts[i][1], NULL}, environ) == 0);
    unsigned char *block = malloc(64 * MIB);
    fill(block, 64 * MIB, 3);
    must(holds(block, 64 * MIB, 3));
    return 0;
}
