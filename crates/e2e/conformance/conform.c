/* Runs checks: `conform run THEME DIRECTORY` tells a transcript and what is there in the end, `conform tree DIRECTORY` what
 * is there now, `conform list` the checks with the writes that are absorbed at least. A check's name stands for a theme. */
#include "conform.h"
#include <ftw.h>
#include <sys/statfs.h>
#include <time.h>

#define TRANSCRIPT_FD 900
#define TRANSCRIPT_BYTES (1 << 20)
/* A busy disk or scheduler may let one fsync wait for many seconds: that is slow, natively too, and not a hang. */
#define HANGS_S 60

extern const struct check *const __start_checks[], *const __stop_checks[];
extern const struct helper *const __start_helpers[], *const __stop_helpers[];

struct transcript {
    uint32_t used;
    char text[TRANSCRIPT_BYTES - sizeof(uint32_t)];
};

static struct transcript *transcript;
char big[1 << 20];
const char *self_path;

void say(const char *format, ...) {
    char line[2000];
    va_list arguments;
    int saved = errno;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (bytes > (int)sizeof line - 2) bytes = sizeof line - 2;
    line[bytes++] = '\n';
    uint32_t at = __atomic_fetch_add(&transcript->used, bytes, __ATOMIC_SEQ_CST);
    if (at + bytes <= sizeof transcript->text) memcpy(transcript->text + at, line, bytes);
    errno = saved;
}

const char *errno_name(int error) {
    const char *name = strerrorname_np(error);
    return name ? name : "an unknown error";
}

void tell(const char *call, long long result, int error) {
    if (result == -1) say("%s = -1 %s", call, error == ERRNO_BEFORE ? "without errno" : errno_name(error));
    else if (error != ERRNO_BEFORE) say("%s = %lld, errno set to %s", call, result, errno_name(error));
    else say("%s = %lld", call, result);
}

uint64_t sum(const void *buffer, size_t bytes, uint64_t before) {
    const unsigned char *at = buffer;
    uint64_t hash = before ? before : 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

char *fill(void *buffer, size_t bytes, unsigned seed) {
    unsigned char *at = buffer;
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0) seed = seed * 1664525 + 1013904223;
        at[i] = (seed >> 24) + i;
    }
    return buffer;
}

/* Of files that are mostly a hole the rest is not read. */
#define SUMMED_MAX (64 << 20)

static uint64_t content_sum(int fd) {
    static char buffer[1 << 16];
    uint64_t hash = 1;
    ssize_t bytes;
    off_t at = 0;
    while (at < SUMMED_MAX && (bytes = pread(fd, buffer, sizeof buffer, at)) > 0) {
        hash = sum(buffer, bytes, hash);
        at += bytes;
    }
    return hash;
}

void file(const char *path) {
    struct stat st;
    int saved = errno;
    if (lstat(path, &st)) {
        say("  %s: %s", path, errno_name(errno));
    } else if (!S_ISREG(st.st_mode)) {
        say("  %s: mode %o links %lu", path, st.st_mode, (unsigned long)st.st_nlink);
    } else {
        int fd = open(path, O_RDONLY);
        uint64_t hash = fd < 0 ? 0 : content_sum(fd);
        if (fd >= 0) close(fd);
        say("  %s: %ld bytes, sum %llx, mode %o, links %lu, owner %u:%u%s", path, (long)st.st_size, (unsigned long long)hash,
            st.st_mode, (unsigned long)st.st_nlink, st.st_uid, st.st_gid, fd < 0 ? ", unreadable" : "");
    }
    errno = saved;
}

void state(int fd) {
    struct stat st;
    int saved = errno;
    if (fstat(fd, &st)) {
        say("  descriptor %d: %s", fd, errno_name(errno));
    } else {
        int flags = fcntl(fd, F_GETFL);
        uint64_t hash = (flags & O_ACCMODE) != O_WRONLY && !(flags & (O_PATH | O_DIRECT)) ? content_sum(fd) : 0;
        say("  descriptor %d: %ld bytes, sum %llx, mode %o, links %lu, cursor %ld, flags %o, close-on-exec %d", fd,
            (long)st.st_size, (unsigned long long)hash, st.st_mode, (unsigned long)st.st_nlink, (long)lseek(fd, 0, SEEK_CUR),
            flags, fcntl(fd, F_GETFD));
    }
    errno = saved;
}

void descriptors(void) {
    char line[500] = "";
    DIR *dir = opendir("/proc/self/fd");
    char seen[800] = { 0 };
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && fd < 800 && fd != dirfd(dir)) seen[fd] = 1;
    }
    closedir(dir);
    for (int fd = 0; fd < 800; fd++)
        if (seen[fd] && strlen(line) < 480) sprintf(line + strlen(line), " %d", fd);
    say("  descriptors:%s", line);
}

int make(const char *path, size_t bytes, unsigned seed) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (size_t at = 0; at < bytes;) {
        size_t part = bytes - at < sizeof big ? bytes - at : sizeof big;
        fill(big, part, seed++);
        if (pwrite(fd, big, part, at) != (ssize_t)part) say("make %s: %s", path, errno_name(errno));
        at += part;
    }
    memset(big, 0, sizeof big);
    return fd;
}

void reap(const char *what, pid_t pid) {
    int status = -1;
    pid_t waited;
    do waited = waitpid(pid, &status, 0); while (waited < 0 && errno == EINTR);
    if (waited != pid) say("%s: lost, %s", what, errno_name(errno));
    else if (WIFSIGNALED(status)) say("%s: ended by signal %d", what, WTERMSIG(status));
    else say("%s: exit %d", what, WEXITSTATUS(status));
}

void become(const char *helper, ...) {
    char *argv[20] = { (char *)self_path, "--helper", (char *)helper };
    int count = 3;
    va_list arguments;
    va_start(arguments, helper);
    while (count < 19 && (argv[count] = va_arg(arguments, char *))) count++;
    va_end(arguments);
    execv(self_path, argv);
    say("exec: %s", errno_name(errno));
    _exit(127);
}

long filesystem(void) {
    struct statfs fs;
    return statfs(".", &fs) ? 0 : (long)fs.f_type;
}
int is_ext4(void) { return filesystem() == 0xef53; }
int is_xfs(void) { return filesystem() == 0x58465342; }
int is_btrfs(void) { return filesystem() == 0x9123683e; }
int is_tmpfs(void) { return filesystem() == 0x01021994; }

/* Standard output in one piece. */
static void put(const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t put = write(1, text, bytes);
        if (put <= 0) exit(3);
        text += put;
        bytes -= put;
    }
}

static void map_transcript(void) {
    transcript = mmap(NULL, TRANSCRIPT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, TRANSCRIPT_FD, 0);
    if (transcript == MAP_FAILED) exit(4);
}

static int order(const void *one, const void *other) {
    return strcmp((*(const struct check *const *)one)->name, (*(const struct check *const *)other)->name);
}

/* The checks of a theme by name; NULL ends them. */
static const struct check **checks_of(const char *theme) {
    size_t all = __stop_checks - __start_checks, count = 0;
    const struct check **chosen = calloc(all + 1, sizeof *chosen);
    for (size_t i = 0; i < all; i++)
        if (!theme || !strcmp(__start_checks[i]->theme, theme) || !strcmp(__start_checks[i]->name, theme))
            chosen[count++] = __start_checks[i];
    qsort(chosen, count, sizeof *chosen, order);
    return chosen;
}

static long now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void one_check(const struct check *check) {
    transcript->used = 0;
    if (mkdir(check->name, 0755)) exit(5);
    pid_t pid = fork();
    if (pid < 0) exit(6);
    if (pid == 0) {
        setpgid(0, 0);
        if (chdir(check->name)) _exit(99);
        check->run();
        _exit(0);
    }
    setpgid(pid, pid);
    int status = 0;
    long begun_s = now_s();
    while (waitpid(pid, &status, WNOHANG) == 0) {
        usleep(100);
        if (now_s() - begun_s > HANGS_S) {
            kill(-pid, SIGKILL);
            say("HANGS");
            waitpid(pid, &status, 0);
            break;
        }
    }
    kill(-pid, SIGKILL);
    if (WIFSIGNALED(status)) say("end by signal %d", WTERMSIG(status));
    else say("end %d", WEXITSTATUS(status));
    char head[300];
    int bytes = snprintf(head, sizeof head, "== %s %s\n", check->theme, check->name);
    put(head, bytes);
    put(transcript->text, transcript->used < sizeof transcript->text ? transcript->used : sizeof transcript->text);
}

static int run(const char *theme, const char *directory) {
    int fd = memfd_create("transcript", 0);
    if (dup2(fd, TRANSCRIPT_FD) != TRANSCRIPT_FD || ftruncate(TRANSCRIPT_FD, TRANSCRIPT_BYTES)) return 4;
    close(fd);
    map_transcript();
    umask(022);
    if (chdir(directory)) return 7;
    const struct check **chosen = checks_of(theme);
    if (!*chosen) return 8;
    for (; *chosen; chosen++) one_check(*chosen);
    return 0;
}

static char lines[20000][500];
static int line_count;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)kind;
    (void)where;
    if (line_count == 20000) return 1;
    char *line = lines[line_count++];
    int at = snprintf(line, 500, "%.200s: mode %o owner %u:%u", path, st->st_mode, st->st_uid, st->st_gid);
    if (!S_ISDIR(st->st_mode)) at += snprintf(line + at, 500 - at, " links %lu", (unsigned long)st->st_nlink);
    /* Times that a check has set are of the first years. */
    if (st->st_mtim.tv_sec < 1000000000)
        at += snprintf(line + at, 500 - at, " modified %ld.%09ld", (long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    if (S_ISREG(st->st_mode)) {
        int fd = open(path, O_RDONLY);
        at += snprintf(line + at, 500 - at, " bytes %ld sum %llx", (long)st->st_size,
                       fd < 0 ? 0ull : (unsigned long long)content_sum(fd));
        if (fd >= 0) close(fd);
    }
    char names[1000], value[200];
    ssize_t bytes = llistxattr(path, names, sizeof names);
    for (ssize_t name = 0; name < bytes; name += strlen(names + name) + 1) {
        ssize_t length = lgetxattr(path, names + name, value, sizeof value);
        at += snprintf(line + at, 500 - at, " %.50s %zd %llx", names + name, length,
                       (unsigned long long)sum(value, length < 0 ? 0 : length, 0));
    }
    return 0;
}

static int tree(const char *directory) {
    if (chdir(directory) || nftw(".", visit, 50, FTW_PHYS)) return 9;
    qsort(lines, line_count, sizeof lines[0], (int (*)(const void *, const void *))strcmp);
    for (int i = 0; i < line_count; i++) printf("%s\n", lines[i]);
    return 0;
}

int main(int count, char **arguments) {
    static char path[4096];
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 2;
    self_path = path;
    if (count >= 3 && !strcmp(arguments[1], "--helper")) {
        map_transcript();
        for (const struct helper *const *it = __start_helpers; it < __stop_helpers; it++)
            if (!strcmp((*it)->name, arguments[2])) return (*it)->run(count - 3, arguments + 3);
        return 98;
    }
    if (count == 4 && (!strcmp(arguments[1], "run") || !strcmp(arguments[1], "run-and-stay"))) {
        int status = run(arguments[2], arguments[3]);
        put("== tree\n", 8);
        if (!status) status = tree(".");
        printf("== over\n");
        fflush(stdout);
        /* The test kills everything now. */
        if (!strcmp(arguments[1], "run-and-stay")) pause();
        return status;
    }
    if (count == 3 && !strcmp(arguments[1], "tree")) return tree(arguments[2]);
    if (count == 2 && !strcmp(arguments[1], "list")) {
        for (const struct check **all = checks_of(NULL); *all; all++)
            printf("%s %s %d\n", (*all)->theme, (*all)->name, (*all)->writes);
        return 0;
    }
    fprintf(stderr, "usage: conform run|run-and-stay THEME DIRECTORY | tree DIRECTORY | list\n");
    return 1;
}
