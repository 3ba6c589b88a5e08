/* Forks beside a thread that flushes all streams. Libc holds its list of streams meanwhile, which a fork takes too, and the
   buffers do not fit into memory. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { STREAMS = 40, FORKS = 60 };

static FILE *streams[STREAMS];
static char *text;
static atomic_bool done;
static atomic_int rounds;

static void *flusher(void *argument) {
    (void)argument;
    while (!done) {
        for (int i = 0; i < STREAMS; i++) must(fwrite(text, 1, MIB - PAGE, streams[i]) == MIB - PAGE);
        must(fflush(NULL) == 0);
        for (int i = 0; i < STREAMS; i++) rewind(streams[i]);
        rounds++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    arguments(argc, argv);
    text = malloc(MIB);
    fill(text, MIB, 1);
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = fdopen(memfd_create("stream", 0), "r+");
        must(streams[i] && setvbuf(streams[i], malloc(MIB), _IOFBF, MIB) == 0);
    }
    pthread_t thread;
    must(pthread_create(&thread, NULL, flusher, NULL) == 0);
    for (int i = 0; i < FORKS || rounds < 3; i++) {
        pid_t child = fork();
        if (!child) {
            /* The list is free in the child. */
            FILE *other = fopen("/dev/null", "w");
            must(other && fputs("text", other) >= 0 && fclose(other) == 0);
            _exit(0);
        }
        int status;
        must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        usleep(3000);
    }
    done = true;
    must(pthread_join(thread, NULL) == 0);
    must(holds(text, MIB, 1));
    for (int i = 0; i < STREAMS; i++) {
        char *written = malloc(MIB);
        must(fread(written, 1, MIB - PAGE, streams[i]) == MIB - PAGE && memcmp(written, text, MIB - PAGE) == 0);
        must(fclose(streams[i]) == 0);
        free(written);
    }
    return 0;
}
