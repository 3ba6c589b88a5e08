// Programs that are started in other namespaces, where /proc/PID of `ramfold run` is not permitted, or is not there, are held as any:
// entered by unshare before an exec, by clone and clone3 of the child, through a shell, and once more from within. Who closes all
// descriptors on the way closes none of ramfold's through libc.
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

static char self[4096], megabytes[32];

// What is started: memory that has left comes back, its child's too.
static void held(void) {
    size_t size = 2 * MIB;
    unsigned char *memory = map_rw(size);
    for (size_t i = 0; i < size; i += PAGE) fill(memory + i, PAGE, i);
    away(memory, size);
    pid_t child = fork();
    must(child >= 0);
    for (size_t i = 0; i < size; i += PAGE) must(holds(memory + i, PAGE, i));
    if (child == 0) {
        press();
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void start(const char *what) {
    execl(self, self, megabytes, what, NULL);
    _exit(127);
}

static void ends_well(pid_t child) {
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t forked(void) {
    pid_t child = fork();
    must(child >= 0);
    return child;
}

static void by_unshare(int flags) {
    pid_t child = forked();
    if (child) return ends_well(child);
    must(unshare(flags) == 0);
    must(close_range(3, ~0u, 0) == 0);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    if (flags & CLONE_NEWPID) {
        pid_t first = forked();
        if (first) {
            ends_well(first);
            _exit(0);
        }
        if (flags & CLONE_NEWNS) {
            must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
            must(mount("proc", "/proc", "proc", 0, NULL) == 0);
        }
    }
    start("held");
}

// Only who is somebody in a user namespace may make another.
static void map_user(pid_t child, const char *file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", child, file);
    int fd = open(path, O_WRONLY);
    must(fd >= 0 && write(fd, "0 0 1", 5) == 5 && close(fd) == 0);
}

static void by_call(long number) {
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    } process = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    int mapped[2];
    must(pipe(mapped) == 0);
    pid_t child = number == SYS_clone3 ? syscall(number, &process, sizeof process)
                                       : syscall(number, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child) {
        map_user(child, "uid_map");
        map_user(child, "gid_map");
        must(close(mapped[0]) == 0 && write(mapped[1], "", 1) == 1 && close(mapped[1]) == 0);
        return ends_well(child);
    }
    must(read(mapped[0], megabytes + sizeof megabytes - 1, 1) == 1);
    start("again");
}

static int in_child(void *argument) {
    (void)argument;
    execl("/bin/sh", "sh", "-c", "exec 3</dev/null; \"$0\" $1 held && exec \"$0\" $1 held", self, megabytes, NULL);
    return 127;
}

static void by_clone(void) {
    static unsigned char stack[256 << 10];
    ends_well(clone(in_child, stack + sizeof stack, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, NULL));
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    must(readlink("/proc/self/exe", self, sizeof self - 1) > 0 || argc > 2);
    snprintf(megabytes, sizeof megabytes, "%zu", pressure_mib);
    if (argc > 2) {
        if (strcmp(argv[2], "again") == 0) {
            // The process is the pager's before it goes on.
            held();
            by_unshare(CLONE_NEWUSER);
        }
        held();
        return 0;
    }
    by_unshare(CLONE_NEWUSER);
    by_unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS);
    by_call(SYS_clone);
    by_call(SYS_clone3);
    by_clone();
    // Now that this process has memory of its own.
    held();
    by_unshare(CLONE_NEWUSER);
    puts("ok");
    return 0;
}
