// One process of a case: makes its steps of a script through the C library, where a preloaded
// library sees them, when its turn comes, and notes what came of each in memory that the machine
// reads. It must do nothing else: no call of its own on the file system that will be cut.
//
//     actor WHO SCRIPT BOARD ROOT [PAUSE_MS]
//
// With a pause it lets so much time go by after each of its steps.
//
// A line of the script: who, tag, verb, up to two paths. The tag is the step's own letter: what it
// writes consists of it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PAGE = 4096, STEPS_MAX = 64, FILES_MAX = 16 };

struct board {
    _Atomic uint32_t turn;
    int32_t results[STEPS_MAX];
};

// A file that this actor has open under the name it knows.
struct file {
    char path[64];
    int fd;
    char *mapping;
    size_t mapped;
};

static struct file files[FILES_MAX];
static char tag;

static struct file *known(const char *path) {
    for (int i = 0; i < FILES_MAX; i++)
        if (files[i].fd >= 0 && strcmp(files[i].path, path) == 0) return &files[i];
    return NULL;
}

static struct file *keep(const char *path, int fd) {
    if (fd < 0) return NULL;
    // Somebody else may have taken the name from what was known by it.
    struct file *stale = known(path);
    if (stale) stale->path[0] = 0;
    for (int i = 0; i < FILES_MAX; i++)
        if (files[i].fd < 0) {
            snprintf(files[i].path, sizeof files[i].path, "%s", path);
            files[i].fd = fd;
            files[i].mapping = NULL;
            return &files[i];
        }
    abort();
}

// The file's description for reading and writing, opened at its first use and kept.
static struct file *file_of(const char *path) {
    struct file *file = known(path);
    return file ? file : keep(path, open(path, O_RDWR | O_CLOEXEC));
}

// Also directories, and what was never opened: for reading only, as programs do that sync by name.
static int with_synced(const char *path, int (*call)(int)) {
    struct file *file = known(path);
    if (file) return call(file->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int result = call(fd), error = errno;
    close(fd);
    errno = error;
    return result;
}

static int forget(const char *path) {
    struct file *file = known(path);
    if (!file) return 0;
    if (file->mapping) munmap(file->mapping, file->mapped);
    int result = close(file->fd);
    file->fd = -1;
    return result;
}

static void renamed(const char *from, const char *to) {
    struct file *old = known(from), *over = known(to);
    // What was renamed over stays open without a name.
    if (over) over->path[0] = 0;
    if (old) snprintf(old->path, sizeof old->path, "%s", to);
}

static int wrote(ssize_t count, size_t wanted) {
    if (count < 0) return -1;
    if ((size_t)count == wanted) return 0;
    errno = EIO;
    return -1;
}

static const char *bytes(void) {
    static char page[3 * PAGE];
    memset(page, tag, sizeof page);
    return page;
}

static int put(int fd, size_t length, off_t at) { return wrote(pwrite(fd, bytes(), length, at), length); }

static int append(int fd, size_t length) {
    if (lseek(fd, 0, SEEK_END) < 0) return -1;
    return wrote(write(fd, bytes(), length), length);
}

// A write on a description with one of the synchronous flags.
static int put_through(const char *path, int flag, int appends) {
    int fd = open(path, O_RDWR | O_CLOEXEC | flag | (appends ? O_APPEND : 0));
    if (fd < 0) return -1;
    int result = appends ? append(fd, 1000) : put(fd, PAGE, PAGE), error = errno;
    close(fd);
    errno = error;
    return result;
}

// Space that is changed through a description with one of the synchronous flags.
static int allocate_through(const char *path, int flag, int mode, off_t at, off_t length) {
    int fd = open(path, O_RDWR | O_CLOEXEC | flag);
    if (fd < 0) return -1;
    int result = fallocate(fd, mode, at, length), error = errno;
    close(fd);
    errno = error;
    return result;
}

// The beginning of the file copied behind its end, through such a description.
static int copy_through(const char *path, int flag, char how) {
    struct file *from = file_of(path);
    if (!from) return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC | flag), pipes[2] = {-1, -1};
    if (fd < 0) return -1;
    off_t begin = 0, at = 10 * PAGE;
    ssize_t copied = -1;
    if (how == 'c') copied = copy_file_range(from->fd, &begin, fd, &at, 1000, 0);
    if (how == 's' && lseek(fd, at, SEEK_SET) == at) copied = sendfile(fd, from->fd, &begin, 1000);
    if (how == 'p' && !pipe2(pipes, O_CLOEXEC) && write(pipes[1], bytes(), 1000) == 1000)
        copied = splice(pipes[0], NULL, fd, &at, 1000, 0);
    int error = errno;
    close(fd);
    if (pipes[0] >= 0) close(pipes[0]), close(pipes[1]);
    errno = error;
    return copied < 0 ? -1 : 0;
}

static int put_flagged(int fd, int flag, int appends) {
    struct iovec vector = {(void *)bytes(), appends ? 1000 : PAGE};
    struct stat stat;
    if (fstat(fd, &stat)) return -1;
    return wrote(pwritev2(fd, &vector, 1, appends ? stat.st_size : PAGE, flag), vector.iov_len);
}

static int map_and_store(struct file *file) {
    struct stat stat;
    if (fstat(file->fd, &stat)) return -1;
    if (!file->mapping) {
        file->mapped = stat.st_size ? stat.st_size : PAGE;
        char *mapping = mmap(NULL, file->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
        if (mapping == MAP_FAILED) return -1;
        file->mapping = mapping;
    }
    if (stat.st_size < 100) {
        errno = ENXIO;
        return -1;
    }
    memset(file->mapping, tag, 100);
    return 0;
}

static int sync_mapping(int fd) {
    struct stat stat;
    if (fstat(fd, &stat)) return -1;
    if (!stat.st_size) return 0;
    for (int i = 0; i < FILES_MAX; i++)
        if (files[i].fd == fd && files[i].mapping) return msync(files[i].mapping, files[i].mapped, MS_SYNC);
    char *mapping = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return -1;
    int result = msync(mapping, stat.st_size, MS_SYNC);
    munmap(mapping, stat.st_size);
    return result;
}

static int make_linked(const char *path) {
    char dir[64], self[64];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    else strcpy(dir, ".");
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (put(fd, 5000, 0) || linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    keep(path, fd);
    return 0;
}

static int clone_to(const char *from, const char *to) {
    struct file *source = file_of(from);
    if (!source) return -1;
    struct file *copy = keep(to, open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    return copy ? ioctl(copy->fd, FICLONE, source->fd) : -1;
}

static int set_times(const char *path) {
    // 2001: no clock of a machine that runs this says so.
    struct timespec times[2] = {{978307200 + tag, 0}, {978307200 + tag, 0}};
    return utimensat(AT_FDCWD, path, times, 0);
}

static int flush_range(int fd) {
    return sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static int end_now(int fd) { return syncfs(fd); }

// A commit of a journal: the sync of a file that nobody compares.
static int commit(void) {
    int fd = open(".siege", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    int result = append(fd, 1) || fsync(fd);
    close(fd);
    return result;
}

static int step(const char *verb, const char *path, const char *to) {
#define IS(name) (strcmp(verb, name) == 0)
#define ON_FILE(call) (file_of(path) ? (call) : -1)
#define FD file_of(path)->fd
    // Names.
    if (IS("create")) return keep(path, open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) ? 0 : -1;
    if (IS("tmplink")) return make_linked(path);
    if (IS("mkdir")) return mkdir(path, 0755);
    if (IS("rmdir")) return rmdir(path);
    if (IS("symlink")) return symlink("old", path);
    if (IS("link")) return link(path, to);
    if (IS("rename")) {
        int result = rename(path, to);
        if (!result) renamed(path, to);
        return result;
    }
    if (IS("exchange")) {
        int result = renameat2(AT_FDCWD, path, AT_FDCWD, to, RENAME_EXCHANGE);
        if (!result) {
            struct file *first = known(path), *second = known(to);
            if (first) snprintf(first->path, sizeof first->path, "%s", to);
            if (second) snprintf(second->path, sizeof second->path, "%s", path);
        }
        return result;
    }
    if (IS("unlink")) {
        int result = unlink(path);
        if (!result && known(path)) known(path)->path[0] = 0;
        return result;
    }
    // Bytes.
    if (IS("write")) return ON_FILE(put(FD, 5000, 0));
    if (IS("fill")) return ON_FILE(put(FD, 3 * PAGE, 0));
    if (IS("append")) return ON_FILE(append(FD, 1000));
    if (IS("over")) return ON_FILE(put(FD, PAGE, PAGE));
    if (IS("hole")) return ON_FILE(put(FD, PAGE, 8 * PAGE));
    if (IS("sover")) return put_through(path, O_SYNC, 0);
    if (IS("dover")) return put_through(path, O_DSYNC, 0);
    if (IS("sappend")) return put_through(path, O_SYNC, 1);
    if (IS("dappend")) return put_through(path, O_DSYNC, 1);
    if (IS("rsover")) return ON_FILE(put_flagged(FD, RWF_SYNC, 0));
    if (IS("rdover")) return ON_FILE(put_flagged(FD, RWF_DSYNC, 0));
    if (IS("rsappend")) return ON_FILE(put_flagged(FD, RWF_SYNC, 1));
    if (IS("rdappend")) return ON_FILE(put_flagged(FD, RWF_DSYNC, 1));
    if (IS("mmap")) return ON_FILE(map_and_store(file_of(path)));
    // Sizes and space.
    if (IS("shrink")) return ON_FILE(ftruncate(FD, 5000));
    if (IS("grow")) return ON_FILE(ftruncate(FD, 20000));
    if (IS("cut")) return truncate(path, 5000);
    if (IS("otrunc")) {
        int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        return fd < 0 ? -1 : close(fd);
    }
    if (IS("falloc")) return ON_FILE(fallocate(FD, 0, 0, 6 * PAGE));
    if (IS("fkeep")) return ON_FILE(fallocate(FD, FALLOC_FL_KEEP_SIZE, 0, 6 * PAGE));
    if (IS("punch")) return ON_FILE(fallocate(FD, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE));
    if (IS("zero")) return ON_FILE(fallocate(FD, FALLOC_FL_ZERO_RANGE, PAGE, PAGE));
    if (IS("collapse")) return ON_FILE(fallocate(FD, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE));
    if (IS("insert")) return ON_FILE(fallocate(FD, FALLOC_FL_INSERT_RANGE, PAGE, PAGE));
    if (IS("sfalloc")) return allocate_through(path, O_SYNC, 0, 0, 6 * PAGE);
    if (IS("dfalloc")) return allocate_through(path, O_DSYNC, 0, 0, 6 * PAGE);
    if (IS("spunch")) return allocate_through(path, O_SYNC, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE);
    if (IS("szero")) return allocate_through(path, O_SYNC, FALLOC_FL_ZERO_RANGE, PAGE, PAGE);
    if (IS("scollapse")) return allocate_through(path, O_SYNC, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE);
    if (IS("dinsert")) return allocate_through(path, O_DSYNC, FALLOC_FL_INSERT_RANGE, PAGE, PAGE);
    if (IS("scopy")) return copy_through(path, O_SYNC, 'c');
    if (IS("dsend")) return copy_through(path, O_DSYNC, 's');
    if (IS("ssplice")) return copy_through(path, O_SYNC, 'p');
    if (IS("clone")) return clone_to(path, to);
    // Attributes.
    if (IS("chmod")) return chmod(path, 0600);
    if (IS("fchmod")) return ON_FILE(fchmod(FD, 0640));
    if (IS("chown")) return chown(path, 1000, 1000);
    if (IS("utimens")) return set_times(path);
    if (IS("xattr")) return setxattr(path, "user.siege", &tag, 1, 0);
    // Syncs.
    if (IS("fsync")) return with_synced(path, fsync);
    if (IS("fdatasync")) return with_synced(path, fdatasync);
    if (IS("msync")) return with_synced(path, sync_mapping);
    if (IS("syncfs")) return with_synced(".", end_now);
    if (IS("sync")) return sync(), 0;
    if (IS("close")) return forget(path);
    // What the oracle puts between.
    if (IS("range")) return with_synced(path, flush_range);
    if (IS("commit")) return commit();
    if (IS("nothing")) return 0;
    fprintf(stderr, "no such verb: %s\n", verb);
    _exit(3);
}

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 20, NULL, NULL, 0); }

static void wait_while(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
}

int main(int count, char **args) {
    if (count != 5 && count != 6) return 2;
    useconds_t pause_us = count == 6 ? 1000 * atoi(args[5]) : 0;
    const char *who = args[1];
    for (int i = 0; i < FILES_MAX; i++) files[i].fd = -1;
    umask(022);
    FILE *script = fopen(args[2], "re");
    int fd = open(args[3], O_RDWR | O_CLOEXEC);
    struct board *board = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!script || board == MAP_FAILED || chdir(args[4])) {
        perror("actor");
        return 2;
    }
    static char lines[STEPS_MAX][200];
    int steps = 0, second = 0;
    while (steps < STEPS_MAX && fgets(lines[steps], sizeof lines[steps], script)) {
        second |= lines[steps][0] == 'q';
        steps++;
    }
    fclose(script);
    if (*who == 'p' && second) {
        char *child[] = {args[0], "q", args[2], args[3], args[4], NULL};
        extern char **environ;
        pid_t pid;
        if (posix_spawn(&pid, args[0], NULL, NULL, child, environ)) return 2;
    }
    for (int i = 0; i < steps; i++) {
        char actor, verb[16] = "", path[64] = "", to[64] = "";
        if (sscanf(lines[i], "%c %c %15s %63s %63s", &actor, &tag, verb, path, to) < 3) return 2;
        if (actor != *who) continue;
        uint32_t turn;
        while ((turn = board->turn) != (uint32_t)i) wait_while(&board->turn, turn);
        errno = 0;
        board->results[i] = step(verb, path, to) ? errno : 0;
        if (pause_us) usleep(pause_us);
        board->turn = i + 1;
        wake(&board->turn);
    }
    // Nothing is closed before the power is gone.
    for (;;) pause();
}
