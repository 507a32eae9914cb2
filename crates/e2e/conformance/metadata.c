/* What stat shows: sizes, modes, owners, times, attributes. */
#include "conform.h"
#include <linux/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <utime.h>
#define THEME "metadata"

static struct stat of(const char *path) {
    struct stat st = { 0 };
    lstat(path, &st);
    return st;
}
static int later(struct timespec one, struct timespec other) {
    return other.tv_sec > one.tv_sec || (other.tv_sec == one.tv_sec && other.tv_nsec > one.tv_nsec);
}
static void times(const char *path) {
    struct stat st = of(path);
    say("  %s: read %ld.%09ld, changed %ld.%09ld", path, (long)st.st_atim.tv_sec, st.st_atim.tv_nsec, (long)st.st_mtim.tv_sec,
        st.st_mtim.tv_nsec);
}
/* Clocks of file systems tick every few milliseconds. */
static void tick(void) { usleep(12000); }

CHECK(all_ways_to_stat, 2) {
    int fd = make("a", 100, 1);
    struct stat st, by_fd, at;
    struct statx x;
    T(write(fd, "x", 1));
    T(stat("a", &st));
    T(fstat(fd, &by_fd));
    T(fstatat(AT_FDCWD, "a", &at, 0));
    T(statx(AT_FDCWD, "a", 0, STATX_ALL, &x));
    T(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x));
    T(statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &x));
    IS(st.st_size == 100 && by_fd.st_size == 100 && at.st_size == 100 && x.stx_size == 100);
    IS(st.st_ino == x.stx_ino && st.st_dev == by_fd.st_dev);
    say("%o %lu %ld", st.st_mode, (unsigned long)st.st_nlink, (long)st.st_blksize);
    T(stat("missing", &st));
    T(fstat(99, &st));
    T(stat("a", (struct stat *)8));
}
CHECK(size_is_seen_at_once, 20) {
    int fd = make("a", 0, 1);
    for (int i = 1; i <= 20; i++) {
        write(fd, "0123456789", 10);
        if (of("a").st_size != i * 10) say("size at %d", i);
    }
    state(fd);
}
CHECK(writes_move_the_times, 2) {
    int fd = make("a", 10, 1);
    struct stat before = of("a");
    tick();
    T(write(fd, "x", 1));
    struct stat after = of("a");
    IS(later(before.st_mtim, after.st_mtim) && later(before.st_ctim, after.st_ctim));
    IS(!later(before.st_atim, after.st_atim));
    IS(after.st_mtim.tv_sec == after.st_ctim.tv_sec && after.st_mtim.tv_nsec == after.st_ctim.tv_nsec);
}
CHECK(syncs_and_closes_leave_the_times, 2) {
    int fd = make("a", 10, 1);
    T(write(fd, "x", 1));
    struct stat before = of("a");
    tick();
    T(fsync(fd));
    T(fdatasync(fd));
    T(close(fd));
    T(write(open("a", O_RDWR), "", 0));
    usleep(50000);
    struct stat after = of("a");
    IS(!later(before.st_mtim, after.st_mtim) && !later(before.st_ctim, after.st_ctim));
}
CHECK(the_drain_leaves_the_times, 2) {
    /* Longer than the log keeps a write: the test asks for 200 ms. */
    int fd = make("a", 10, 1);
    T(write(fd, "x", 1));
    struct stat before = of("a");
    usleep(600000);
    struct stat after = of("a");
    IS(!later(before.st_mtim, after.st_mtim) && !later(before.st_ctim, after.st_ctim));
    IS(!later(before.st_atim, after.st_atim));
    T(close(fd));
}
CHECK(empty_writes_leave_the_times, 1) {
    int fd = make("a", 10, 1);
    struct stat before = of("a");
    tick();
    T(write(fd, "", 0));
    struct stat after = of("a");
    IS(!later(before.st_mtim, after.st_mtim));
}
CHECK(truncation_moves_the_times, 1) {
    int fd = make("a", 10, 1);
    struct stat before = of("a");
    tick();
    T(ftruncate(fd, 10));
    struct stat same = of("a");
    IS(later(before.st_mtim, same.st_mtim));
    tick();
    T(truncate("a", 10));
    struct stat by_path = of("a");
    IS(later(same.st_mtim, by_path.st_mtim));
    tick();
    T(truncate("a", 5));
    IS(later(by_path.st_mtim, of("a").st_mtim));
    tick();
    before = of("a");
    T(open("a", O_WRONLY | O_TRUNC));
    IS(later(before.st_mtim, of("a").st_mtim));
    before = of("a");
    tick();
    T(open("a", O_WRONLY | O_TRUNC));
    IS(later(before.st_mtim, of("a").st_mtim));
}
CHECK(failed_calls_leave_the_times, 1) {
    int fd = make("a", 10, 1), reader = T(open("a", O_RDONLY));
    struct stat before = of("a");
    tick();
    T(write(reader, "x", 1));
    T(pwrite(fd, "x", 1, -1));
    T(ftruncate(fd, -1));
    T(open("a", O_WRONLY | O_CREAT | O_EXCL | O_TRUNC, 0644));
    T(open("a", O_WRONLY | O_CREAT, 0644));
    IS(!later(before.st_mtim, of("a").st_mtim) && !later(before.st_ctim, of("a").st_ctim));
}
CHECK(creation_moves_the_directory, 0) {
    struct stat before = of(".");
    tick();
    T(open("a", O_WRONLY | O_CREAT, 0644));
    struct stat after = of(".");
    IS(later(before.st_mtim, after.st_mtim));
    tick();
    T(open("a", O_WRONLY | O_CREAT, 0644));
    T(open("a", O_WRONLY | O_CREAT | O_EXCL, 0644));
    T(open("a", O_WRONLY | O_TRUNC));
    IS(!later(after.st_mtim, of(".").st_mtim));
}
CHECK(utimensat_by_path, 2) {
    int fd = make("a", 10, 1);
    T(utimensat(AT_FDCWD, "a", (struct timespec[]){ { 100000, 5 }, { 200000, 6 } }, 0));
    times("a");
    T(utimensat(AT_FDCWD, "a", (struct timespec[]){ { 0, UTIME_OMIT }, { 300000, 7 } }, 0));
    times("a");
    T(write(fd, "x", 1));
    IS(of("a").st_mtim.tv_sec > 300000);
    T(utimensat(AT_FDCWD, "a", (struct timespec[]){ { 100000, 5 }, { 400000, 999999999 } }, 0));
    times("a");
    T(utimensat(AT_FDCWD, "a", (struct timespec[]){ { 0, 0 }, { 0, 1000000000 } }, 0));
    T(utimensat(AT_FDCWD, "missing", NULL, 0));
    T(utimensat(AT_FDCWD, NULL, NULL, 0));
    T(utimensat(AT_FDCWD, "a", NULL, 0x40000));
}
CHECK(explicit_times_stay, 4) {
    /* The tree that is compared in the end shows them. */
    int fd = make("a", 100, 1);
    T(write(fd, "x", 1));
    T(futimens(fd, (struct timespec[]){ { 1000, 1 }, { 2000, 2 } }));
    T(fsync(fd));
    T(close(fd));
    fd = make("b", 100, 1);
    T(write(fd, "x", 1));
    T(close(fd));
    T(utimensat(AT_FDCWD, "b", (struct timespec[]){ { 1000, 1 }, { 3000, 3 } }, 0));
    times("a");
    times("b");
}
CHECK(times_before_1970_and_far_ahead, 2) {
    int fd = make("a", 10, 1);
    T(futimens(fd, (struct timespec[]){ { -5, 1 }, { -1000000, 2 } }));
    times("a");
    T(futimens(fd, (struct timespec[]){ { 1L << 31, 0 }, { 1L << 31, 0 } }));
    times("a");
    T(write(fd, "x", 1));
    T(futimens(fd, (struct timespec[]){ { 5, 1 }, { 7, 2 } }));
}
CHECK(older_calls_for_times, 1) {
    int fd = make("a", 10, 1);
    struct timeval both[2] = { { 3000, 7 }, { 4000, 8 } }, wrong[2] = { { 1, 2000000 }, { 1, 0 } };
    T(utimes("a", both));
    times("a");
    T(futimes(fd, both));
    T(futimes(fd, wrong));
    T(utimes("a", wrong));
    T(symlink("a", "s"));
    T(lutimes("s", (struct timeval[]){ { 1, 0 }, { 2, 0 } }));
    times("s");
    times("a");
    T(futimesat(AT_FDCWD, "a", both));
    T(utime("a", &(struct utimbuf){ 5000, 6000 }));
    times("a");
    T(utimes("missing", both));
    T(futimes(99, both));
    T(futimens(-1, NULL));
}
CHECK(modes_by_every_call, 3) {
    int fd = make("a", 10, 1);
    T(chmod("a", 0600));
    file("a");
    T(fchmod(fd, 04755));
    file("a");
    T(fchmodat(AT_FDCWD, "a", 0640, 0));
    T(symlink("a", "s"));
    T(fchmodat(AT_FDCWD, "s", 0600, 0));
    T(fchmodat(AT_FDCWD, "s", 0600, AT_SYMLINK_NOFOLLOW));
    T(fchmodat(AT_FDCWD, "a", 0600, 0x8));
    T(syscall(SYS_fchmod, fd, 0606));
    T(syscall(SYS_chmod, "a", 0604));
    T(syscall(452, AT_FDCWD, "a", 0602, 0));
    file("a");
    T(chmod("missing", 0));
    T(fchmod(99, 0));
    T(write(fd, "x", 1));
    T(chmod("a", 0));
    T(write(fd, "x", 1));
    file("a");
}
CHECK(set_user_id_goes_with_a_write, 3) {
    int fd = make("a", 10, 1);
    T(fchown(fd, 65534, 65534));
    T(fchmod(fd, 06777));
    file("a");
    T(write(fd, "by root", 7));
    file("a");
    T(setresuid(65534, 65534, 65534));
    T(write(fd, "by another", 10));
    file("a");
    T(fchmod(fd, 04777));
    T(ftruncate(fd, 5));
    file("a");
}
CHECK(owners_by_every_call, 2) {
    int fd = make("a", 10, 1);
    T(chown("a", 1, 2));
    file("a");
    T(fchown(fd, 3, 4));
    T(lchown("a", -1, 5));
    file("a");
    T(fchownat(AT_FDCWD, "a", 6, -1, 0));
    T(fchownat(fd, "", 7, 7, AT_EMPTY_PATH));
    T(fchownat(AT_FDCWD, "a", 6, -1, 0x8));
    T(symlink("a", "s"));
    T(lchown("s", 8, 8));
    T(chown("missing", 1, 1));
    T(fchown(99, 1, 1));
    T(write(fd, "x", 1));
    file("a");
}
CHECK(attributes_by_every_call, 2) {
    int fd = make("a", 10, 1);
    T(setxattr("a", "user.one", "1", 1, 0));
    T(fsetxattr(fd, "user.two", "22", 2, XATTR_CREATE));
    T(lsetxattr("a", "user.three", "333", 3, 0));
    T(setxattr("a", "user.one", "x", 1, XATTR_CREATE));
    T(setxattr("a", "user.none", "x", 1, XATTR_REPLACE));
    T(setxattr("a", "wrong", "x", 1, 0));
    T(setxattr("missing", "user.one", "1", 1, 0));
    T(write(fd, "x", 1));
    T(getxattr("a", "user.two", big, 100));
    T(fgetxattr(fd, "user.three", big, 2));
    T(fgetxattr(fd, "user.four", big, 2));
    T(removexattr("a", "user.one"));
    T(fremovexattr(fd, "user.two"));
    T(lremovexattr("a", "user.nothing"));
    T(syscall(SYS_setxattr, "a", "user.call", "c", 1, 0));
    T(syscall(SYS_fsetxattr, fd, "user.fcall", "c", 1, 0));
    T(syscall(SYS_fremovexattr, fd, "user.call"));
    T(fsync(fd));
    file("a");
}
CHECK(access_control_lists, 3) {
    /* Version 2: owner rw, user 1 rw, group r, mask rw, others none. */
    static const struct { uint32_t version; struct { uint16_t tag, rights; uint32_t id; } entry[5]; } list = {
        2, { { 1, 6, -1 }, { 2, 6, 1 }, { 4, 4, -1 }, { 16, 6, -1 }, { 32, 0, -1 } } };
    int fd = make("a", 10, 1);
    T(fsetxattr(fd, "system.posix_acl_access", &list, sizeof list, 0));
    T(write(fd, "x", 1));
    file("a");
    T(fchmod(fd, 0600));
    T(getxattr("a", "system.posix_acl_access", big, 100));
    say("%llx", (unsigned long long)sum(big, 100, 0));
    T(mkdir("d", 0755));
    T(setxattr("d", "system.posix_acl_default", &list, sizeof list, 0));
    T(write(open("d/b", O_WRONLY | O_CREAT, 0666), "x", 1));
    file("d/b");
}
CHECK(capabilities_go_with_a_write, 2) {
    static const uint32_t rights[5] = { 0x02000000, 1 << 10, 0, 0, 0 };
    int fd = make("a", 10, 1);
    T(fsetxattr(fd, "security.capability", rights, sizeof rights, 0));
    T(getxattr("a", "security.capability", big, 100));
    T(write(fd, "x", 1));
    T(getxattr("a", "security.capability", big, 100));
    state(fd);
}
CHECK(access_questions, 2) {
    int fd = make("a", 10, 1);
    T(access("a", R_OK | W_OK));
    T(access("a", X_OK));
    T(faccessat(AT_FDCWD, "a", W_OK, AT_EACCESS));
    T(euidaccess("missing", F_OK));
    T(write(fd, "x", 1));
}
CHECK(file_system_of_a_file, 1) {
    int fd = make("a", 10, 1);
    struct statfs one, other;
    struct statvfs v;
    T(statfs("a", &one));
    T(fstatfs(fd, &other));
    T(statvfs("a", &v));
    IS(one.f_type == other.f_type && one.f_bsize == other.f_bsize && one.f_blocks == other.f_blocks);
    IS(one.f_bavail > 0 && one.f_bavail <= one.f_blocks);
    IS(v.f_namemax == 255);
    T(pathconf("a", _PC_NAME_MAX));
    T(fpathconf(fd, _PC_FILESIZEBITS));
    T(fstatfs(99, &one));
}
CHECK(space_comes_back, 0) {
    struct statfs before, after;
    if (is_btrfs()) return; /* It frees space minutes later. */
    int fd = make("a", 0, 1);
    T(fallocate(fd, 0, 0, 64 << 20));
    T(pwrite(fd, "x", 1, 1000));
    T(fsync(fd));
    statfs(".", &before);
    T(unlink("a"));
    T(close(fd));
    int freed = 0;
    for (int i = 0; i < 60 && !freed; i++) {
        int other = open(".", O_RDONLY);
        syncfs(other);
        close(other);
        statfs(".", &after);
        freed = after.f_bfree * after.f_bsize >= before.f_bfree * before.f_bsize + (48ul << 20);
        if (!freed) usleep(50000);
    }
    IS(freed);
}
