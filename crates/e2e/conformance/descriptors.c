/* Numbers: duplicates, closing, ranges, and what /proc shows of them. */
#include "conform.h"
#define THEME "descriptors"

CHECK(open_takes_the_lowest_number, 2) {
    int a = T(open("a", O_RDWR | O_CREAT, 0644)), b = T(open("b", O_WRONLY | O_CREAT, 0644));
    T(write(a, "a", 1));
    T(close(a));
    T(open("c", O_RDWR | O_CREAT | O_TRUNC, 0644));
    T(write(b, "b", 1));
    T(open("d", O_RDONLY | O_CREAT, 0644));
    descriptors();
}
CHECK(nothing_open_at_the_start, 0) { descriptors(); }
CHECK(a_write_opens_nothing, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "one", 3));
    descriptors();
    T(fsync(fd));
    T(pwrite(fd, "two", 3, 100));
    T(ftruncate(fd, 50));
    T(rename("a", "b"));
    T(write(fd, "two", 3));
    descriptors();
    T(open("c", O_RDONLY | O_CREAT, 0644));
}
CHECK(dup_takes_the_lowest_number, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644)), second = T(dup(fd));
    T(dup(second));
    T(close(second));
    T(write(fd, "abc", 3));
    T(dup(fd));
    T(write(4, "def", 3));
    descriptors();
    file("a");
}
CHECK(dup_shares_the_cursor, 3) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644)), copy = T(dup(fd));
    T(write(fd, "0123456789", 10));
    T(lseek(copy, 2, SEEK_SET));
    T(write(fd, "ab", 2));
    T(write(copy, "cd", 2));
    state(fd);
    file("a");
}
CHECK(dup_shares_status_flags, 2) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644)), copy = T(dup(fd));
    T(fcntl(copy, F_SETFL, O_APPEND));
    T(write(fd, "end", 3));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "end", 3));
    state(fd);
    state(copy);
}
CHECK(dup_survives_close_of_the_original, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644)), copy = T(dup(fd));
    T(close(fd));
    T(write(fd, "x", 1));
    T(write(copy, "yes", 3));
    T(fsync(copy));
    T(pwrite(copy, "more", 4, 10));
    state(copy);
}
CHECK(dup_of_nothing, 0) {
    T(dup(-1));
    T(dup(77));
    T(dup(INT_MAX));
}
CHECK(dup2_replaces_a_file_by_another, 2) {
    int a = make("a", 0, 1), b = make("b", 0, 2);
    T(write(a, "to a", 4));
    T(dup2(a, b));
    T(write(b, " also to a", 10));
    T(close(a));
    file("a");
    file("b");
}
CHECK(dup2_onto_itself, 1) {
    int fd = make("a", 0, 1);
    T(dup2(fd, fd));
    T(write(fd, "x", 1));
    T(dup2(50, 50));
    file("a");
}
CHECK(dup2_of_nothing_leaves_the_target, 1) {
    int fd = make("a", 0, 1);
    T(dup2(99, fd));
    T(write(fd, "still", 5));
    T(dup2(fd, -1));
    T(dup2(fd, INT_MAX));
    T(dup2(fd, 1 << 28));
    file("a");
}
CHECK(dup2_to_a_high_number, 2) {
    int fd = make("a", 0, 1);
    T(dup2(fd, 600));
    T(write(600, "high", 4));
    T(close(fd));
    T(write(600, "er", 2));
    descriptors();
    state(600);
}
CHECK(dup2_over_a_pipe_and_back, 2) {
    int fd = make("a", 0, 1), ends[2];
    T(pipe(ends));
    int saved = T(dup(ends[1]));
    T(dup2(fd, ends[1]));
    T(write(ends[1], "to the file", 11));
    T(dup2(saved, ends[1]));
    T(write(ends[1], "to the pipe", 11));
    T(write(fd, "!", 1));
    T(read(ends[0], big, 100));
    file("a");
}
CHECK(dup2_over_standard_output, 2) {
    int fd = make("a", 0, 1), saved = T(dup(1));
    T(dup2(fd, 1));
    T(write(1, "to the file\n", 12));
    printf("by stdio\n");
    fflush(stdout);
    T(dup2(saved, 1));
    T(close(saved));
    file("a");
}
CHECK(dup3_sets_close_on_exec, 1) {
    int fd = make("a", 0, 1);
    T(dup3(fd, 20, O_CLOEXEC));
    T(dup3(fd, 21, 0));
    T(dup3(fd, fd, 0));
    T(dup3(fd, 22, O_APPEND));
    T(write(20, "x", 1));
    state(20);
    state(21);
}
CHECK(dupfd_from_a_number_on, 2) {
    int fd = make("a", 0, 1);
    T(fcntl(fd, F_DUPFD, 10));
    T(fcntl(fd, F_DUPFD, 10));
    T(fcntl(fd, F_DUPFD_CLOEXEC, 10));
    T(fcntl(fd, F_DUPFD, 0));
    T(fcntl(fd, F_DUPFD, -1));
    T(fcntl(99, F_DUPFD, 0));
    T(write(11, "eleven", 6));
    T(write(12, "twelve", 6));
    state(12);
    descriptors();
}
CHECK(dupfd_beyond_the_limit, 1) {
    struct rlimit limit = { 64, 64 };
    int fd = make("a", 0, 1);
    T(setrlimit(RLIMIT_NOFILE, &limit));
    T(fcntl(fd, F_DUPFD, 64));
    T(fcntl(fd, F_DUPFD, 63));
    T(dup2(fd, 64));
    T(write(63, "x", 1));
    T(fcntl(fd, F_DUPFD, 63));
}
CHECK(descriptor_flags, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    T(fcntl(fd, F_GETFD));
    T(fcntl(fd, F_SETFD, 0));
    T(fcntl(fd, F_GETFD));
    T(write(fd, "x", 1));
    T(ioctl(fd, FIOCLEX));
    T(fcntl(fd, F_GETFD));
    T(ioctl(fd, FIONCLEX));
    T(fcntl(fd, F_GETFD));
    T(write(fd, "x", 1));
}
CHECK(close_errors, 0) {
    T(close(-1));
    T(close(99));
    T(close(INT_MAX));
    int fd = make("a", 0, 1);
    T(close(fd));
    T(close(fd));
    T(fsync(fd));
    T(fdatasync(fd));
    T(ftruncate(fd, 0));
    T(lseek(fd, 0, SEEK_SET));
    T(pwrite(fd, "", 1, 0));
}
CHECK(a_number_used_again_is_another_file, 3) {
    int fd = make("a", 0, 1);
    T(write(fd, "first", 5));
    T(close(fd));
    T(make("b", 0, 1));
    T(write(fd, "second", 6));
    T(close(fd));
    T(open("a", O_WRONLY | O_APPEND));
    T(write(fd, "third", 5));
    file("a");
    file("b");
}
CHECK(a_number_used_again_is_a_pipe, 1) {
    int fd = make("a", 0, 1), ends[2];
    T(write(fd, "first", 5));
    T(close(fd));
    T(pipe(ends));
    T(write(ends[1], "piped", 5));
    T(write(ends[0], "piped", 5));
    T(read(ends[0], big, 10));
    T(ftruncate(ends[0], 0));
    file("a");
}
CHECK(close_range_closes_files, 2) {
    for (int i = 0; i < 6; i++) T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(4, "x", 1));
    T(close_range(4, 6, 0));
    T(write(4, "x", 1));
    T(write(7, "y", 1));
    descriptors();
    T(close_range(6, 4, 0));
    T(close_range(4, 6, 64));
    T(close_range(8, ~0U, 0));
    descriptors();
    T(open("b", O_RDWR | O_CREAT, 0644));
}
CHECK(close_range_sets_close_on_exec, 1) {
    int fd = make("a", 0, 1);
    T(close_range(fd, 20, CLOSE_RANGE_CLOEXEC));
    T(fcntl(fd, F_GETFD));
    T(write(fd, "open still", 10));
    file("a");
}
CHECK(close_range_unshares, 1) {
    int fd = make("a", 0, 1), other = make("b", 0, 1);
    T(write(fd, "x", 1));
    T(close_range(other, other, CLOSE_RANGE_UNSHARE));
    T(write(other, "x", 1));
    T(write(fd, "y", 1));
    file("a");
}
CHECK(closefrom_closes_the_rest, 2) {
    int fd = make("a", 0, 1), other = make("b", 0, 1);
    T(write(fd, "x", 1));
    closefrom(other);
    T(write(other, "x", 1));
    T(write(fd, "y", 1));
    descriptors();
    closefrom(-5);
    descriptors();
}
CHECK(proc_shows_the_files, 1) {
    char path[300];
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC | O_APPEND, 0644));
    T(write(fd, "x", 1));
    ssize_t bytes = T(readlink("/proc/self/fd/3", path, sizeof path) > 0);
    (void)bytes;
    FILE *info = fopen("/proc/self/fdinfo/3", "r");
    for (char line[200]; fgets(line, sizeof line, info);)
        if (!strncmp(line, "pos", 3)) say("%.*s", (int)strcspn(line, "\n"), line);
    fclose(info);
    T(unlink("a"));
    bytes = readlink("/proc/self/fd/3", path, sizeof path - 1);
    path[bytes < 0 ? 0 : bytes] = 0;
    say("%s", strrchr(path, '/') + 1);
}
CHECK(opened_again_through_proc, 4) {
    int fd = make("a", 0, 1);
    T(write(fd, "first", 5));
    int again = T(open("/proc/self/fd/3", O_WRONLY));
    T(write(again, "F", 1));
    T(write(fd, "more", 4));
    T(open("/proc/self/fd/3", O_WRONLY | O_TRUNC));
    T(write(5, "new", 3));
    file("a");
    state(fd);
    T(open("/dev/fd/3", O_RDONLY));
}
CHECK(opened_again_after_unlink, 3) {
    int fd = make("a", 0, 1);
    T(write(fd, "first", 5));
    T(unlink("a"));
    int again = T(open("/proc/self/fd/3", O_RDWR));
    T(write(again, "second", 6));
    T(write(fd, "third", 5));
    T(pread(again, big, 100, 0));
    say("%.20s", big);
    state(again);
}
CHECK(path_descriptors_cannot_write, 2) {
    int fd = make("a", 3, 1), path = T(open("a", O_PATH));
    T(write(path, "x", 1));
    T(ftruncate(path, 0));
    T(fsync(path));
    T(fchmod(path, 0600));
    T(fcntl(path, F_GETFL));
    T(dup(path));
    T(write(5, "x", 1));
    T(write(fd, "y", 1));
    T(open("/proc/self/fd/4", O_WRONLY | O_TRUNC));
    file("a");
}
CHECK(path_descriptors_of_directories, 1) {
    T(mkdir("d", 0755));
    int dir = T(open("d", O_PATH | O_DIRECTORY));
    int fd = T(openat(dir, "a", O_RDWR | O_CREAT, 0600));
    T(write(fd, "x", 1));
    T(renameat(dir, "a", dir, "b"));
    T(fsync(dir));
    T(unlinkat(dir, "b", 0));
    T(fstat(fd, &(struct stat){ 0 }));
}
CHECK(unnamed_files, 0) {
    int fd = T(open(".", O_TMPFILE | O_RDWR, 0600));
    T(write(fd, "unnamed", 7));
    T(fsync(fd));
    state(fd);
    T(ftruncate(fd, 3));
    T(linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    T(pwrite(fd, "N", 1, 0));
    file("named");
    T(open(".", O_TMPFILE | O_RDONLY, 0600));
    T(open("missing", O_TMPFILE | O_RDWR, 0600));
    T(open("named", O_TMPFILE | O_RDWR, 0600));
}
CHECK(unnamed_files_with_their_links, 0) {
    int fd = T(open(".", O_TMPFILE | O_WRONLY | O_EXCL, 0600));
    T(write(fd, "x", 1));
    T(linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    T(linkat(fd, "", AT_FDCWD, "named", AT_EMPTY_PATH));
    file("named");
}
CHECK(an_unnamed_file_written_after_it_got_a_name, 1) {
    int fd = T(open(".", O_TMPFILE | O_RDWR, 0600));
    T(linkat(fd, "", AT_FDCWD, "named", AT_EMPTY_PATH));
    T(write(fd, "x", 1));
    int again = T(open("named", O_WRONLY | O_APPEND));
    T(write(again, "y", 1));
    T(write(fd, "z", 1));
    file("named");
}
CHECK(standard_descriptors_closed_and_reused, 2) {
    T(close(0));
    T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(0, "zero", 4));
    int saved = T(dup(2));
    T(close(2));
    T(open("b", O_RDWR | O_CREAT, 0644));
    fprintf(stderr, "complaint");
    T(dup2(saved, 2));
    file("a");
    file("b");
}
CHECK(no_number_left, 3) {
    struct rlimit limit = { 5, 5 };
    int fd = make("a", 0, 1);
    T(setrlimit(RLIMIT_NOFILE, &limit));
    T(dup(fd));
    T(dup(fd));
    T(open("b", O_RDWR | O_CREAT, 0644));
    T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "works", 5));
    T(write(4, "works", 5));
    T(fsync(fd));
    T(rename("a", "c"));
    T(unlink("c"));
    T(write(fd, "works", 5));
}
CHECK(a_child_is_made_with_no_number_left, 1) {
    struct rlimit limit = { 4, 4 };
    int fd = make("a", 0, 1);
    T(write(fd, "parent,", 7));
    T(setrlimit(RLIMIT_NOFILE, &limit));
    CHILD(T(write(fd, "child,", 6)); T(fsync(fd)));
    T(write(fd, "parent", 6));
    file("/proc/self/fd/3");
    state(fd);
}
CHECK(many_files_open_at_once, 200) {
    int first = 0, last = 0;
    for (int i = 0; i < 200; i++) {
        char name[20];
        sprintf(name, "f%d", i);
        last = open(name, O_RDWR | O_CREAT, 0644);
        if (!first) first = last;
        if (write(last, name, strlen(name)) <= 0) say("%s", errno_name(errno));
    }
    say("%d to %d", first, last);
    for (int i = 0; i < 200; i += 40) state(first + i);
}
CHECK(many_descriptions_of_one_file, 100) {
    make("a", 0, 1);
    for (int i = 0; i < 100; i++) {
        int fd = open("a", i % 2 ? O_RDWR : O_WRONLY);
        if (pwrite(fd, "abcdefghij", 10, i * 7) != 10) say("%s", errno_name(errno));
        if (i % 3 == 0) close(fd);
    }
    file("a");
}
CHECK(numbers_above_the_table, 2) {
    struct rlimit limit = { 70000, 70000 };
    int fd = make("a", 0, 1);
    T(write(fd, "low,", 4));
    T(setrlimit(RLIMIT_NOFILE, &limit));
    T(dup2(fd, 66000));
    T(write(66000, "high,", 5));
    T(pwrite(66000, "L", 1, 0));
    T(fsync(66000));
    T(ftruncate(66000, 100));
    T(write(fd, "low", 3));
    T(close(fd));
    T(dup2(66000, fd));
    T(write(fd, "again", 5));
    T(close(66000));
    T(write(66000, "x", 1));
    state(fd);
    int high = fcntl(fd, F_DUPFD, 65536);
    say("%d", high);
    T(write(high, "end", 3));
    file("a");
}
