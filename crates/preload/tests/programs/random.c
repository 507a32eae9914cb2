/* A seeded walk through calls on a few files and descriptors. Prints every result and, often, every file's content. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define FDS 12
#define FILES 5
#define BYTES 100000

static unsigned long state;
static unsigned next(unsigned below) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(state >> 33) % below;
}

static int fds[FDS];
static char block[BYTES], name[2][32];

static const char *file(int which) {
    sprintf(name[which], "file%u", next(FILES));
    return name[which];
}

static void fill(unsigned bytes) {
    unsigned char first = next(256);
    for (unsigned i = 0; i < bytes; i++) block[i] = first + i * 7;
}

static void contents(void) {
    static char buffer[1 << 20];
    for (int i = 0; i < FILES; i++) {
        char path[32];
        sprintf(path, "file%d", i);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        ssize_t n = read(fd, buffer, sizeof buffer);
        unsigned long sum = 5381;
        for (ssize_t j = 0; j < n; j++) sum = sum * 33 + (unsigned char)buffer[j];
        struct stat st;
        fstat(fd, &st);
        printf("  %s %zd %lx links %lu\n", path, n, sum, (unsigned long)st.st_nlink);
        close(fd);
    }
}

static void step(int number) {
    static const int modes[] = { O_RDWR, O_WRONLY, O_WRONLY | O_APPEND, O_RDWR | O_APPEND, O_RDWR | O_SYNC, O_WRONLY | O_DSYNC };
    static const int creates[] = { 0, O_CREAT, O_CREAT, O_CREAT | O_TRUNC, O_CREAT | O_EXCL, O_TRUNC };
    int slot = next(FDS), fd = fds[slot], what = next(100);
    unsigned bytes = next(4) ? next(5000) : next(60000);
    off_t at = next(200000);
    long result = 0;
    const char *said = "";
    errno = 0;
    fill(bytes);
    struct iovec parts[3] = { { block, bytes / 3 }, { block + bytes / 3, bytes / 3 }, { block + bytes / 2, bytes / 4 } };
    if (fd < 0 || what < 6) {
        if (fd >= 0) close(fd);
        said = "open";
        fd = fds[slot] = open(file(0), modes[next(6)] | creates[next(6)], 0644);
        result = fd >= 0;
    } else if (what < 28) { said = "write"; result = write(fd, block, bytes);
    } else if (what < 44) { said = "pwrite"; result = pwrite(fd, block, bytes, at);
    } else if (what < 50) { said = "writev"; result = writev(fd, parts, 3);
    } else if (what < 54) { said = "pwritev"; result = pwritev(fd, parts, 3, at);
    } else if (what < 57) { said = "pwritev2"; result = pwritev2(fd, parts, 2, next(2) ? -1 : at, next(2) ? RWF_APPEND : RWF_DSYNC);
    } else if (what < 64) { said = "lseek"; result = lseek(fd, next(100000), next(2) ? SEEK_SET : SEEK_END);
    } else if (what < 67) { said = "ftruncate"; result = ftruncate(fd, at);
    } else if (what < 69) { said = "truncate"; result = truncate(file(0), at);
    } else if (what < 72) { said = "fallocate"; result = fallocate(fd, next(2) ? 3 : next(2), at & ~4095, 4096 + bytes);
    } else if (what < 77) { said = "fsync"; result = next(2) ? fsync(fd) : fdatasync(fd);
    } else if (what < 80) { said = "dup2"; int to = next(FDS); if (to != slot && fds[to] >= 0) result = dup2(fd, fds[to]) >= 0;
    } else if (what < 82) { said = "dup"; int to = next(FDS); if (to != slot) { if (fds[to] >= 0) close(fds[to]); fds[to] = dup(fd); result = fds[to] >= 0; }
    } else if (what < 85) { said = "rename"; const char *a = file(0), *b = file(1); result = rename(a, b);
    } else if (what < 87) { said = "unlink"; result = unlink(file(0));
    } else if (what < 89) { said = "link"; const char *a = file(0), *b = file(1); result = link(a, b);
    } else if (what < 90) { said = "fcntl"; result = fcntl(fd, F_SETFL, next(2) ? O_APPEND : 0);
    } else if (what < 91) { said = "getfl"; result = fcntl(fd, F_GETFL);
    } else if (what < 92) { said = "fchmod"; result = fchmod(fd, next(2) ? 0644 : 0664);
    } else if (what < 94) {
        said = "fork";
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; i < 3; i++) result += write(fds[slot], block, bytes);
            _exit(result > 0 ? 7 : 8);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        result = status;
    } else if (what < 95) { said = "sendfile"; int from = open(file(0), O_RDONLY); result = from < 0 ? -1 : sendfile(fd, from, NULL, bytes); if (from >= 0) close(from);
    } else if (what < 96) { said = "stream"; FILE *f = fopen(file(0), next(2) ? "a" : "r+"); if (f) { fseek(f, next(1000), SEEK_SET); result = fwrite(block, 1, bytes, f); fclose(f); }
    } else if (what < 97) { said = "read"; result = read(fd, block, bytes); if (result < 0) result = -1;
    } else { said = "close"; result = close(fd); fds[slot] = -1; }
    int error = errno;
    printf("%d %s fd%d = %ld errno %d cursor %ld\n", number, said, slot, result, result < 0 ? error : 0,
           fds[slot] >= 0 ? (long)lseek(fds[slot], 0, SEEK_CUR) : -1);
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    int steps = argc > 2 ? atoi(argv[2]) : 1500;
    for (int i = 0; i < FDS; i++) fds[i] = -1;
    for (int i = 0; i < steps; i++) {
        step(i);
        if (i % 50 == 0) contents();
    }
    for (int i = 0; i < FDS; i++) if (fds[i] >= 0) close(fds[i]);
    contents();
    return 0;
}
