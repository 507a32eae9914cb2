/* A guest in a strict house: files, threads and children, under tools that watch memory, descriptors and threads. It tells
 * what it finds, which must not depend on who else is in the process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITES 200

static int fd;

static void *writer(void *argument) {
    char block[700];
    long number = (long)argument;
    memset(block, 'a' + (int)number, sizeof block);
    for (int i = 0; i < WRITES; i++)
        if (pwrite(fd, block, sizeof block, (number * WRITES + i) * sizeof block) != sizeof block) perror("pwrite");
    return NULL;
}

static int entries(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

int main(void) {
    char *block = malloc(5000), *back = malloc(5000);
    memset(block, 'x', 5000);
    fd = open("guest.data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, block, 5000) != 5000 || pread(fd, back, 5000, 0) != 5000 || memcmp(block, back, 5000)) return 1;
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], NULL, writer, (void *)i);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    if (fsync(fd)) perror("fsync");
    FILE *stream = fopen("guest.text", "w+");
    for (int i = 0; i < WRITES; i++) fprintf(stream, "line %d\n", i), fflush(stream);
    rewind(stream);
    for (int i = 0; fgets(back, 5000, stream); i++)
        if (atoi(back + 5) != i) puts("another line");
    fclose(stream);
    pid_t pid = fork();
    if (pid == 0) _exit(pwrite(fd, "child", 5, 3) == 5 ? 0 : 1);
    int status = -1;
    waitpid(pid, &status, 0);
    printf("child %d, descriptors %d, threads %d\n", status, entries("/proc/self/fd"), entries("/proc/self/task"));
    fflush(stdout);
    if (getenv("GUEST_WAITS")) pause();
    free(block);
    free(back);
    close(fd);
    return 0;
}
