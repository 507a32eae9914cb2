/* Writes two files through libc and syncs them, as PROGRAM in tests/unseen.rs does; then does what it is told, a line each,
 * by system calls of its own, in front of which no library can stand. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long own(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

static void must(long result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %ld\n", what, result);
        exit(1);
    }
}

static int written(const char *name) {
    char bytes[8000];
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    must(fd, name);
    memset(bytes, 'a', sizeof bytes);
    must(pwrite(fd, bytes, 8000, 0), "pwrite");
    must(fsync(fd), "fsync");
    memset(bytes, 'b', 1000);
    must(pwrite(fd, bytes, 1000, 0), "pwrite");
    must(fsync(fd), "fsync");
    return fd;
}

int main(int argc, char **argv) {
    char line[100], bytes[1000];
    must(argc == 2 ? chdir(argv[1]) : -1, "chdir");
    mkdir("dir", 0755);
    int root = open(".", O_RDONLY);
    must(fsync(root), "fsync");
    int f = written("dir/f"), g = written("g");
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "sync dir/f")) {
            must(fsync(f), line);
        } else if (!strcmp(line, "append g")) {
            must(pwrite(g, memset(bytes, 'c', 100), 100, 8000), line);
            must(fsync(g), line);
        } else if (!strcmp(line, "own unlink")) {
            must(own(SYS_unlink, (long)"dir/f", 0, 0, 0), line);
        } else if (!strcmp(line, "own cut")) {
            must(own(SYS_ftruncate, f, 500, 0, 0), line);
        } else if (!strcmp(line, "own syncfs")) {
            must(own(SYS_syncfs, root, 0, 0, 0), line);
        } else if (!strcmp(line, "own write")) {
            long fd = own(SYS_open, (long)"dir/f", O_RDWR, 0, 0);
            must(fd, line);
            must(own(SYS_pwrite64, fd, (long)memset(bytes, 'd', 1000), 1000, 0), line);
            must(own(SYS_fsync, fd, 0, 0, 0), line);
        } else {
            must(-1, line);
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
