/* Streams that are open over a fork work in the child, other threads or not. */
#define _GNU_SOURCE
#include "expect.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *waits(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    FILE *file = tmpfile();
    char *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    FILE *files[100];
    for (int i = 0; i < 100; i++) files[i] = fopen("/dev/null", "r+");
    /* Enough cold memory that the heap's oldest pages leave where the limit is small. */
    size_t size = (size_t)48 << 20;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(p, size, 1);
    for (int i = 0; i < 5; i++) {
        CHECK(fprintf(file, "%d\n", i) > 0 && fprintf(memory, "%d\n", i) > 0);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            int ok = filled(p, size, 1);
            for (int j = 0; j < 100; j++) ok &= fputs("text", files[j]) >= 0 && fclose(files[j]) == 0;
            ok &= fflush(memory) == 0 && length == (size_t)(i + 1) * 2;
            ok &= fclose(memory) == 0;
            exit(ok ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        fflush(file);
    }
    rewind(file);
    int last = -1;
    while (fscanf(file, "%d", &last) == 1) {}
    CHECK(last == 4);
    FILE *command = popen("echo from a child", "r");
    char line[100] = "";
    CHECK(command && fgets(line, sizeof line, command) && strcmp(line, "from a child\n") == 0 && pclose(command) == 0);
    fclose(memory);
    CHECK(length == 10);
    free(text);
    return DONE;
}
