/* A program that is linked with a sanitizer is right, finds what is wrong, and what it starts is held. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int both;

static void *work(void *argument) {
    for (int i = 0; i < 1000; i++) {
        char *block = malloc(100 + i);
        memset(block, i, 100);
        if (argument) both += block[50];
        free(block);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, strcmp(how, "race") ? NULL : argv);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    size_t size = 40 << 20;
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(mapped, 7, size);
    if (mapped[size - 1] != 7) return 3;
    munmap(mapped, size);
    if (!strcmp(how, "start")) execvp(argv[2], argv + 2);
    char *volatile block = malloc(10);
    if (!strcmp(how, "overflow")) block[10] = 1;
    free(block);
    puts("right");
    return 0;
}
