/* Differential fuzzing with the kernel as oracle: `differ SEED CALLS MODE DIRECTORY`.
 *
 * Every random call is made twice: through libc, where Holdfast stands, on the files in `held/`, and as a bare system call
 * on their twins in `plain/`, which nobody sees. Results, errno, cursors, sizes and contents must agree, call by call.
 * Workers (threads or processes, by MODE) have files, names and descriptors of their own, and one file in common of which
 * each owns a region; so every result is determined. A difference prints seed, worker, call number and arguments. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 4
#define FILES 5
#define SLOTS 8
#define BLOCK (1 << 17)
#define SIZE_MAX_BYTES (1 << 19)
#define REGION (1 << 17)
/* Numbers of the twins of a worker's descriptors, out of the way of the program's own. */
#define TWINS_FROM 400

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define RAW(number, ...) RAW_(number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(number, a, b, c, d, e, f, ...) raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

struct worker {
    int index;
    uint64_t random;
    long calls, at;
    /* Descriptors of both sides, -1: closed. */
    int held[SLOTS], twin[SLOTS];
    int common_held, common_twin;
    char *block, *other;
    char what[300];
};

static uint64_t seed;
static const char *mode;
static int held_dir, twin_dir;
static int processes;
/* Every call is told on standard error. */
static int traced;
/* The files are in state Behind, where the page cache may lack bytes: what is held is looked at through libc, too. */
static int behind;
#define LOOK(call, ...) (behind ? as_kernel(call) : RAW(__VA_ARGS__))

static uint32_t pick(struct worker *w, uint32_t below) {
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(w->random >> 33) % below;
}

static void say(struct worker *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->what, sizeof w->what, format, arguments);
    va_end(arguments);
    if (traced) {
        char line[400];
        int used = snprintf(line, sizeof line, "worker %d call %ld: %s\n", w->index, w->at, w->what);
        RAW(SYS_write, 2, line, used);
    }
}

/* The one line that a failure is about; written without stdio, in one piece. */
static void fail(struct worker *w, const char *format, ...) {
    char line[800];
    int used = snprintf(line, sizeof line, "DIFFERENCE seed %llu mode %s worker %d call %ld: %s: ", (unsigned long long)seed, mode,
                        w->index, w->at, w->what);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    line[used++] = '\n';
    RAW(SYS_write, 1, line, used);
    RAW(SYS_exit_group, 1);
}

/* What libc returned, as the kernel would have. */
static long as_kernel(long result) { return result == -1 ? -errno : result; }

static void same(struct worker *w, long held, long twin) {
    if (held != twin) fail(w, "%ld (%s), natively %ld (%s)", held, held < 0 ? strerrorname_np(-held) : "", twin, twin < 0 ? strerrorname_np(-twin) : "");
}
#define BOTH(call, ...) do { errno = 0; long held_ = as_kernel(call); same(w, held_, RAW(__VA_ARGS__)); } while (0)

static void fill(struct worker *w, size_t bytes) {
    uint64_t value = w->random | 1;
    for (size_t i = 0; i < bytes; i += 8) {
        value ^= value << 13, value ^= value >> 7, value ^= value << 17;
        memcpy(w->block + i, &value, 8);
    }
}

static const char *name(struct worker *w, char *place) {
    sprintf(place, "w%d-f%u", w->index, pick(w, FILES));
    return place;
}

static void compare_content(struct worker *w, int held, int twin, off_t from, off_t bytes) {
    struct stat a, b;
    if (LOOK(fstat(held, &a), SYS_fstat, held, &a) || RAW(SYS_fstat, twin, &b)) fail(w, "fstat fails");
    if (a.st_size != b.st_size || a.st_mode != b.st_mode || a.st_nlink != b.st_nlink)
        fail(w, "size %ld mode %o links %lu, natively %ld %o %lu", (long)a.st_size, a.st_mode, (unsigned long)a.st_nlink,
             (long)b.st_size, b.st_mode, (unsigned long)b.st_nlink);
    for (off_t at = from; at < from + bytes; at += BLOCK) {
        off_t part = from + bytes - at < BLOCK ? from + bytes - at : BLOCK;
        long n = LOOK(pread(held, w->block, part, at), SYS_pread64, held, w->block, part, at);
        long m = RAW(SYS_pread64, twin, w->other, part, at);
        if (n != m) fail(w, "%ld bytes can be read at %ld, natively %ld", n, (long)at, m);
        for (long i = 0; i < n; i++)
            if (w->block[i] != w->other[i]) fail(w, "content differs at %ld", (long)at + i);
        if (n < part) break;
    }
}

static int readable(int fd) { return (RAW(SYS_fcntl, fd, F_GETFL) & O_ACCMODE) == O_RDWR; }

static void compare_slot(struct worker *w, int slot) {
    int held = w->held[slot], twin = w->twin[slot];
    if (held < 0) return;
    same(w, LOOK(lseek(held, 0, SEEK_CUR), SYS_lseek, held, 0, SEEK_CUR), RAW(SYS_lseek, twin, 0, SEEK_CUR));
    if (readable(held)) compare_content(w, held, twin, 0, 1 << 30);
}

static void compare_file(struct worker *w, const char *path) {
    int a = LOOK(openat(held_dir, path, O_RDONLY), SYS_openat, held_dir, path, O_RDONLY), b = RAW(SYS_openat, twin_dir, path, O_RDONLY);
    if ((a < 0) != (b < 0)) fail(w, "%s opens: %d, natively %d", path, a, b);
    if (a >= 0) compare_content(w, a, b, 0, 1 << 30), LOOK(close(a), SYS_close, a), RAW(SYS_close, b);
}

static int twin_number(struct worker *w, int slot) { return TWINS_FROM + (processes ? 0 : w->index * 32) + slot; }

static void drop(struct worker *w, int slot) {
    if (w->held[slot] < 0) return;
    BOTH(close(w->held[slot]), SYS_close, w->twin[slot]);
    w->held[slot] = w->twin[slot] = -1;
}

/* Puts a new twin at its number. */
static void place_twin(struct worker *w, int slot, int fd) {
    RAW(SYS_dup3, fd, twin_number(w, slot), 0);
    RAW(SYS_close, fd);
    w->twin[slot] = twin_number(w, slot);
}

static void open_slot(struct worker *w, int slot) {
    static const int modes[] = { O_RDWR, O_WRONLY, O_WRONLY | O_APPEND, O_RDWR | O_APPEND, O_RDWR | O_SYNC, O_WRONLY | O_DSYNC };
    static const int creates[] = { 0, O_CREAT, O_CREAT, O_CREAT, O_CREAT | O_TRUNC, O_CREAT | O_EXCL, O_TRUNC };
    char path[40];
    int flags = modes[pick(w, 6)] | creates[pick(w, 7)], plain = flags & ~O_SYNC;
    drop(w, slot);
    name(w, path);
    say(w, "openat(%s, %o)", path, flags);
    errno = 0;
    int held = openat(held_dir, path, flags, 0644), error = errno;
    int twin = RAW(SYS_openat, twin_dir, path, plain, 0644);
    if (held < 0 || twin < 0) {
        same(w, held < 0 ? -error : 0, twin < 0 ? twin : 0);
        return;
    }
    w->held[slot] = held;
    place_twin(w, slot, twin);
}

static void share(struct worker *w, int slot) {
    int to = pick(w, SLOTS);
    if (to == slot) return;
    if (w->held[to] >= 0 && pick(w, 2)) {
        say(w, "dup2(slot %d, slot %d)", slot, to);
        errno = 0;
        int result = dup2(w->held[slot], w->held[to]);
        if (result != w->held[to]) fail(w, "%d %s", result, strerrorname_np(errno));
        RAW(SYS_dup3, w->twin[slot], w->twin[to], 0);
        return;
    }
    drop(w, to);
    say(w, "dup(slot %d) to slot %d", slot, to);
    w->held[to] = pick(w, 2) ? dup(w->held[slot]) : fcntl(w->held[slot], F_DUPFD_CLOEXEC, 0);
    if (w->held[to] < 0) fail(w, "%s", strerrorname_np(errno));
    RAW(SYS_dup3, w->twin[slot], twin_number(w, to), 0);
    w->twin[to] = twin_number(w, to);
}

/* A child writes through the inherited descriptors, too. */
static void child(struct worker *w, int slot, size_t bytes) {
    say(w, "fork and write(slot %d, %zu)", slot, bytes);
    pid_t pid = fork();
    if (pid == 0) {
        BOTH(write(w->held[slot], w->block, bytes), SYS_write, w->twin[slot], w->block, bytes);
        BOTH(pwrite(w->held[slot], w->block, bytes / 2, 77), SYS_pwrite64, w->twin[slot], w->block, bytes / 2, 77);
        RAW(SYS_exit_group, 0);
    }
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (status) fail(w, "the child ended with status %x", status);
}

static void names(struct worker *w) {
    char a[40], b[40];
    name(w, a);
    name(w, b);
    switch (pick(w, 6)) {
    case 0:
    case 1:
        say(w, "renameat(%s, %s)", a, b);
        BOTH(renameat(held_dir, a, held_dir, b), SYS_renameat, twin_dir, a, twin_dir, b);
        break;
    case 2:
        say(w, "linkat(%s, %s)", a, b);
        BOTH(linkat(held_dir, a, held_dir, b, 0), SYS_linkat, twin_dir, a, twin_dir, b, 0);
        break;
    case 3:
        say(w, "renameat2(%s, %s)", a, b);
        int flags = pick(w, 4) ? RENAME_NOREPLACE : RENAME_EXCHANGE;
        BOTH(renameat2(held_dir, a, held_dir, b, flags), SYS_renameat2, twin_dir, a, twin_dir, b, flags);
        break;
    default:
        say(w, "unlinkat(%s)", a);
        BOTH(unlinkat(held_dir, a, 0), SYS_unlinkat, twin_dir, a, 0);
    }
    compare_file(w, a);
}

static void common(struct worker *w, size_t bytes) {
    /* Mostly within the own region of the file in common. */
    off_t at = (off_t)w->index * REGION + pick(w, REGION);
    if (bytes > (size_t)REGION / 4) bytes = REGION / 4;
    if (at + (off_t)bytes > (off_t)(w->index + 1) * REGION) at = (off_t)(w->index + 1) * REGION - bytes;
    say(w, "pwrite(common, %zu, %ld)", bytes, (long)at);
    BOTH(pwrite(w->common_held, w->block, bytes, at), SYS_pwrite64, w->common_twin, w->block, bytes, at);
    long n = LOOK(pread(w->common_held, w->other, bytes, at), SYS_pread64, w->common_held, w->other, bytes, at);
    if (n != (long)bytes || memcmp(w->other, w->block, bytes)) fail(w, "not read back");
}

static void step(struct worker *w) {
    uint32_t what = pick(w, 1000), slot = pick(w, SLOTS);
    size_t bytes = pick(w, 8) ? pick(w, 600) : pick(w, 30) ? pick(w, 9000) : pick(w, BLOCK);
    off_t at = pick(w, 50) ? pick(w, SIZE_MAX_BYTES / 4) : pick(w, SIZE_MAX_BYTES);
    int held = w->held[slot], twin = w->twin[slot];
    if (held < 0 || what < 4) {
        open_slot(w, slot);
        return;
    }
    struct iovec parts[3] = { { w->block, bytes / 3 }, { w->block + bytes / 3, bytes / 3 }, { w->block + bytes / 2, bytes / 4 } };
    struct iovec halves[2] = { { w->block, bytes / 2 }, { w->block + bytes / 2, bytes - bytes / 2 } };
    if (what < 470) fill(w, bytes);
    if (what < 130) {
        say(w, "write(slot %d, %zu)", slot, bytes);
        BOTH(write(held, w->block, bytes), SYS_write, twin, w->block, bytes);
    } else if (what < 260) {
        say(w, "pwrite(slot %d, %zu, %ld)", slot, bytes, (long)at);
        BOTH(pwrite(held, w->block, bytes, at), SYS_pwrite64, twin, w->block, bytes, at);
    } else if (what < 300) {
        say(w, "writev(slot %d, %zu)", slot, bytes);
        BOTH(writev(held, parts, 3), SYS_writev, twin, parts, 3);
    } else if (what < 340) {
        say(w, "pwritev(slot %d, %zu, %ld)", slot, bytes, (long)at);
        BOTH(pwritev(held, parts, 3, at), SYS_pwritev, twin, parts, 3, at, 0);
    } else if (what < 380) {
        static const int all[] = { 0, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_APPEND, 0x40000000 };
        int flags = all[pick(w, 6)];
        off_t place = pick(w, 3) ? at : -1;
        say(w, "pwritev2(slot %d, %zu, %ld, %x)", slot, bytes, (long)place, flags);
        BOTH(pwritev2(held, parts, 2, place, flags), SYS_pwritev2, twin, parts, 2, place, 0, flags & ~(RWF_DSYNC | RWF_SYNC));
    } else if (what < 470) {
        common(w, bytes);
    } else if (what < 620) {
        int whence = pick(w, 3);
        off_t to = whence == SEEK_SET ? at : (off_t)pick(w, 2000) - 1000;
        say(w, "lseek(slot %d, %ld, %d)", slot, (long)to, whence);
        BOTH(lseek(held, to, whence), SYS_lseek, twin, to, whence);
    } else if (what < 740) {
        say(w, "read(slot %d, %zu)", slot, bytes);
        int whole = pick(w, 4);
        long n = as_kernel(whole ? read(held, w->block, bytes) : readv(held, halves, 2));
        same(w, n, RAW(SYS_read, twin, w->other, bytes));
        if (n > 0 && memcmp(w->block, w->other, n)) fail(w, "other bytes");
    } else if (what < 860) {
        say(w, "pread(slot %d, %zu, %ld)", slot, bytes, (long)at);
        uint32_t form = pick(w, 8);
        long n = as_kernel(form > 2   ? pread(held, w->block, bytes, at)
                           : form > 1 ? preadv(held, halves, 2, at)
                                      : preadv2(held, halves, 2, at, form ? RWF_HIPRI : 0));
        same(w, n, RAW(SYS_pread64, twin, w->other, bytes, at));
        if (n > 0 && memcmp(w->block, w->other, n)) fail(w, "other bytes");
    } else if (what < 890) {
        /* What the twin would have to sync is not the question. */
        say(w, "fsync(slot %d)", slot);
        errno = 0;
        same(w, as_kernel(pick(w, 2) ? fsync(held) : fdatasync(held)), 0);
    } else if (what < 915) {
        struct stat a, b;
        say(w, "fstat(slot %d)", slot);
        BOTH(fstat(held, &a), SYS_fstat, twin, &b);
        if (a.st_size != b.st_size || a.st_nlink != b.st_nlink) fail(w, "size %ld, natively %ld", (long)a.st_size, (long)b.st_size);
    } else if (what < 930) {
        off_t size = pick(w, 3) ? at : pick(w, 2000);
        say(w, "ftruncate(slot %d, %ld)", slot, (long)size);
        BOTH(ftruncate(held, size), SYS_ftruncate, twin, size);
    } else if (what < 938) {
        int flags = pick(w, 2) ? O_APPEND : 0;
        say(w, "fcntl(slot %d, F_SETFL, %o)", slot, flags);
        BOTH(fcntl(held, F_SETFL, flags), SYS_fcntl, twin, F_SETFL, flags);
    } else if (what < 952) {
        share(w, slot);
    } else if (what < 958) {
        say(w, "close(slot %d)", slot);
        drop(w, slot);
    } else if (what < 972) {
        int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        int kind = pick(w, 4) ? punch : pick(w, 3) ? 0 : FALLOC_FL_KEEP_SIZE;
        say(w, "fallocate(slot %d, %d, %ld, %zu)", slot, kind, (long)at, bytes + 1);
        BOTH(fallocate(held, kind, at, bytes + 1), SYS_fallocate, twin, kind, at, bytes + 1);
    } else if (what < 976) {
        char path[40];
        off_t size = at;
        name(w, path);
        char a[80], b[80];
        sprintf(a, "held/%s", path);
        sprintf(b, "plain/%s", path);
        say(w, "truncate(%s, %ld)", path, (long)size);
        BOTH(truncate(a, size), SYS_truncate, b, size);
    } else if (what < 980) {
        names(w);
    } else if (what < 983) {
        /* From the common file, which nobody changes here, into a file of our own. */
        off_t from = (off_t)w->index * REGION, from_too = from;
        say(w, "copy into slot %d, %zu", slot, bytes);
        if (pick(w, 2)) BOTH(sendfile(held, w->common_held, &from, bytes), SYS_sendfile, twin, w->common_twin, &from_too, bytes);
        else BOTH(copy_file_range(w->common_held, &from, held, NULL, bytes, 0), SYS_copy_file_range, w->common_twin, &from_too, twin, NULL, bytes, 0);
    } else if (what < 984) {
        fill(w, bytes);
        child(w, slot, bytes);
    } else if (what < 990) {
        say(w, "fchmod(slot %d)", slot);
        mode_t bits = pick(w, 2) ? 0644 : 0664;
        BOTH(fchmod(held, bits), SYS_fchmod, twin, bits);
    } else if (what < 996) {
        say(w, "cursor and content of slot %d", slot);
        compare_slot(w, slot);
    } else {
        say(w, "wrong calls");
        BOTH(pwrite(held, w->block, 10, -1), SYS_pwrite64, twin, w->block, 10, -1);
        BOTH(ftruncate(held, -1), SYS_ftruncate, twin, -1);
        BOTH(write(held, (char *)8, 10), SYS_write, twin, 8, 10);
        BOTH(writev(held, parts, -1), SYS_writev, twin, parts, -1);
        BOTH(lseek(held, 0, 77), SYS_lseek, twin, 0, 77);
        BOTH(fallocate(held, 0, -1, 5), SYS_fallocate, twin, 0, -1, 5);
    }
}

static void finish(struct worker *w) {
    char path[40];
    say(w, "the end");
    for (int slot = 0; slot < SLOTS; slot++) compare_slot(w, slot);
    compare_content(w, w->common_held, w->common_twin, (off_t)w->index * REGION, REGION);
    for (int i = 0; i < FILES; i++) {
        sprintf(path, "w%d-f%d", w->index, i);
        compare_file(w, path);
    }
}

static void *work(void *argument) {
    struct worker *w = argument;
    w->block = malloc(BLOCK + 64);
    w->other = malloc(BLOCK + 64);
    for (int slot = 0; slot < SLOTS; slot++) w->held[slot] = w->twin[slot] = -1;
    for (w->at = 0; w->at < w->calls; w->at++) step(w);
    finish(w);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    seed = strtoull(arguments[1], NULL, 10);
    long calls = atol(arguments[2]);
    mode = arguments[3];
    if (chdir(arguments[4]) || mkdir("held", 0755) || mkdir("plain", 0755)) return 3;
    held_dir = open("held", O_RDONLY | O_DIRECTORY);
    twin_dir = open("plain", O_RDONLY | O_DIRECTORY);
    processes = !strcmp(mode, "processes");
    traced = getenv("DIFFER_TRACE") != NULL;
    behind = getenv("DIFFER_BEHIND") != NULL;
    int workers = !strcmp(mode, "single") ? 1 : WORKERS;
    static struct worker all[WORKERS];
    int common_held = openat(held_dir, "common", O_RDWR | O_CREAT, 0644), common_twin = RAW(SYS_openat, twin_dir, "common", O_RDWR | O_CREAT, 0644);
    common_twin = RAW(SYS_dup3, common_twin, TWINS_FROM - 1, 0);
    if (ftruncate(common_held, WORKERS * REGION) || RAW(SYS_ftruncate, common_twin, WORKERS * REGION)) return 4;
    pthread_t thread[WORKERS];
    for (int i = 0; i < workers; i++) {
        all[i] = (struct worker){ .index = i, .random = seed * 1000003 + i, .calls = calls / workers, .common_held = common_held,
                                  .common_twin = common_twin };
        pick(&all[i], 2);
        if (processes && workers > 1) {
            if (fork() == 0) {
                work(&all[i]);
                _exit(0);
            }
        } else if (workers > 1) {
            pthread_create(&thread[i], NULL, work, &all[i]);
        } else {
            work(&all[i]);
        }
    }
    int bad = 0, status;
    if (processes) while (wait(&status) > 0) bad |= status;
    else if (workers > 1) for (int i = 0; i < workers; i++) pthread_join(thread[i], NULL);
    if (bad) return 1;
    char line[100];
    int bytes = sprintf(line, "%ld calls agree\n", calls / workers * workers);
    RAW(SYS_write, 1, line, bytes);
    /* Until the test has killed everything, if it wants to see the log replayed. */
    if (getenv("DIFFER_STAYS")) pause();
    return 0;
}
