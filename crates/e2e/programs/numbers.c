/* Writers, readers and syncers of a few descriptor numbers that other threads close, replace and open anew meanwhile.
 * Natively a call goes to one file from its start to its end: what it says it wrote is in one file, once, and what it
 * says it could not write is in none.
 *
 * numbers storm DIRECTORY RESULTS SECONDS [stay]: makes the calls, and notes in RESULTS what each of them said.
 * numbers parents DIRECTORY RESULTS SECONDS: the same, while children are forked and started.
 * numbers cursors DIRECTORY RESULTS SECONDS [stay]: as storm, with two numbers, all at cursors that nobody reads by.
 * numbers check DIRECTORY RESULTS: compares that with the files. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 4, FIRST = 200, APPENDED = 2, PLACED = 2, AT_CURSOR = 1, NUMBERS = APPENDED + PLACED + AT_CURSOR };
enum { WRITERS = 4, CHANGERS = 3, STREAMS = 1, PARENTS = 1, HEAD = 4096, ROW = 32 };
enum { NOTHING, WRITTEN, NO_NUMBER, FAILED };
#define ROWS_MAX (1u << 18)
/* Whatever has a place of its own lies before, and appends behind. */
#define END (1ll << 42)
#define MARK 0x30674c6f48215277ull

static uint8_t *results;
static volatile int stop;
static uint64_t openings, torn, wrong;
static char directory[4096];
/* Set where programs are started, which would take the files along that they inherit. */
static int on_exec;
/* Set where all numbers are written to at their cursors. */
static int cursors_only;

static int is_appended(int number) { return !cursors_only && number < FIRST + APPENDED; }
static int is_placed(int number) { return !cursors_only && number >= FIRST + APPENDED && number < FIRST + APPENDED + PLACED; }
static int any_number(uint64_t random) { return FIRST + random % (cursors_only ? 2 : NUMBERS); }

static uint64_t random_of(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state >> 11;
}
static const char *path(int file, char *into) {
    sprintf(into, "%s/f%d", directory, file);
    return into;
}
struct row { uint64_t mark, id, not_id, again; };
static struct row row_of(uint64_t id) { return (struct row) { MARK, id, ~id, MARK ^ id }; }

/* A new description for a number: what is written at its cursor, or appended, is in nobody's way. */
static int fresh(int number, uint64_t *seed) {
    char name[5000];
    int flags = (random_of(seed) % 2 && !cursors_only ? O_RDWR : O_WRONLY) | on_exec;
    uint64_t choice = random_of(seed);
    if (choice % 3 == 0) flags |= O_DSYNC;
    if (is_appended(number) || is_placed(number) && choice % 5 == 0) flags |= O_APPEND;
    int fd = open(path(random_of(seed) % FILES, name), flags);
    if (fd < 0) { perror("open"); exit(2); }
    /* F_DUPFD may make another number of it. */
    uint64_t place = __atomic_add_fetch(&openings, 1, __ATOMIC_SEQ_CST);
    if (lseek(fd, (place << 24) + (1ull << 32), SEEK_SET) < 0) { perror("lseek"); exit(2); }
    return fd;
}
static void *change(void *index) {
    uint64_t seed = 77777 + (uint64_t)(long)index * 1000003;
    while (!stop) {
        int number = any_number(random_of(&seed));
        int fd = fresh(number, &seed);
        switch (random_of(&seed) % 5) {
        case 0: dup3(fd, number, O_CLOEXEC); break;
        case 1: close(number); dup3(fd, number, on_exec); break;
        case 2: close_range(number, number, 0); fcntl(fd, on_exec ? F_DUPFD_CLOEXEC : F_DUPFD, number); break;
        case 3: dup3(fd, number, on_exec); break;
        default: on_exec ? dup3(fd, number, on_exec) : dup2(fd, number);
        }
        close(fd);
        if (random_of(&seed) % 8 == 0) usleep(100);
    }
    /* Numbers that F_DUPFD found above ours are left open. */
    return NULL;
}
static void *use(void *index) {
    uint64_t seed = 4242 + (uint64_t)(long)index * 7919;
    uint64_t first = (uint64_t)(long)index * ROWS_MAX;
    for (uint64_t at = 0; at < ROWS_MAX && !stop; at++) {
        uint64_t id = first + at;
        struct row row = row_of(id);
        int number = any_number(random_of(&seed));
        struct iovec parts[2] = { { &row, 8 }, { (char *)&row + 8, ROW - 8 } };
        off_t offset = HEAD + id * ROW + (64 << 20);
        ssize_t bytes;
        int how = random_of(&seed) % 4;
        switch (how) {
        case 0: bytes = is_placed(number) ? pwritev2(number, parts, 2, offset, RWF_DSYNC) : pwritev2(number, parts, 2, -1, RWF_DSYNC); break;
        case 1: bytes = is_placed(number) ? pwritev2(number, parts, 2, 0, RWF_APPEND) : writev(number, parts, 2); break;
        default: bytes = is_placed(number) ? pwrite(number, &row, ROW, offset) : write(number, &row, ROW);
        }
        results[id] = bytes == ROW ? WRITTEN : bytes < 0 && errno == EBADF ? NO_NUMBER : FAILED;
        results[id] |= (number - FIRST) << 2 | how << 5;
        if ((results[id] & FAILED) == FAILED && __atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST) < 5)
            fprintf(stderr, "a write: %zd, errno %d\n", bytes, errno);
        if (random_of(&seed) % 16 == 0 && fsync(number) && errno != EBADF) {
            if (__atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST) < 5) perror("fsync");
        }
        if (random_of(&seed) % 4 == 0) {
            unsigned char head[HEAD];
            bytes = pread(number, head, HEAD, 0);
            int bad = bytes >= 0 ? bytes != HEAD : errno != EBADF;
            for (int i = 1; bytes == HEAD && i < HEAD; i++) bad |= head[i] != head[0];
            if (bad) __atomic_add_fetch(&torn, 1, __ATOMIC_SEQ_CST);
        }
    }
    return NULL;
}
/* Streams, whose numbers others are given as soon as they are closed. */
static void *stream(void *index) {
    uint64_t seed = 99 + (uint64_t)(long)index, first = (uint64_t)(WRITERS + (long)index) * ROWS_MAX;
    char name[5000];
    FILE *kept = fopen(path(0, name), "ae");
    for (uint64_t at = 0; at < ROWS_MAX && !stop; at++) {
        struct row row = row_of(first + at);
        int is_kept = at % 4 == 0;
        FILE *file = is_kept ? freopen(path(random_of(&seed) % FILES, name), "ae", kept) : fopen(path(random_of(&seed) % FILES, name), "ae");
        if (!file) { perror("stream"); exit(2); }
        int is_written = fwrite(&row, ROW, 1, file) == 1 && (is_kept ? fflush(file) : fclose(file)) == 0;
        results[first + at] = is_written ? WRITTEN : FAILED;
        if (!is_written) __atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}
static void note(uint64_t id, ssize_t bytes) {
    results[id] = bytes == ROW ? WRITTEN : bytes < 0 && errno == EBADF ? NO_NUMBER : FAILED;
}
/* What a forked child does, whose parent's threads may have been in the midst of anything. */
static void be_child(uint64_t id, int way, const char *name) {
    struct row row = row_of(id), last = row_of(id + 1);
    note(id, write(FIRST + way % APPENDED, &row, ROW));
    fsync(FIRST + way % NUMBERS);
    if (way == 0) closefrom(3);
    else if (way == 1) close_range(3, ~0u, 0);
    else for (int fd = 3; fd < 300; fd++) close(fd);
    int fd = open(name, O_WRONLY | O_APPEND | O_DSYNC);
    note(id + 1, write(fd, &last, ROW));
    int is_lowest = fd == 3 || way == 2 && fd < 300;
    if (way == 1 && id % 8 == 0) execl("/bin/true", "true", NULL);
    _exit(is_lowest && results[id + 1] == WRITTEN ? 0 : 1);
}
static void *parent(void *index) {
    uint64_t seed = 31337, first = (uint64_t)(WRITERS + STREAMS + (long)index) * ROWS_MAX;
    char name[5000];
    for (uint64_t at = 0; at + 2 < ROWS_MAX && !stop; at += 2) {
        int way = random_of(&seed) % 5, status = -1;
        path(random_of(&seed) % FILES, name);
        char *arguments[] = { "true", NULL }, *environment[] = { NULL };
        pid_t child;
        if (way < 3) { if (!(child = fork())) be_child(first + at, way, name); }
        else if (way == 3) { if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment)) child = -1; }
        else if (!(child = vfork())) {
            close(FIRST);
            dup2(0, FIRST + 1);
            execv("/bin/true", arguments);
            _exit(1);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status) {
            if (__atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST) < 5) fprintf(stderr, "child in way %d: status %d\n", way, status);
        }
        usleep(1000);
    }
    return NULL;
}
static void storm(double seconds, int parents) {
    if (parents) on_exec = O_CLOEXEC;
    char name[5000], head[HEAD];
    for (int file = 0; file < FILES; file++) {
        int fd = open(path(file, name), O_RDWR | O_CREAT | O_EXCL, 0644);
        memset(head, 'a' + file, HEAD);
        if (fd < 0 || write(fd, head, HEAD) != HEAD || ftruncate(fd, END) || fsync(fd) || close(fd)) { perror("file"); exit(2); }
    }
    pthread_t threads[WRITERS + CHANGERS + STREAMS + PARENTS];
    int count = 0;
    for (long i = 0; i < WRITERS; i++) pthread_create(&threads[count++], NULL, use, (void *)i);
    for (long i = 0; i < CHANGERS; i++) pthread_create(&threads[count++], NULL, change, (void *)i);
    for (long i = 0; i < STREAMS; i++) pthread_create(&threads[count++], NULL, stream, (void *)i);
    for (long i = 0; i < parents; i++) pthread_create(&threads[count++], NULL, parent, (void *)i);
    printf("begun\n");
    fflush(stdout);
    struct timespec rest = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };
    nanosleep(&rest, NULL);
    stop = 1;
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    printf("torn reads %llu, wrong results %llu\n", (unsigned long long)torn, (unsigned long long)wrong);
    fflush(stdout);
}
#define IDS ((size_t)(WRITERS + STREAMS + PARENTS) * ROWS_MAX)
static void check(void) {
    uint8_t *found = calloc(IDS, 1);
    static char block[1 << 16];
    char name[5000];
    for (int file = 0; file < FILES; file++) {
        int fd = open(path(file, name), O_RDONLY);
        for (off_t data = 0; (data = lseek(fd, data, SEEK_DATA)) >= 0;) {
            off_t hole = lseek(fd, data, SEEK_HOLE);
            for (; data < hole; data += sizeof block) {
                size_t left = hole - data;
                ssize_t bytes = pread(fd, block, left < sizeof block ? left : sizeof block, data);
                for (ssize_t at = 0; at + ROW <= bytes; at += ROW) {
                    struct row row;
                    memcpy(&row, block + at, ROW);
                    struct row whole = row_of(row.id);
                    if (row.mark == MARK && row.id < IDS && !memcmp(&row, &whole, ROW)) found[row.id]++;
                }
            }
            data = hole;
        }
        close(fd);
    }
    unsigned long long lost = 0, ghosts = 0, twice = 0, written = 0, refused = 0, failed = 0;
    for (size_t id = 0; id < IDS; id++) {
        int said = results[id] & 3, is_wrong = said == WRITTEN ? !found[id] : said != NOTHING && found[id];
        written += said == WRITTEN, refused += said == NO_NUMBER, failed += said == FAILED;
        lost += is_wrong && said == WRITTEN;
        ghosts += is_wrong && said != WRITTEN;
        if (is_wrong && lost + ghosts < 5)
            fprintf(stderr, "row %zx by number %d, in way %d: said %d\n", id, FIRST + (results[id] >> 2 & 7), results[id] >> 5, said);
        twice += found[id] > 1;
    }
    fprintf(stderr, "%llu written, %llu refused\n", written, refused);
    printf("lost %llu, there although refused %llu, twice %llu, failed %llu\n", lost, ghosts, twice, failed);
    printf("enough %d\n", written > 10);
}
int main(int count, char **arguments) {
    if (count < 4) return 2;
    strcpy(directory, arguments[2]);
    int fd = open(arguments[3], O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, IDS)) return 2;
    results = mmap(NULL, IDS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (results == MAP_FAILED) return 2;
    close(fd);
    cursors_only = !strcmp(arguments[1], "cursors");
    if (!strcmp(arguments[1], "check")) check();
    else storm(atof(arguments[4]), !strcmp(arguments[1], "parents"));
    /* Until it is killed. */
    if (count > 5) pause();
    return 0;
}
