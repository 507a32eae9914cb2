/* Threads that end in the midst of calls: a cancel that has come before acts in every call that is a cancellation point;
 * a cancel, and a signal handler that ends its thread, may come at any moment of a call. Nothing that they held is held
 * afterwards, and the program goes on.
 *
 * cancels pending: tells which calls a pending cancel ends, and what they did before.
 * cancels storm: ends many threads, each in calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int file, other, ends[2], sockets[2], number;
static char bytes[64];
static struct iovec part = { bytes, sizeof bytes };
static struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

#define CALLS(CALL)                                                                                     \
    CALL(write, write(file, bytes, 64)) CALL(pwrite, pwrite(file, bytes, 64, 4096))                      \
    CALL(writev, writev(file, &part, 1)) CALL(pwritev, pwritev(file, &part, 1, 4096))                    \
    CALL(pwritev2, pwritev2(file, &part, 1, 4096, RWF_DSYNC)) CALL(read, read(file, bytes, 64))          \
    CALL(pread, pread(file, bytes, 64, 0)) CALL(readv, readv(file, &part, 1))                            \
    CALL(preadv, preadv(file, &part, 1, 0)) CALL(preadv2, preadv2(file, &part, 1, 0, 0))                 \
    CALL(fsync, fsync(file)) CALL(fdatasync, fdatasync(file))                                            \
    CALL(fsync_directory, fsync(number)) CALL(sync_file_range, sync_file_range(file, 0, 64, 2))          \
    CALL(open, open("made-open", O_RDWR | O_CREAT, 0644)) CALL(open_old, open("file", O_RDWR))           \
    CALL(open_read, open("file", O_RDONLY)) CALL(open_truncate, open("cut", O_WRONLY | O_TRUNC))         \
    CALL(openat, openat(AT_FDCWD, "made-openat", O_WRONLY | O_CREAT | O_EXCL, 0644))                     \
    CALL(creat, creat("made-creat", 0644)) CALL(close, close(number)) CALL(fallocate, fallocate(file, 0, 0, 1 << 16)) \
    CALL(fcntl_wait, fcntl(file, F_SETLKW, &lock)) CALL(fcntl_dup, fcntl(file, F_DUPFD, 300))            \
    CALL(splice, splice(ends[0], NULL, other, NULL, 16, 0)) CALL(sendfile, sendfile(other, file, NULL, 16)) \
    CALL(copy_file_range, copy_file_range(file, NULL, other, NULL, 16, 0))                               \
    CALL(sendmsg, ({ struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 }; sendmsg(sockets[0], &message, 0); })) \
    CALL(ftruncate, ftruncate(other, 100)) CALL(lseek, lseek(file, 0, SEEK_SET)) CALL(dup, dup(file))    \
    CALL(dup2, dup2(file, 301)) CALL(unlink, unlink("gone")) CALL(rename, rename("from", "to"))          \
    CALL(fchmod, fchmod(file, 0600)) CALL(fstat, ({ struct stat stat; fstat(file, &stat); }))            \
    CALL(syncfs, syncfs(other)) CALL(pipe_write, write(ends[1], bytes, 16)) CALL(pipe_read, read(ends[0], bytes, 16))

#define NAME(name, call) #name,
static const char *names[] = { CALLS(NAME) };
#define BODY(name, call) static void call_##name(void) { if ((long)(call) < 0) printf("(errno %d) ", errno); }
CALLS(BODY)
#define PLACE(name, call) call_##name,
static void (*calls[])(void) = { CALLS(PLACE) };
enum { CALLS_COUNT = sizeof calls / sizeof *calls };

static void *make_call(void *index) {
    pthread_cancel(pthread_self());
    calls[(long)index]();
    return NULL;
}
static void made(const char *name) {
    struct stat stat;
    printf("%s: %lld\n", name, lstat(name, &stat) ? -1ll : (long long)stat.st_size);
}
static void fill(const char *name, int length) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < length; i += 64) write(fd, bytes, 64);
    close(fd);
}
static void pending(void) {
    fill("cut", 128), fill("gone", 64), fill("from", 64);
    other = open("other", O_RDWR | O_CREAT, 0644);
    write(other, bytes, 64);
    pipe(ends);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets);
    write(ends[1], bytes, 48);
    write(file, bytes, 64), fsync(file);
    for (long i = 0; i < CALLS_COUNT; i++) {
        pthread_t thread;
        void *result;
        number = open(".", O_RDONLY | O_DIRECTORY);
        pthread_create(&thread, NULL, make_call, (void *)i);
        pthread_join(thread, &result);
        struct stat stat;
        fstat(file, &stat);
        printf("%s: %s, %lld bytes, cursor %lld\n", names[i], result == PTHREAD_CANCELED ? "ended" : "went on",
               (long long)stat.st_size, (long long)lseek(file, 0, SEEK_CUR));
        close(number);
    }
    made("made-open"), made("made-openat"), made("made-creat"), made("cut"), made("gone"), made("to"), made("other");
}
enum { THREADS = 400 };
static volatile int begun;
static void *use(void *index) {
    long own = (long)index % 8 * 4096;
    /* In the midst of anything. */
    if ((long)index & 8) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (int i = 0;; i++) {
        pwrite(file, bytes, 64, own + i % 64 * 64);
        begun = 1;
        if (i % 4 == 1) pread(file, bytes, 64, own);
        if (i % 8 == 3) pwrite(other, bytes, 64, 0);
        if (i % 16 == 5) fsync(file);
        if (i % 16 == 7) { static char block[1 << 16]; pwrite(file, block, sizeof block, 1 << 20); }
        if (i % 16 == 9) rename(i % 32 == 9 ? "a" : "b", i % 32 == 9 ? "b" : "a");
        if (i % 16 == 11) ftruncate(other, 100 + i % 50);
        if (i % 16 == 13) pwritev2(file, &part, 1, own, RWF_DSYNC);
    }
    return NULL;
}
static void *open_and_close(void *unused) {
    for (int i = 0;; i++) {
        /* A number that nobody closes after a cancel is the program's own loss, natively too. */
        int fd = open("c", O_RDWR | O_CREAT | O_APPEND, 0644);
        begun = 1;
        if (fd >= 0) { write(fd, bytes, 64); if (i % 4 == 0) fsync(fd); dup2(fd, 400); close(fd); }
        unlink("c");
    }
    return unused;
}
static void leave(int signal) { pthread_exit((void *)(long)signal); }
static void storm(void) {
    other = open("other", O_RDWR | O_CREAT, 0644);
    fill("a", 64);
    signal(SIGUSR1, leave);
    int ended = 0, left = 0;
    unsigned seed = 5;
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        void *result;
        begun = 0;
        pthread_create(&thread, NULL, i % 8 == 7 ? open_and_close : use, (void *)(i % 16));
        while (!begun) sched_yield();
        struct timespec rest = { 0, rand_r(&seed) % 200000 };
        nanosleep(&rest, NULL);
        if (i % 2) pthread_cancel(thread); else pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
        ended += result == PTHREAD_CANCELED, left += result == (void *)SIGUSR1;
    }
    printf("ended %d, left %d\n", ended, left);
    int writes = 0;
    for (int i = 0; i < 500; i++) writes += pwrite(file, "afterwards", 10, i * 10) == 10;
    printf("writes %d, ", writes);
    printf("fsync %d, ", fsync(file));
    fflush(stdout);
    /* Nobody of Holdfast's. */
    printf("others %d, ", system("env -i timeout 10 cat file > /dev/null"));
    printf("unlink %d, ", unlink("file"));
    int anew = open("file", O_RDWR | O_CREAT | O_EXCL, 0644);
    printf("anew %zd, ", write(anew, "new", 3));
    printf("%d, ", fsync(anew));
    printf("%d\n", close(anew));
}
int main(int count, char **arguments) {
    (void)count;
    memset(bytes, 'x', sizeof bytes);
    file = open("file", O_RDWR | O_CREAT, 0644);
    if (!strcmp(arguments[1], "pending")) pending();
    else storm();
    return 0;
}
