/* Sizes: truncation, allocation, holes. */
#include "conform.h"
#define THEME "sizing"

static void truncation(int fd, const char *path) {
    T(ftruncate(fd, 5000));
    T(pwrite(fd, "tail", 4, 4990));
    T(ftruncate(fd, 4992));
    T(ftruncate(fd, 10000));
    state(fd);
    T(truncate(path, 100));
    T(pwrite(fd, "far", 3, 20000));
    T(truncate(path, 20001));
    T(ftruncate(fd, 20001));
    state(fd);
}
CHECK(truncation_of_a_new_file, 2) { truncation(make("a", 0, 1), "a"); }
CHECK(truncation_of_a_written_file, 3) { truncation(make("a", 8000, 1), "a"); }
CHECK(truncation_of_an_appended_file, 3) {
    close(make("a", 8000, 1));
    truncation(T(open("a", O_RDWR | O_APPEND)), "a");
}
CHECK(truncation_of_a_synchronous_file, 3) {
    close(make("a", 8000, 1));
    truncation(T(open("a", O_RDWR | O_SYNC)), "a");
}
CHECK(truncation_leaves_the_cursor, 3) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "0123456789", 10));
    T(ftruncate(fd, 2));
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "abc", 3));
    T(ftruncate(fd, 0));
    T(write(fd, "def", 3));
    file("a");
}
CHECK(truncation_through_a_link, 1) {
    int fd = make("a", 1000, 1);
    T(symlink("a", "s"));
    T(link("a", "h"));
    T(truncate("s", 500));
    state(fd);
    T(truncate("h", 200));
    state(fd);
    T(symlink("nowhere", "broken"));
    T(truncate("broken", 200));
}
CHECK(truncation_of_others, 0) {
    T(truncate("missing", 0));
    T(truncate(".", 0));
    T(truncate("", 0));
    T(truncate("/dev/null", 0));
    T(truncate("/proc/version", 0));
    T(mkfifo("fifo", 0644));
    T(truncate("fifo", 0));
    T(ftruncate(-1, 0));
    T(ftruncate(0, 0) < 0);
    T(ftruncate(99, 0));
}
CHECK(truncation_to_wrong_sizes, 1) {
    int fd = make("a", 100, 1);
    T(ftruncate(fd, -1));
    T(truncate("a", -1));
    T(ftruncate(fd, LONG_MIN));
    T(ftruncate(fd, 1L << 62) < 0);
    state(fd);
}
CHECK(truncated_bytes_come_back_as_zeros, 3) {
    int fd = make("a", 4096, 1);
    T(ftruncate(fd, 10));
    T(ftruncate(fd, 4096));
    T(pread(fd, big, 4096, 0));
    IS(big[9] != 0 && big[10] == 0 && big[4095] == 0);
    T(ftruncate(fd, 10));
    T(pwrite(fd, "x", 1, 4095));
    T(pread(fd, big, 4096, 0));
    IS(big[10] == 0 && big[4094] == 0);
    T(pwrite(fd, "y", 1, 4094));
    state(fd);
}
CHECK(truncation_by_a_second_description, 5) {
    int fd = make("a", 100, 1), other = T(open("a", O_WRONLY));
    T(write(fd, "0123456789", 10));
    T(ftruncate(other, 3));
    T(write(fd, "abc", 3));
    T(open("a", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    T(write(other, "other", 5));
    T(write(fd, "def", 3));
    state(fd);
}
CHECK(truncation_of_a_removed_file, 2) {
    int fd = make("a", 100, 1);
    T(unlink("a"));
    T(ftruncate(fd, 10));
    T(write(fd, "x", 1));
    T(ftruncate(fd, 1000));
    state(fd);
}

/* `fallocate` with one mode on data, holes and ends, at even and odd places. */
static void allocation(int mode) {
    static const struct { off_t at, bytes; } ranges[] = {
        { 0, 65536 }, { 65536, 65536 }, { 1000, 100 }, { 4096, 1 }, { 200000, 131072 }, { 262144, 65536 }, { 1 << 20, 65536 },
        { 5, 70000 }, { 0, 0 }, { -1, 10 }, { 10, -1 }, { LONG_MAX, 1 }, { LONG_MAX - 4096, 8192 }, { 131072, 131072 },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int fd = make("a", 262144, i);
        off_t at = ranges[i].at, bytes = ranges[i].bytes;
        say("from %ld, %ld bytes", (long)at, (long)bytes);
        T(fallocate(fd, mode, at, bytes));
        state(fd);
        T(pwrite(fd, "afterwards", 10, 100000));
        state(fd);
        T(fsync(fd));
        close(fd);
    }
}
#define ALLOCATION_CHECK(NAME, WRITES, MODE) CHECK(NAME, WRITES) { allocation(MODE); }
ALLOCATION_CHECK(allocation_plain, 28, 0)
ALLOCATION_CHECK(allocation_keeps_size, 28, FALLOC_FL_KEEP_SIZE)
ALLOCATION_CHECK(allocation_punches, 28, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
ALLOCATION_CHECK(allocation_punches_without_keeping_size, 28, FALLOC_FL_PUNCH_HOLE)
ALLOCATION_CHECK(allocation_zeroes, 28, FALLOC_FL_ZERO_RANGE)
ALLOCATION_CHECK(allocation_zeroes_and_keeps_size, 28, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE)
ALLOCATION_CHECK(allocation_collapses, 28, FALLOC_FL_COLLAPSE_RANGE)
ALLOCATION_CHECK(allocation_inserts, 28, FALLOC_FL_INSERT_RANGE)
ALLOCATION_CHECK(allocation_unshares, 28, FALLOC_FL_UNSHARE_RANGE)
ALLOCATION_CHECK(allocation_of_unknown_mode, 28, 0x4000)
ALLOCATION_CHECK(allocation_of_contradicting_modes, 28, FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_ZERO_RANGE)

CHECK(posix_allocation, 2) {
    int fd = make("a", 1000, 1);
    T(posix_fallocate(fd, 0, 100));
    T(posix_fallocate(fd, 500, 70000));
    state(fd);
    T(posix_fallocate(fd, 0, 0));
    T(posix_fallocate(fd, -1, 10));
    T(posix_fallocate(fd, 0, -1));
    T(posix_fallocate(99, 0, 10));
    T(posix_fallocate(open("a", O_RDONLY), 0, 10));
    T(posix_fallocate(fd, LONG_MAX - 5, 10));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(allocation_on_other_descriptors, 1) {
    int fd = make("a", 100, 1), reader = T(open("a", O_RDONLY)), append = T(open("a", O_WRONLY | O_APPEND));
    T(fallocate(reader, 0, 0, 100));
    T(fallocate(append, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 50));
    T(fallocate(append, 0, 0, 200));
    T(fallocate(open(".", O_RDONLY), 0, 0, 200));
    T(fallocate(-1, 0, 0, 200));
    state(fd);
}
CHECK(a_punched_hole_reads_as_zeros, 2) {
    int fd = make("a", 200000, 1);
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 65536));
    T(pread(fd, big, 65536, 65536));
    IS(!memchr(big, 1, 65536) && big[0] == 0);
    T(pwrite(fd, "island", 6, 100000));
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 190000, 65536));
    state(fd);
}
static void map_of(int fd) {
    off_t at = 0, end = lseek(fd, 0, SEEK_END);
    for (int i = 0; i < 20 && at < end; i++) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0) {
            say("  no data from %ld: %s", (long)at, errno_name(errno));
            break;
        }
        at = lseek(fd, data, SEEK_HOLE);
        say("  data %ld to %ld", (long)data, (long)at);
    }
    lseek(fd, 0, SEEK_SET);
}
CHECK(holes_are_found, 5) {
    int fd = make("a", 0, 1);
    fill(big, 262144, 2);
    T(pwrite(fd, big, 131072, 0));
    T(pwrite(fd, big, 131072, 1 << 20));
    T(pwrite(fd, big, 131072, 3 << 20));
    T(ftruncate(fd, 5 << 20));
    T(fsync(fd));
    map_of(fd);
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 131072));
    T(fsync(fd));
    map_of(fd);
    T(pwrite(fd, big, 131072, 2 << 20));
    T(fsync(fd));
    map_of(fd);
    T(lseek(fd, 5 << 20, SEEK_DATA));
    T(lseek(fd, 5 << 20, SEEK_HOLE));
    T(lseek(fd, -1, SEEK_DATA));
    T(lseek(fd, 1 << 20, SEEK_HOLE));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(holes_and_the_cursor, 3) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    fill(big, 65536, 2);
    T(write(fd, big, 65536));
    T(ftruncate(fd, 1 << 20));
    T(fsync(fd));
    T(lseek(fd, 0, SEEK_HOLE));
    T(write(fd, "at the hole", 11));
    T(lseek(fd, 0, SEEK_DATA));
    T(write(fd, "at the data", 11));
    T(lseek(fd, 2 << 20, SEEK_DATA));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(blocks_follow_the_content, 3) {
    struct stat st;
    int fd = make("a", 1 << 20, 1);
    T(fsync(fd));
    fstat(fd, &st);
    IS(st.st_blocks * 512 >= 1 << 20);
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 19));
    T(fsync(fd));
    fstat(fd, &st);
    IS(st.st_blocks * 512 < 3 << 18);
    T(ftruncate(fd, 0));
    T(fsync(fd));
    fstat(fd, &st);
    IS(st.st_blocks * 512 <= 4096);
    T(pwrite(fd, "x", 1, 1 << 24));
    T(fsync(fd));
    fstat(fd, &st);
    IS(st.st_blocks * 512 < 1 << 20);
    T(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 21));
    fstat(fd, &st);
    IS(st.st_blocks * 512 >= 1 << 21);
    T(pwrite(fd, "y", 1, 0));
}
