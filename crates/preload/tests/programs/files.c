/* Descriptors, offsets, sizes, names and errors. Prints what it sees; the same must come out with the library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utime.h>

static int line;
#define SHOW(call) do { errno = 7; long r_ = (long)(call); int e_ = errno; \
    printf("%d %s = %ld errno %d\n", ++line, #call, r_ < 0 ? -1 : r_, r_ < 0 ? e_ : (e_ == 7 ? 0 : -e_)); } while (0)
/* For calls whose value is a descriptor. */
#define OPENED(call) do { errno = 7; int r_ = (call); int e_ = errno; fd = r_; \
    printf("%d %s %s errno %d\n", ++line, #call, r_ < 0 ? "failed" : "opened", r_ < 0 ? e_ : (e_ == 7 ? 0 : -e_)); } while (0)

static void content(const char *path) {
    int fd = open(path, O_RDONLY);
    unsigned char buffer[4096];
    unsigned long sum = 5381, total = 0;
    ssize_t n;
    while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < n; i++) sum = sum * 33 + buffer[i];
        total += n;
    }
    struct stat st;
    memset(&st, 0, sizeof st);
    stat(path, &st);
    printf("%d %s: %lu bytes, sum %lx, mode %o, links %lu\n", ++line, path, total, sum, st.st_mode, (unsigned long)st.st_nlink);
    if (fd >= 0) close(fd);
}

static void opening(void) {
    int fd, other;
    umask(022);
    OPENED(open("missing", O_RDWR));
    OPENED(open("missing/deep", O_RDWR | O_CREAT, 0600));
    OPENED(open("new", O_RDWR | O_CREAT | O_EXCL, 0666));
    SHOW(write(fd, "0123456789", 10));
    SHOW(close(fd));
    SHOW(close(fd));
    OPENED(open("new", O_RDWR | O_CREAT | O_EXCL, 0666));
    OPENED(open("new", O_RDWR | O_CREAT, 0));
    SHOW(write(fd, "ab", 2));
    SHOW(lseek(fd, 0, SEEK_CUR));
    close(fd);
    content("new");
    OPENED(open("new", O_WRONLY | O_TRUNC));
    SHOW(write(fd, "xyz", 3));
    SHOW(read(fd, &other, 1));
    close(fd);
    content("new");
    OPENED(open("new", O_RDONLY));
    SHOW(write(fd, "no", 2));
    SHOW(ftruncate(fd, 1));
    close(fd);
    OPENED(creat("created", 0640));
    SHOW(fcntl(fd, F_GETFL) & O_ACCMODE);
    close(fd);
    content("created");
    SHOW(symlink("dangling-target", "dangling"));
    OPENED(open("dangling", O_WRONLY | O_CREAT, 0600));
    SHOW(write(fd, "through", 7));
    close(fd);
    content("dangling-target");
    OPENED(open("dangling", O_WRONLY | O_NOFOLLOW));
    OPENED(open(".", O_WRONLY | O_CREAT, 0600));
    OPENED(open(".", O_RDONLY | O_DIRECTORY));
    SHOW(fsync(fd));
    other = fd;
    OPENED(openat(other, "at", O_RDWR | O_CREAT, 0600));
    SHOW(write(fd, "at", 2));
    close(fd);
    close(other);
    content("at");
    OPENED(open("synced", O_RDWR | O_CREAT | O_SYNC, 0600));
    SHOW(fcntl(fd, F_GETFL) & (O_SYNC | O_APPEND | O_ACCMODE));
    SHOW(write(fd, "s", 1));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    SHOW(fcntl(fd, F_GETFL) & (O_SYNC | O_APPEND | O_ACCMODE));
    SHOW(pwrite(fd, "t", 1, 0));
    close(fd);
    content("synced");
    OPENED(open("/dev/null", O_WRONLY | O_CREAT | O_TRUNC | O_SYNC, 0600));
    SHOW(write(fd, "nothing", 7));
    SHOW(fdatasync(fd));
    close(fd);
    OPENED(open(".", O_TMPFILE | O_RDWR, 0600));
    SHOW(write(fd, "unnamed", 7));
    SHOW(fsync(fd));
    close(fd);
    OPENED(open((char *)8, O_RDWR | O_CREAT, 0600));
    OPENED(syscall(SYS_openat, AT_FDCWD, "bycall", O_RDWR | O_CREAT, 0604));
    SHOW(syscall(SYS_write, fd, "bycall", 6));
    SHOW(syscall(SYS_close, fd));
    content("bycall");
    struct { unsigned long flags, mode, resolve; } how = { O_RDWR | O_CREAT, 0600, 0 };
    OPENED(syscall(SYS_openat2, AT_FDCWD, "by2", &how, sizeof how));
    SHOW(write(fd, "by2", 3));
    close(fd);
    content("by2");
}

static void writing(void) {
    int fd = open("w", O_RDWR | O_CREAT, 0644), copy, pipe_ends[2];
    char big[10000];
    memset(big, 'b', sizeof big);
    struct iovec parts[3] = { { "one", 3 }, { big, sizeof big }, { "three", 5 } };
    SHOW(write(fd, big, sizeof big));
    SHOW(pwrite(fd, "P", 1, 5000));
    SHOW(pwrite(fd, "P", 1, -1));
    SHOW(pwrite(fd, "far", 3, 30000));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(writev(fd, parts, 3));
    SHOW(writev(fd, parts, -1));
    SHOW(writev(fd, NULL, 2));
    SHOW(writev(fd, parts, 0));
    SHOW(pwritev(fd, parts, 3, 100));
    SHOW(pwritev(fd, parts, 3, -5));
    SHOW(pwritev2(fd, parts, 1, -1, 0));
    SHOW(pwritev2(fd, parts, 1, 7, RWF_DSYNC));
    SHOW(pwritev2(fd, parts, 1, 7, RWF_APPEND));
    SHOW(pwritev2(fd, parts, 1, 7, 0x40000000));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(write(fd, big, 0));
    SHOW(write(-1, big, 3));
    SHOW(pwrite(99999999, big, 3, 0));
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    SHOW(fsync(-1));
    SHOW(sync_file_range(fd, 0, 100, SYNC_FILE_RANGE_WRITE));
    SHOW(sync_file_range(fd, 0, 100, 64));
    content("w");
    SHOW(ftruncate(fd, 20000));
    SHOW(ftruncate(fd, -1));
    SHOW(truncate("w", 21000));
    SHOW(truncate("missing", 1));
    SHOW(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 50000));
    SHOW(fallocate(fd, 0, 0, 22000));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    SHOW(posix_fallocate(fd, 0, 24000));
    SHOW(posix_fallocate(fd, 0, -1));
    content("w");
    SHOW(lseek(fd, 10, SEEK_SET));
    SHOW((copy = dup(fd)) >= 0);
    SHOW(write(copy, "dup", 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(dup2(fd, 200));
    SHOW(write(200, "dup2", 4));
    SHOW(close(200));
    SHOW(write(200, "dup2", 4));
    SHOW(dup3(fd, 201, O_CLOEXEC));
    SHOW(dup3(fd, fd, 0));
    SHOW(dup2(fd, fd) == fd);
    SHOW(dup2(-1, 201));
    SHOW(fcntl(fd, F_DUPFD, 210));
    SHOW(fcntl(fd, F_DUPFD_CLOEXEC, 210));
    SHOW(write(211, "dupfd", 5));
    SHOW(close_range(205, 220, 0));
    SHOW(write(211, "dupfd", 5));
    closefrom(200);
    SHOW(write(201, "dup3", 4));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(close(copy));
    SHOW(write(fd, "last", 4));
    close(fd);
    content("w");

    fd = open("append", O_WRONLY | O_CREAT | O_APPEND, 0644);
    SHOW(write(fd, "first,", 6));
    SHOW(pwrite(fd, "second,", 7, 0));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, 2, SEEK_SET));
    SHOW(write(fd, "third", 5));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(fcntl(fd, F_SETFL, 0));
    SHOW(lseek(fd, 1, SEEK_SET));
    SHOW(write(fd, "IRST", 4));
    SHOW(write(fd, "!", 1));
    close(fd);
    content("append");

    SHOW(pipe(pipe_ends));
    SHOW(pwrite(pipe_ends[1], "x", 1, 0));
    SHOW(ftruncate(pipe_ends[1], 0));
    SHOW(lseek(pipe_ends[1], 0, SEEK_CUR));
    SHOW(write(pipe_ends[1], "piped", 5));
    SHOW(read(pipe_ends[0], big, 5));
    close(pipe_ends[0]);
    signal(SIGPIPE, SIG_IGN);
    SHOW(write(pipe_ends[1], "x", 1));
    close(pipe_ends[1]);

    /* Cursor of a write-only descriptor, moved by every means. */
    fd = open("cursor", O_WRONLY | O_CREAT, 0644);
    int from = open("w", O_RDONLY);
    SHOW(write(fd, "0123456789", 10));
    SHOW(write(fd, "0123456789", 10));
    SHOW(lseek(fd, -3, SEEK_END));
    SHOW(write(fd, "abc", 3));
    SHOW(sendfile(fd, from, NULL, 100));
    SHOW(write(fd, "def", 3));
    SHOW(copy_file_range(from, NULL, fd, NULL, 50, 0));
    SHOW(write(fd, "ghi", 3));
    SHOW(lseek(fd, -1, SEEK_SET));
    SHOW(write(fd, "jkl", 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    close(fd);
    close(from);
    content("cursor");

    struct rlimit limit = { 100, RLIM_INFINITY }, before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    fd = open("limited", O_WRONLY | O_CREAT, 0644);
    SHOW(write(fd, big, 90));
    SHOW(write(fd, big, 90));
    SHOW(write(fd, big, 90));
    close(fd);
    setrlimit(RLIMIT_FSIZE, &before);
    content("limited");
}

static void names(void) {
    int fd = open("n1", O_RDWR | O_CREAT, 0644);
    SHOW(write(fd, "names", 5));
    SHOW(link("n1", "n2"));
    SHOW(link("n1", "n2"));
    SHOW(linkat(AT_FDCWD, "n1", AT_FDCWD, "n3", 0));
    SHOW(rename("n2", "n1"));
    SHOW(rename("n2", "n4"));
    SHOW(rename("nowhere", "n5"));
    SHOW(renameat(AT_FDCWD, "n4", AT_FDCWD, "n6"));
    SHOW(renameat2(AT_FDCWD, "n6", AT_FDCWD, "n1", RENAME_NOREPLACE));
    SHOW(renameat2(AT_FDCWD, "n6", AT_FDCWD, "n1", RENAME_EXCHANGE));
    close(open("victim", O_RDWR | O_CREAT, 0600));
    SHOW(rename("n6", "victim"));
    content("victim");
    SHOW(unlink("n3"));
    SHOW(unlink("n3"));
    SHOW(unlinkat(AT_FDCWD, "victim", 0));
    SHOW(mkdir("dir", 0700));
    SHOW(unlink("dir"));
    SHOW(unlinkat(AT_FDCWD, "dir", AT_REMOVEDIR));
    SHOW(mkdir("dir", 0700));
    /* libc leaves errno from its first try behind. */
    printf("remove %d\n", remove("dir"));
    SHOW(remove("dir"));
    SHOW(write(fd, "still", 5));
    SHOW(remove("n1"));
    SHOW(write(fd, "unlinked", 8));
    SHOW(lseek(fd, 0, SEEK_END));
    close(fd);
}

static void metadata(void) {
    int fd = open("m", O_RDWR | O_CREAT, 0644);
    struct timespec times[2] = { { 1000000, 5 }, { 2000000, 6 } };
    struct timeval values[2] = { { 3000000, 7 }, { 4000000, 8 } }, wrong[2] = { { 1, 2000000 }, { 1, 0 } };
    struct utimbuf simple = { 5000000, 6000000 };
    struct stat st;
    SHOW(chmod("m", 0600));
    SHOW(fchmod(fd, 0640));
    SHOW(fchmodat(AT_FDCWD, "m", 0644, 0));
    SHOW(chmod("missing", 0600));
    SHOW(chown("m", getuid(), getgid()));
    SHOW(fchown(fd, -1, -1));
    SHOW(lchown("missing", 0, 0));
    SHOW(fchownat(AT_FDCWD, "m", -1, -1, 0));
#define MTIME() (stat("m", &st), printf("mtime %ld.%09ld\n", (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec))
    SHOW(utimensat(AT_FDCWD, "m", times, 0)); MTIME();
    SHOW(utimensat(AT_FDCWD, NULL, times, 0));
    SHOW(futimens(fd, times)); MTIME();
    SHOW(futimens(-1, times));
    SHOW(utimes("m", values)); MTIME();
    SHOW(futimes(fd, values)); MTIME();
    SHOW(futimes(fd, wrong));
    SHOW(lutimes("m", values)); MTIME();
    SHOW(futimesat(AT_FDCWD, "m", values)); MTIME();
    SHOW(utime("m", &simple)); MTIME();
    SHOW(write(fd, "x", 1));
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    SHOW(map != MAP_FAILED);
    *(char *)map = 'y';
    SHOW(munmap(map, 4096));
    SHOW(mmap(NULL, 4096, PROT_READ, MAP_SHARED, -1, 0) == MAP_FAILED);
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    SHOW(mprotect(map, 4096, PROT_READ | PROT_WRITE));
    *(char *)map = 'z';
    SHOW(pwrite(fd, "w", 1, 1));
    SHOW(fsync(fd));
    close(fd);
    content("m");
}

int main(void) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    opening();
    writing();
    names();
    metadata();
    return 0;
}
