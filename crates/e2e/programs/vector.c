/* Writes vectors that another thread changes all the time: lengths from some bytes to megabytes, buffers, addresses that nothing
   can be read at, lengths that are none. Other threads write to files of their own, whose records lie beside these in the log. What a
   call may answer is what it could have for a vector that stood there at one moment; anything else is said on standard output.

   vector DIR SECONDS: `ack N` once block N of DIR/other is synced. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SHORT = 16, LONG = 3 << 20, TAIL = 8, PARTS = 1024, BLOCK = 4096, BLOCKS = 2048 };

static struct iovec parts[PARTS];
static char *buffers[2];
static void *nowhere;
static volatile int over;
static const char *directory;

static int file(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | flags, 0600);
    if (fd < 0) {
        printf("wrong: %s: errno %d\n", path, errno);
        exit(1);
    }
    return fd;
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *changer(void *unused) {
    uint64_t state = 88172645463325252u;
    while (!over) {
        uint64_t what = draw(&state);
        struct iovec *part = &parts[what >> 8 & 1];
        void *at = buffers[what >> 9 & 1];
        size_t length = what >> 10 & 1 ? LONG : SHORT;
        if ((what >> 16) % 2048 == 0) at = nowhere;
        if ((what >> 32) % 4096 == 0) length = (size_t)-1;
        *(void *volatile *)&part->iov_base = at;
        *(volatile size_t *)&part->iov_len = length;
        if (at == nowhere || length == (size_t)-1) {
            for (volatile int pause = 0; pause < 500; pause++) {}
            *(void *volatile *)&part->iov_base = buffers[0];
            *(volatile size_t *)&part->iov_len = SHORT;
        }
    }
    return unused;
}

/* What the first two parts came to, and of those behind them all, or none where a part could not be read. */
static int may_answer(ssize_t bytes, int count) {
    for (int first = 0; first < 2; first++)
        for (int second = 0; second < 2; second++) {
            ssize_t one = first ? LONG : SHORT, both = one + (second ? LONG : SHORT);
            if (bytes == one || bytes == both + (count - 2) * TAIL) return 1;
        }
    return bytes == -1 && (errno == EFAULT || errno == EINVAL);
}

static void *neighbour(void *unused) {
    int fd = file("other", 0);
    char block[BLOCK];
    for (int number = 0; number < BLOCKS && !over; number++) {
        for (int at = 0; at < BLOCK; at += 8) snprintf(block + at, 9 < BLOCK - at ? 9 : 8, "%08d", number);
        memcpy(block + BLOCK - 8, "endblock", 8);
        if (pwrite(fd, block, BLOCK, (off_t)number * BLOCK) != BLOCK || fsync(fd)) {
            printf("wrong: block %d: errno %d\n", number, errno);
            break;
        }
        printf("ack %d\n", number);
        fflush(stdout);
        usleep(1000);
    }
    return unused;
}

static void *writer(void *name) {
    static const int counts[] = {2, 2, 2, 3, 64, 65, PARTS};
    int fd = file(name, 0), reader = file(name, 0);
    static char room[2][LONG];
    struct iovec to[] = {{room[0], LONG}, {room[1], LONG}};
    long calls = 0, refused = 0;
    for (; !over; calls++) {
        int count = counts[calls % 7];
        errno = 0;
        ssize_t bytes = calls % 3 ? pwritev(fd, parts, count, calls % 5 * BLOCK) : (lseek(fd, 0, SEEK_SET), writev(fd, parts, count));
        if (!may_answer(bytes, count)) printf("wrong: %s: %zd of %d parts, errno %d\n", (char *)name, bytes, count, errno);
        refused += bytes < 0;
        if (calls % 16 == 0 && (bytes = preadv(reader, to, 2, 0)) < 0) printf("wrong: read: errno %d\n", errno);
        for (ssize_t at = 0; calls % 64 == 0 && at < bytes; at++) {
            char found = room[at / LONG][at % LONG];
            if (found != 'a' && found != 'b' && found != 't' && found != 0) {
                printf("wrong: %s: byte %zd is %d\n", (char *)name, at, found);
                break;
            }
        }
    }
    printf("%s: %ld calls, %ld refused\n", (char *)name, calls, refused);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    directory = argv[1];
    for (int which = 0; which < 2; which++) {
        buffers[which] = malloc(LONG);
        memset(buffers[which], "ab"[which], LONG);
    }
    nowhere = mmap(NULL, LONG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static char tail[TAIL];
    memset(tail, 't', TAIL);
    for (int at = 0; at < PARTS; at++) {
        parts[at].iov_base = at < 2 ? buffers[0] : tail;
        parts[at].iov_len = at < 2 ? SHORT : TAIL;
    }
    pthread_t threads[3];
    pthread_create(&threads[0], NULL, changer, NULL);
    pthread_create(&threads[1], NULL, neighbour, NULL);
    pthread_create(&threads[2], NULL, writer, "own");
    struct timespec wait = {atoi(argv[2]), 0};
    nanosleep(&wait, NULL);
    over = 1;
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    printf("through\n");
    fflush(stdout);
    sleep(60);
    return 0;
}
