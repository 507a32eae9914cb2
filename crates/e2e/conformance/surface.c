/* Every name that libc has for a function, called through the program's own table and at libc's own entry, and calls that
 * few programs make. */
#include "conform.h"
#include <dlfcn.h>
#include <linux/openat2.h>
#include <spawn.h>
#include <sys/acct.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/swap.h>
#define THEME "surface"
#define PART(text) (&(struct iovec){ text, sizeof text - 1 })

/* Calls `body` with `f`, for each of the names, as a program is linked to it and as libc itself has it. */
#define FORMS(type, body, ...) do { \
        static const char *const names[] = { __VA_ARGS__ }; \
        void *const places[] = { RTLD_DEFAULT, dlopen("libc.so.6", RTLD_LAZY) }; \
        for (int i = 0; i < (int)(sizeof names / sizeof *names) * 2; i++) { \
            const char *name = names[i / 2]; \
            type *f = (type *)dlsym(places[i % 2], name); \
            if (!f) { say("%s: none", name); continue; } \
            errno = 0; \
            body; \
        } \
    } while (0)
/* What a form returned. */
#define R(call) do { long result_ = (long)(call); say("%s = %ld %s", name, result_, errno ? errno_name(errno) : ""); } while (0)

typedef ssize_t writing(int, const void *, size_t);
typedef ssize_t writing_at(int, const void *, size_t, off_t);
typedef ssize_t vectors(int, const struct iovec *, int);
typedef ssize_t vectors_at(int, const struct iovec *, int, off_t);
typedef ssize_t vectors_flagged(int, const struct iovec *, int, off_t, int);
CHECK(a_question_that_no_file_answers, 4) {
    int fd = make("a", 4096, 1);
    T(fsync(fd));
    T(ioctl(fd, 0x5899, 0));
    T(ioctl(fd, TIOCGWINSZ, big));
    for (int at = 0; at < 3; at++) T(pwrite(fd, "and now", 7, 100 * at));
    T(fsync(fd));
    state(fd);
}
CHECK(every_form_of_write, 25) {
    int fd = make("a", 100, 1);
    FORMS(writing, R(f(fd, name, strlen(name))), "write", "__write", "__write_nocancel");
    FORMS(writing_at, R(f(fd, name, strlen(name), i * 20)), "pwrite", "pwrite64", "__pwrite64", "__libc_pwrite");
    FORMS(vectors, R(f(fd, PART("vector"), 1)), "writev");
    FORMS(vectors_at, R(f(fd, PART("vector at"), 1, 300 + i * 20)), "pwritev", "pwritev64");
    FORMS(vectors_flagged, R(f(fd, PART("flagged"), 1, 400 + i * 20, RWF_DSYNC)), "pwritev2", "pwritev64v2");
    state(fd);
}
typedef ssize_t reading(int, void *, size_t);
typedef ssize_t reading_at(int, void *, size_t, off_t);
typedef ssize_t reading_checked(int, void *, size_t, size_t);
typedef ssize_t reading_at_checked(int, void *, size_t, off_t, size_t);
CHECK(every_form_of_read, 1) {
    int fd = make("a", 900, 1);
    struct iovec part = { big, 10 };
#define SEEN(call) R(call); say("sum %llx", (unsigned long long)sum(big, 10, 0))
    FORMS(reading, SEEN(f(fd, big, 10)), "read", "__read", "__read_nocancel");
    FORMS(reading_at, SEEN(f(fd, big, 10, i * 20)), "pread", "pread64", "__pread64", "__libc_pread", "__pread64_nocancel");
    FORMS(reading_checked, SEEN(f(fd, big, 10, 100)), "__read_chk");
    FORMS(reading_at_checked, SEEN(f(fd, big, 10, i * 20, 100)), "__pread_chk", "__pread64_chk");
    FORMS(vectors, SEEN(f(fd, &part, 1)), "readv");
    FORMS(vectors_at, SEEN(f(fd, &part, 1, 300 + i * 20)), "preadv", "preadv64");
    FORMS(vectors_flagged, SEEN(f(fd, &part, 1, 400 + i * 20, 0)), "preadv2", "preadv64v2");
    state(fd);
}
typedef int closing(int);
typedef int opening(const char *, int, ...);
typedef int opening_at(int, const char *, int, ...);
static void written_and_closed(int fd, closing *end) {
    say("%d", fd);
    T(write(fd, "opened", 6));
    state(fd);
    T(end(fd));
}
CHECK(every_form_of_open_and_close, 31) {
    close(make("a", 100, 1));
    FORMS(opening, written_and_closed(f("a", O_RDWR), close), "open", "open64", "__open", "__open64", "__open_nocancel", "__open64_nocancel",
          "__open_2", "__open64_2");
    FORMS(opening_at, written_and_closed(f(AT_FDCWD, "a", O_RDWR), close), "openat", "openat64", "__openat_2", "__openat64_2");
    FORMS(opening, written_and_closed(f("b", 0644, 0), close), "creat", "creat64");
    FORMS(closing, written_and_closed(open("a", O_RDWR | O_TRUNC), f), "close", "__close", "__close_nocancel");
    file("a");
    descriptors();
}
typedef int looking_at(const char *, struct stat *);
typedef int looking(int, struct stat *);
typedef int looking_from(int, const char *, struct stat *, int);
typedef int old_looking_at(int, const char *, struct stat *);
typedef int old_looking(int, int, struct stat *);
typedef int old_looking_from(int, int, const char *, struct stat *, int);
CHECK(every_form_of_stat, 2) {
    int fd = make("a", 123, 1);
    struct stat st;
    T(write(fd, "x", 1));
    T(pwrite(fd, "end", 3, 1000));
#define SIZED(call) memset(&st, 0, sizeof st); R(call); say("%ld bytes", (long)st.st_size)
    FORMS(looking_at, SIZED(f("a", &st)), "stat", "stat64", "lstat", "lstat64");
    FORMS(looking, SIZED(f(fd, &st)), "fstat", "fstat64", "__fstat64");
    FORMS(looking_from, SIZED(f(AT_FDCWD, "a", &st, 0)), "fstatat", "fstatat64");
    FORMS(old_looking_at, SIZED(f(1, "a", &st)), "__xstat", "__xstat64", "__lxstat", "__lxstat64");
    FORMS(old_looking, SIZED(f(1, fd, &st)), "__fxstat", "__fxstat64");
    FORMS(old_looking_from, SIZED(f(1, AT_FDCWD, "a", &st, 0)), "__fxstatat", "__fxstatat64");
    FORMS(old_looking, SIZED(f(7, fd, &st)), "__fxstat");
}
typedef int resizing(int, off_t);
typedef int resizing_at(const char *, off_t);
typedef int allocating(int, int, off_t, off_t);
typedef int allocating_plainly(int, off_t, off_t);
typedef off_t seeking(int, off_t, int);
typedef int copying(int, int);
typedef int controlling(int, int, ...);
typedef ssize_t sending(int, int, off_t *, size_t);
typedef int making(int, const char *, mode_t, dev_t *);
typedef int making_at(int, int, const char *, mode_t, dev_t *);
CHECK(every_form_of_the_rest, 4) {
    int fd = make("a", 1000, 1), to = make("to", 10, 1);
    dev_t none = 0;
    char path[40];
    FORMS(resizing, R(f(fd, 900 - i)), "ftruncate", "ftruncate64");
    FORMS(resizing_at, R(f("a", 800 - i)), "truncate", "truncate64");
    FORMS(allocating, R(f(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, i * 50, 20)), "fallocate", "fallocate64");
    FORMS(allocating_plainly, R(f(fd, 0, 1000 + i)), "posix_fallocate", "posix_fallocate64");
    FORMS(seeking, R(f(fd, i, SEEK_END)), "lseek", "lseek64", "llseek", "__lseek");
    T(write(fd, "behind the end", 14));
    FORMS(copying, R(f(fd, 20 + i)), "dup2", "__dup2");
    T(write(21, "by a copy", 9));
    FORMS(controlling, R(f(fd, F_GETFL)), "fcntl", "fcntl64", "__fcntl", "__libc_fcntl64");
    off_t from = 0;
    FORMS(sending, R(f(to, fd, &from, 5)), "sendfile", "sendfile64");
    FORMS(making, sprintf(path, "node%d", i); R(f(0, path, S_IFREG | 0644, &none)), "__xmknod");
    FORMS(making_at, sprintf(path, "node%d", i + 10); R(f(0, AT_FDCWD, path, S_IFIFO | 0644, &none)), "__xmknodat");
    FORMS(making, R(f(1, "no", S_IFREG, &none)), "__xmknod");
    state(fd);
    state(to);
}
typedef FILE *running(const char *, const char *);
typedef pid_t forking(void);
CHECK(every_form_of_children, 11) {
    int fd = make("a", 10, 1);
    FORMS(running, FILE *out = f("echo from a child", "r"); say("%s", fgets(big, 100, out)); R(pclose(out)), "popen", "_IO_popen");
    FORMS(forking, pid_t pid = f(); if (!pid) { write(fd, "child", 5); _exit(3); } reap(name, pid), "fork", "__fork", "__libc_fork", "_Fork");
    T(write(fd, "parent", 6));
    state(fd);
}
CHECK(flags_of_every_kind, 11) {
    /* But for RWF_NOWAIT (8), whose answer depends on what else happens. */
    int fd = make("a", 100000, 1);
    for (int bit = 0; bit < 12; bit++) {
        struct iovec in = { big, 10 }, out = { "written", 7 };
        int flags = 1 << bit;
        if (flags == RWF_NOWAIT) continue;
        say("flags %x", flags);
        T(pwritev2(fd, &out, 1, 100 * bit, flags));
        T(preadv2(fd, &in, 1, 100 * bit, flags));
        say("%.10s", big);
        T(pwritev2(fd, &out, 1, -1, flags | RWF_DSYNC));
        T(preadv2(fd, &in, 1, -1, flags));
    }
    state(fd);
}
CHECK(truncation_by_openat2, 6) {
    struct open_how how = { .flags = O_RDWR | O_TRUNC };
    int fd = make("a", 5000, 1);
    int other = T(syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how));
    state(fd);
    T(pwrite(other, "after", 5, 100));
    state(fd);
    T(write(fd, "x", 1));
    how.flags = O_RDONLY | O_TRUNC;
    T(syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how));
    state(fd);
    T(write(fd, "y", 1));
    how = (struct open_how){ .flags = O_RDWR | O_TRUNC | O_CREAT | O_EXCL, .mode = 0600 };
    T(syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how));
    other = T(syscall(SYS_openat2, AT_FDCWD, "new", &how, sizeof how));
    T(write(other, "new", 3));
    how = (struct open_how){ .flags = O_WRONLY | O_TRUNC | O_SYNC, .resolve = RESOLVE_BENEATH };
    other = T(syscall(SYS_openat2, AT_FDCWD, "new", &how, sizeof how));
    T(write(other, "again", 5));
    T(syscall(SYS_openat2, AT_FDCWD, "missing", &how, sizeof how));
    T(syscall(SYS_openat2, AT_FDCWD, "new", &how, 7));
    T(syscall(SYS_openat2, AT_FDCWD, "new", &how, 5000));
    T(syscall(SYS_openat2, AT_FDCWD, "new", 8, sizeof how));
    state(fd);
    file("a");
    file("new");
}
CHECK(truncation_by_handle, 2) {
    struct { struct file_handle head; char bytes[128]; } handle = { .head.handle_bytes = 128 };
    int fd = make("a", 5000, 1), mount = T(open(".", O_RDONLY)), id;
    if (T(name_to_handle_at(AT_FDCWD, "a", &handle.head, &id, 0))) return;
    int other = T(open_by_handle_at(mount, &handle.head, O_RDWR));
    T(pwrite(other, "by handle", 9, 10));
    state(fd);
    T(close(other));
    other = T(open_by_handle_at(mount, &handle.head, O_WRONLY | O_TRUNC));
    state(fd);
    T(write(other, "after", 5));
    T(close(other));
    T(close(T(open_by_handle_at(mount, &handle.head, O_RDONLY | O_TRUNC))));
    state(fd);
    T(open_by_handle_at(mount, (void *)8, O_RDWR | O_TRUNC));
}
CHECK(a_read_map_made_writable_with_a_key, 2) {
    int fd = make("a", 8192, 1);
    char *map = P(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0));
    T(pwrite(fd, "before", 6, 0));
    T(pkey_mprotect(map, 4096, PROT_READ | PROT_WRITE, -1));
    memcpy(map, "stored", 6);
    T(pwrite(fd, "W", 1, 3));
    say("%.6s", map);
    T(pkey_mprotect(map, 4096, PROT_READ | PROT_WRITE, 77));
    state(fd);
}
CHECK(a_stream_that_maps_its_file, 2) {
    int fd = make("a", 9000, 1);
    T(pwrite(fd, "written before", 14, 0));
    FILE *stream = fopen("a", "rm");
    T(fread(big, 1, 100, stream));
    say("%.14s", big);
    T(pwrite(fd, "written after", 13, 5000));
    T(fseek(stream, 5000, SEEK_SET));
    T(fread(big, 1, 100, stream));
    say("%.13s", big);
    T(fclose(stream));
    state(fd);
}
CHECK(owners_that_are_groups, 1) {
    int fd = make("a", 10, 1);
    T(fcntl(fd, F_SETOWN, -getpgrp()));
    IS(fcntl(fd, F_GETOWN) == -getpgrp());
    T(fcntl(fd, F_SETOWN, 0));
    T(fcntl(fd, F_GETOWN));
    T(fcntl(99, F_GETOWN));
}
static void limited(int number) { say("signal %d", number); }
CHECK(size_limits_by_prlimit, 4) {
    int fd = make("a", 1000, 1);
    struct rlimit limit = { 2000, RLIM_INFINITY };
    signal(SIGXFSZ, limited);
    T(prlimit(0, RLIMIT_FSIZE, &limit, NULL));
    T(pwrite(fd, big, 1000, 900));
    T(pwrite(fd, big, 1000, 1500));
    T(pwrite(fd, big, 10, 2000));
    T(pwrite(fd, big, 10, 1990));
    T(ftruncate(fd, 2001));
    T(fallocate(fd, 0, 0, 3000));
    T(lseek(fd, 0, SEEK_END));
    T(write(fd, "x", 1));
    limit.rlim_cur = RLIM_INFINITY;
    T(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &limit, NULL));
    T(write(fd, "x", 1));
    signal(SIGXFSZ, SIG_DFL);
    CHILD(limit.rlim_cur = 2000; setrlimit(RLIMIT_FSIZE, &limit); T(write(fd, "x", 1)));
    state(fd);
}
CHECK(descriptors_sent_with_many_messages, 2) {
    int fd = make("a", 10, 1), ends[2];
    T(write(fd, "sender", 6));
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    char control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct mmsghdr messages[2] = { { { .msg_iov = PART("plain"), .msg_iovlen = 1 } },
                                   { { .msg_iov = PART("with"), .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control } } };
    struct cmsghdr *head = CMSG_FIRSTHDR(&messages[1].msg_hdr);
    *head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    T(sendmmsg(ends[0], messages, 2, 0));
    CHILD(T(recv(ends[1], big, 100, 0)); T(recvmsg(ends[1], &messages[1].msg_hdr, 0));
          int got; memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&messages[1].msg_hdr)), sizeof got); T(write(got, "receiver", 8)));
    T(write(fd, "sender", 6));
    state(fd);
}
CHECK(notices_of_content, 2) {
    int fd = make("a", 10, 1), watcher = T(inotify_init1(IN_NONBLOCK));
    T(inotify_add_watch(watcher, "a", IN_MODIFY));
    T(write(fd, "x", 1));
    T(read(watcher, big, 1000));
    T(inotify_add_watch(watcher, ".", IN_MODIFY));
    T(write(fd, "x", 1));
    T(read(watcher, big, 1000));
    T(inotify_add_watch(watcher, "missing", IN_MODIFY));
    T(inotify_add_watch(watcher, (char *)8, IN_MODIFY));
    T(inotify_add_watch(99, "a", IN_MODIFY));
    int other = T(fanotify_init(FAN_NONBLOCK, O_RDONLY));
    if (other < 0) return;
    T(fanotify_mark(other, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, "a"));
    T(write(fd, "x", 1));
    T(read(other, big, 1000));
    T(fanotify_mark(other, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, "missing"));
}
CHECK(a_library_just_written_is_loaded, 1) {
    /* Not executable, as packages install them. */
    int from = open("/lib/x86_64-linux-gnu/libutil.so.1", O_RDONLY), to = T(open("library", O_RDWR | O_CREAT, 0644));
    for (ssize_t bytes; (bytes = read(from, big, 3000)) > 0;) write(to, big, bytes);
    void *library = dlopen("./library", RTLD_NOW), *again = dlmopen(LM_ID_BASE, "./library", RTLD_NOW);
    say("%s", library ? "loaded" : dlerror());
    IS(library == again);
    IS(dlopen("./missing", RTLD_NOW) == NULL);
    IS(dlopen(NULL, RTLD_NOW) != NULL);
    T(write(to, "x", 1));
}
CHECK(files_that_the_kernel_is_given, 2) {
    int fd = make("a", 8192, 1);
    T(swapon("a", 0));
    T(swapon("missing", 0));
    T(acct("missing"));
    T(acct("."));
    T(write(fd, "x", 1));
    T(mkfifoat(AT_FDCWD, "fifo", 0600));
    T(mkfifoat(AT_FDCWD, "fifo", 0600));
    state(fd);
}
CHECK(what_is_unmounted, 2) {
    int fd = make("a", 100, 1);
    T(umount2("a", 0));
    T(umount("missing"));
    T(umount2((char *)8, MNT_DETACH));
    T(mkdir("under", 0700));
    /* Without privileges it is no mount, and not busy. */
    T(mount("under", "under", NULL, MS_BIND, NULL));
    int busy = T(open("under/b", O_RDWR | O_CREAT, 0600));
    T(write(busy, "x", 1));
    T(fsync(busy));
    T(umount("under"));
    T(close(busy));
    T(umount2("under", 0));
    T(umount2("under", 0));
    state(fd);
}
CHECK(a_program_by_descriptor, 2) {
    int fd = make("a", 10, 1), shell = T(open("/bin/sh", O_RDONLY | O_CLOEXEC));
    T(write(fd, "before", 6));
    pid_t pid = fork();
    if (pid == 0) {
        char line[40];
        sprintf(line, "echo by the shell >&%d", fd);
        execveat(shell, "", (char *[]){ "sh", "-c", line, NULL }, environ, AT_EMPTY_PATH);
        _exit(9);
    }
    reap("the shell", pid);
    T(write(fd, "after", 5));
    state(fd);
}
