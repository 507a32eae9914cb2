/* Opening: every combination of flags on every kind of name. */
#include "conform.h"
#define THEME "opening"

/* What open with these flags does to a name, and what can be done with the descriptor. */
static void attempt(const char *name, int flags, mode_t mode) {
    say("open %s", name);
    int fd = T(open(name, flags, mode));
    if (fd >= 0) {
        T(write(fd, "written", 7));
        T(pwrite(fd, "P", 1, 2));
        T(read(fd, big, 3));
        T(fsync(fd));
        T(fcntl(fd, F_GETFL));
        state(fd);
        T(close(fd));
    }
    file(name);
}

/* Names of every kind, made anew for each set of flags. */
static void all_names(int flags) {
    close(make("content", 100, 1));
    close(make("empty", 0, 1));
    close(make("locked", 10, 1));
    chmod("locked", 0);
    symlink("content", "link");
    symlink("dangling-target", "dangling");
    symlink("loop", "loop");
    mkdir("dir", 0755);
    close(make("second", 20, 1));
    link("second", "second-name");
    const char *names[] = { "content", "empty", "missing", "link", "dangling", "dangling-target", "loop", "dir", "second",
                            "second-name", "missing/deep", "content/deep", "", "locked", "dir/", "nofile/" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) attempt(names[i], flags, 0640);
}

#define OPEN_CHECK(NAME, WRITES, FLAGS) CHECK(NAME, WRITES) { all_names(FLAGS); }
OPEN_CHECK(open_wronly, 15, O_WRONLY)
OPEN_CHECK(open_rdwr, 15, O_RDWR)
OPEN_CHECK(open_rdonly, 3, O_RDONLY)
OPEN_CHECK(open_accmode_3, 3, 3)
OPEN_CHECK(open_wronly_creat, 21, O_WRONLY | O_CREAT)
OPEN_CHECK(open_rdwr_creat, 21, O_RDWR | O_CREAT)
OPEN_CHECK(open_rdonly_creat, 3, O_RDONLY | O_CREAT)
OPEN_CHECK(open_wronly_trunc, 15, O_WRONLY | O_TRUNC)
OPEN_CHECK(open_rdwr_creat_trunc, 21, O_RDWR | O_CREAT | O_TRUNC)
OPEN_CHECK(open_rdonly_trunc, 3, O_RDONLY | O_TRUNC)
OPEN_CHECK(open_wronly_creat_excl, 7, O_WRONLY | O_CREAT | O_EXCL)
OPEN_CHECK(open_wronly_excl, 15, O_WRONLY | O_EXCL)
OPEN_CHECK(open_wronly_creat_excl_trunc, 7, O_WRONLY | O_CREAT | O_EXCL | O_TRUNC)
OPEN_CHECK(open_wronly_append, 15, O_WRONLY | O_APPEND)
OPEN_CHECK(open_rdwr_creat_append, 21, O_RDWR | O_CREAT | O_APPEND)
OPEN_CHECK(open_wronly_append_trunc, 15, O_WRONLY | O_APPEND | O_TRUNC)
OPEN_CHECK(open_rdwr_creat_sync, 21, O_RDWR | O_CREAT | O_SYNC)
OPEN_CHECK(open_rdwr_creat_dsync, 21, O_RDWR | O_CREAT | O_DSYNC)
OPEN_CHECK(open_wronly_creat_sync_trunc_append, 21, O_WRONLY | O_CREAT | O_SYNC | O_TRUNC | O_APPEND)
OPEN_CHECK(open_nofollow, 17, O_WRONLY | O_CREAT | O_NOFOLLOW)
OPEN_CHECK(open_directory_flag, 3, O_RDONLY | O_DIRECTORY)
OPEN_CHECK(open_directory_flag_for_writing, 3, O_RDWR | O_DIRECTORY)
OPEN_CHECK(open_nonblock, 21, O_RDWR | O_CREAT | O_NONBLOCK)
OPEN_CHECK(open_noatime, 15, O_RDWR | O_NOATIME)
OPEN_CHECK(open_cloexec, 21, O_RDWR | O_CREAT | O_CLOEXEC)
OPEN_CHECK(open_path, 3, O_PATH)
OPEN_CHECK(open_path_with_other_flags, 3, O_PATH | O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW)
OPEN_CHECK(open_rdwr_async, 15, O_RDWR | O_ASYNC)

CHECK(creat_makes_and_empties, 3) {
    close(make("a", 1000, 1));
    int fd = T(creat("a", 0600));
    T(write(fd, "abc", 3));
    T(creat("b", 0666));
    T(write(4, "abc", 3));
    T(creat("missing/b", 0666));
    file("a");
    file("b");
}
CHECK(openat_relative_to_a_directory, 2) {
    T(mkdir("d", 0755));
    int dir = T(open("d", O_RDONLY | O_DIRECTORY));
    int fd = T(openat(dir, "a", O_RDWR | O_CREAT | O_EXCL, 0644));
    T(write(fd, "x", 1));
    T(openat(dir, "a", O_WRONLY | O_TRUNC));
    T(openat(dir, "../b", O_WRONLY | O_CREAT, 0644));
    T(write(6, "y", 1));
    T(openat(fd, "a", O_WRONLY | O_CREAT, 0644));
    T(openat(99, "a", O_WRONLY | O_CREAT, 0644));
    T(openat(99, "/proc/self/exe", O_RDONLY));
    file("d/a");
    file("b");
}
CHECK(openat_after_chdir_and_fchdir, 3) {
    T(mkdir("d", 0755));
    int dir = T(open(".", O_RDONLY | O_DIRECTORY)), fd;
    T(chdir("d"));
    T(fd = open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "inside", 6));
    T(unlink("a"));
    T(fchdir(dir));
    T(write(fd, "removed", 7));
    T(fd = open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "outside", 7));
    file("a");
    file("d/a");
}
struct how { uint64_t flags, mode, resolve; };
CHECK(openat2_by_system_call, 0) {
    struct how how = { O_RDWR | O_CREAT, 0640, 0 }, wrong = { O_RDWR | 1ull << 40, 0, 0 }, beneath = { O_RDWR, 0, 8 };
    int fd = T(syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how));
    T(write(fd, "x", 1));
    state(fd);
    T(syscall(SYS_openat2, AT_FDCWD, "a", &wrong, sizeof wrong));
    T(syscall(SYS_openat2, AT_FDCWD, "../a", &beneath, sizeof beneath));
    T(syscall(SYS_openat2, AT_FDCWD, "a", &how, 3));
    how.flags |= O_TRUNC | O_SYNC;
    T(syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how));
    T(write(4, "yy", 2));
    state(4);
    file("a");
}
CHECK(open_by_system_call, 2) {
    int fd = T(syscall(SYS_open, "a", O_WRONLY | O_CREAT | O_TRUNC, 0604));
    T(syscall(SYS_write, fd, "x", 1));
    T(syscall(SYS_creat, "b", 0640));
    T(syscall(SYS_pwrite64, 4, "yz", 2, 5));
    T(syscall(SYS_openat, 99, "c", O_WRONLY | O_CREAT, 0604));
    T(syscall(SYS_close, fd));
    T(syscall(SYS_close, fd));
    file("a");
    file("b");
}
CHECK(the_mask_applies_to_new_files, 5) {
    umask(027);
    T(write(open("a", O_WRONLY | O_CREAT, 0666), "x", 1));
    umask(0);
    T(write(open("b", O_WRONLY | O_CREAT, 0666), "x", 1));
    T(write(open("c", O_WRONLY | O_CREAT, 07777), "x", 1));
    umask(0777);
    T(write(open("d", O_WRONLY | O_CREAT, 0666), "x", 1));
    T(write(open("e", O_WRONLY | O_CREAT, 0), "x", 1));
    T(umask(022));
    for (char name[] = "a"; *name < 'f'; ++*name) file(name);
}
CHECK(a_set_group_id_directory_gives_its_group, 1) {
    T(mkdir("d", 0755));
    T(chown("d", 0, 12));
    T(chmod("d", 02755));
    T(write(open("d/a", O_WRONLY | O_CREAT, 0644), "x", 1));
    file("d/a");
}
CHECK(long_names, 3) {
    char name[300], path[5000];
    memset(name, 'n', sizeof name);
    name[255] = 0;
    int fd = open(name, O_WRONLY | O_CREAT, 0644);
    IS(fd >= 0);
    T(write(fd, "x", 1));
    name[255] = 'n';
    name[256] = 0;
    IS(open(name, O_WRONLY | O_CREAT, 0644) < 0 && errno == ENAMETOOLONG);
    memset(path, '/', sizeof path);
    strcpy(path, "./");
    memset(path + 2, '/', 4000);
    strcpy(path + 4000, "a");
    IS((fd = open(path, O_WRONLY | O_CREAT, 0644)) >= 0);
    T(write(fd, "long", 4));
    IS(truncate(path, 3) == 0);
    IS(rename(path, "b") == 0);
    T(write(fd, "x", 1));
    IS(rename("b", path) == 0);
    IS(link(path, "second") == 0);
    IS(unlink(path) == 0);
    memset(path + 2, '/', 4998);
    path[4998] = 0;
    IS(open(path, O_WRONLY | O_CREAT, 0644) < 0 && errno == ENAMETOOLONG);
    file("second");
}
CHECK(deep_directories, 0) {
    char name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    for (int i = 0; i < 15; i++)
        if (mkdir(name, 0755) || chdir(name)) say("%s", errno_name(errno));
    int fd = T(open("deep", O_RDWR | O_CREAT, 0644));
    T(write(fd, "deep", 4));
    T(fsync(fd));
    T(rename("deep", "deeper"));
    T(write(fd, "er", 2));
    file("deeper");
    T(unlink("deeper"));
    T(write(fd, "gone", 4));
    state(fd);
    T(write(open("stays", O_WRONLY | O_CREAT, 0644), "x", 1));
}
CHECK(strange_names, 11) {
    const char *names[] = { " ", "new\nline", "\xff\xfe", "-rf", "a (deleted)" };
    for (int i = 0; i < 5; i++) {
        int fd = open(names[i], O_RDWR | O_CREAT, 0644);
        T(write(fd, names[i], strlen(names[i])));
        T(fsync(fd));
        T(write(fd, "!", 1));
        file(names[i]);
    }
    T(unlink("a (deleted)"));
    T(write(7, "?", 1));
    T(rename(" ", "blank"));
}
CHECK(fifos_open_and_pass_bytes, 0) {
    T(mkfifo("fifo", 0644));
    int reader = T(open("fifo", O_RDONLY | O_NONBLOCK)), writer = T(open("fifo", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    T(write(writer, "through", 7));
    T(read(reader, big, 100));
    T(fsync(writer));
    T(pwrite(writer, "x", 1, 0));
    T(close(reader));
    T(open("fifo", O_WRONLY | O_NONBLOCK | O_CREAT, 0644));
    T(open("fifo", O_RDWR | O_SYNC));
}
CHECK(devices_open_and_take_bytes, 0) {
    int fd = T(open("/dev/null", O_WRONLY | O_CREAT | O_TRUNC | O_SYNC, 0644));
    T(write(fd, "x", 1));
    T(pwrite(fd, "x", 1, 5));
    T(fsync(fd));
    T(ftruncate(fd, 5));
    T(lseek(fd, 10, SEEK_SET));
    int full = T(open("/dev/full", O_RDWR));
    T(write(full, "x", 1));
    T(open("/dev/tty", O_RDWR) < 0);
    T(write(open("/dev/zero", O_RDWR), "x", 1));
}
CHECK(proc_and_sys_files, 0) {
    int fd = T(open("/proc/self/comm", O_RDWR));
    T(write(fd, "renamed", 7));
    T(lseek(fd, 0, SEEK_SET));
    T(read(fd, big, 20));
    T(open("/proc/self/oom_score_adj", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    T(write(4, "0\n", 2));
    T(open("/proc/self/missing", O_WRONLY | O_CREAT, 0644));
    T(open("/proc/version", O_WRONLY | O_CREAT | O_TRUNC, 0644) < 0);
}
CHECK(a_memory_file, 0) {
    int fd = T(memfd_create("memory", MFD_ALLOW_SEALING));
    T(write(fd, "memory", 6));
    T(ftruncate(fd, 100));
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4));
    T(fsync(fd));
    T(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW));
    T(write(fd, "x", 1));
    T(ftruncate(fd, 5));
    T(fcntl(fd, F_GET_SEALS));
    state(fd);
}
CHECK(files_without_rights, 5) {
    close(make("ours", 10, 1));
    close(make("theirs", 10, 1));
    chown("theirs", 1, 1);
    chmod("theirs", 0600);
    chmod(".", 0777);
    mkdir("closed", 0700);
    T(setresgid(65534, 65534, 65534));
    T(setresuid(65534, 65534, 65534));
    T(open("theirs", O_RDWR));
    T(open("theirs", O_WRONLY | O_TRUNC));
    T(open("theirs", O_WRONLY | O_CREAT, 0644));
    T(truncate("theirs", 1));
    T(open("closed/a", O_WRONLY | O_CREAT, 0644));
    T(open("ours", O_WRONLY | O_APPEND));
    int fd = T(open("own", O_RDWR | O_CREAT, 0200));
    T(write(fd, "own", 3));
    T(fsync(fd));
    T(open("own", O_RDONLY));
    T(open("own", O_WRONLY));
    T(write(4, "OWN", 3));
    T(rename("own", "moved"));
    T(write(fd, "+", 1));
    T(open("readonly", O_RDWR | O_CREAT, 0444));
    T(open("readonly", O_RDWR | O_CREAT, 0444));
}
CHECK(an_append_only_file, 2) {
    int fd = make("a", 10, 1), flags = 0;
    T(close(fd));
    if (ioctl(open("a", O_RDONLY), FS_IOC_GETFLAGS, &flags)) return;
    flags |= FS_APPEND_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    T(open("a", O_WRONLY));
    T(open("a", O_WRONLY | O_TRUNC));
    T(open("a", O_WRONLY | O_APPEND | O_TRUNC));
    int end = T(open("a", O_WRONLY | O_APPEND));
    T(write(end, "more", 4));
    T(ftruncate(end, 0));
    T(fcntl(end, F_SETFL, 0));
    T(unlink("a"));
    T(rename("a", "b"));
    flags &= ~FS_APPEND_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    file("a");
}
CHECK(an_immutable_file, 2) {
    int fd = make("a", 10, 1), flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags)) return;
    flags |= FS_IMMUTABLE_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    T(open("a", O_WRONLY));
    T(open("a", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    T(truncate("a", 0));
    T(link("a", "b"));
    T(unlink("a"));
    T(fsync(fd));
    flags &= ~FS_IMMUTABLE_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    T(write(fd, "again", 5));
    file("a");
}
CHECK(bad_path_addresses, 2) {
    int fd = make("a", 1, 1);
    char *bad = (char *)8;
    T(open(bad, O_WRONLY | O_CREAT, 0644));
    T(creat(bad, 0644));
    T(truncate(bad, 1));
    T(unlink(bad));
    T(rename("a", bad));
    T(rename(bad, "a"));
    T(link("a", bad));
    T(link(bad, "b"));
    T(symlink("a", bad));
    T(chmod(bad, 0));
    T(mkdir(bad, 0));
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, bad, RENAME_NOREPLACE));
    T(setxattr(bad, "user.a", "", 0, 0));
    T(write(fd, "still works", 11));
    file("a");
}
CHECK(file_handles, 3) {
    struct { struct file_handle head; char bytes[128]; } handle = { { .handle_bytes = 128 }, { 0 } };
    int mount;
    int fd = make("a", 10, 1);
    if (name_to_handle_at(AT_FDCWD, "a", &handle.head, &mount, 0)) return;
    int dir = T(open(".", O_RDONLY));
    int again = T(open_by_handle_at(dir, &handle.head, O_WRONLY));
    T(write(again, "by handle", 9));
    T(pwrite(fd, "X", 1, 3));
    T(close(again));
    file("a");
}
