/* Writing: cursors, appends, vectors, flags, limits, odd sizes. */
#include "conform.h"
#define THEME "writing"

#define VEC(...) (struct iovec[]){ __VA_ARGS__ }

CHECK(cursor_moves_with_writes, 3) {
    int fd = make("a", 0, 1);
    T(write(fd, "0123456789", 10));
    T(lseek(fd, 0, SEEK_CUR));
    T(lseek(fd, 4, SEEK_SET));
    T(write(fd, "ab", 2));
    T(lseek(fd, 3, SEEK_CUR));
    T(write(fd, "cdef", 4));
    state(fd);
}
CHECK(cursor_of_a_write_only_descriptor, 5) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "0123456789", 10));
    T(write(fd, "0123456789", 10));
    T(lseek(fd, -3, SEEK_END));
    T(write(fd, "abc", 3));
    T(pwrite(fd, "far", 3, 100));
    T(write(fd, "def", 3));
    T(lseek(fd, -1, SEEK_SET));
    T(lseek(fd, 0, 77));
    T(lseek(fd, -1000, SEEK_CUR));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(cursor_moves_with_reads, 3) {
    int fd = make("a", 100, 1);
    T(read(fd, big, 10));
    T(write(fd, "behind the read", 15));
    T(readv(fd, VEC({ big, 5 }, { big, 6 }), 2));
    T(write(fd, "again", 5));
    T(pread(fd, big, 50, 0));
    state(fd);
}
CHECK(reads_see_every_write, 40) {
    int fd = make("a", 0, 1);
    for (int i = 0; i < 40; i++) {
        char in[500], out[500];
        fill(out, sizeof out, i);
        pwrite(fd, out, sizeof out, i * 333);
        if (pread(fd, in, sizeof in, i * 333) != sizeof in || memcmp(in, out, sizeof in)) say("differs at %d", i);
    }
    state(fd);
}
CHECK(two_descriptions_see_each_other, 3) {
    int fd = make("a", 0, 1), other = T(open("a", O_RDWR));
    T(write(fd, "from the first", 14));
    T(read(other, big, 100));
    T(write(other, ", from the other", 16));
    T(lseek(fd, 0, SEEK_END));
    T(write(fd, "!", 1));
    T(read(other, big, 100));
    state(other);
    T(read(other, big, 100));
}
CHECK(pwrite_leaves_the_cursor, 4) {
    int fd = make("a", 0, 1);
    T(pwrite(fd, "abc", 3, 5));
    T(pwrite(fd, "abc", 3, 0));
    T(pwrite(fd, "abc", 3, 1 << 20));
    T(write(fd, "x", 1));
    T(pwrite(fd, "abc", 3, -1));
    T(pwrite(fd, "abc", 3, LONG_MIN));
    state(fd);
}
CHECK(writes_behind_the_end_leave_holes, 3) {
    int fd = make("a", 0, 1);
    T(pwrite(fd, "end", 3, 100000));
    T(lseek(fd, 50000, SEEK_SET));
    T(write(fd, "middle", 6));
    T(pwrite(fd, "start", 5, 0));
    state(fd);
}
CHECK(empty_writes, 0) {
    int fd = make("a", 0, 1);
    T(write(fd, "", 0));
    T(write(fd, NULL, 0));
    T(pwrite(fd, "", 0, 1000));
    T(pwrite(fd, "", 0, -1));
    T(writev(fd, VEC({ NULL, 0 }, { "", 0 }), 2));
    T(writev(fd, NULL, 0));
    T(pwritev(fd, VEC({ NULL, 0 }), 1, 5000));
    T(write(99, "", 0));
    state(fd);
    int reader = T(open("a", O_RDONLY));
    T(write(reader, "", 0));
}
CHECK(empty_writes_in_a_written_file, 1) {
    int fd = make("a", 10, 1);
    T(write(fd, "", 0));
    T(write(fd, NULL, 0));
    T(pwrite(fd, "", 0, 1000));
    T(pwritev2(fd, VEC({ NULL, 0 }), 1, -1, RWF_APPEND));
    T(write(fd, big, 0));
    state(fd);
}
CHECK(vectors, 3) {
    int fd = make("a", 0, 1);
    fill(big, 5000, 3);
    T(writev(fd, VEC({ "one", 3 }, { big, 5000 }, { "", 0 }, { "three", 5 }), 4));
    T(pwritev(fd, VEC({ "one", 3 }, { big, 5000 }), 2, 2000));
    T(pwritev2(fd, VEC({ "one", 3 }, { big, 50 }), 2, 2000, 0));
    state(fd);
}
CHECK(vectors_of_wrong_counts, 1) {
    int fd = make("a", 0, 1);
    T(writev(fd, VEC({ "x", 1 }), -1));
    T(writev(fd, VEC({ "x", 1 }), 1025));
    T(writev(fd, VEC({ "x", 1 }), INT_MAX));
    T(writev(fd, NULL, 2));
    T(pwritev(fd, VEC({ "x", 1 }), 1, -1));
    T(pwritev2(fd, VEC({ "x", 1 }), 1, -2, 0));
    T(pwritev2(fd, VEC({ "x", 1 }), 1, LONG_MIN, 0));
    T(writev(-1, VEC({ "x", 1 }), 1));
    T(writev(fd, VEC({ "x", 1 }), 1));
    state(fd);
}
CHECK(vectors_of_the_greatest_count, 1) {
    int fd = make("a", 0, 1);
    static struct iovec parts[1024];
    fill(big, 1024 * 16, 3);
    for (int i = 0; i < 1024; i++) parts[i] = (struct iovec){ big + i * 16, i % 17 };
    T(writev(fd, parts, 1024));
    state(fd);
}
CHECK(buffers_that_cannot_be_read, 3) {
    int fd = make("a", 10, 1), end = T(open("b", O_WRONLY | O_CREAT | O_APPEND, 0644));
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(page, 4096, 1);
    munmap(page + 4096, 4096);
    T(write(fd, (char *)8, 10));
    T(write(fd, NULL, 1));
    T(pwrite(fd, (char *)-4096, 10, 0));
    T(write(fd, page + 4000, 200));
    state(fd);
    T(pwrite(fd, page, 8192, 5000));
    T(writev(fd, (struct iovec *)8, 1));
    T(writev(fd, VEC({ "good", 4 }, { (char *)8, 4 }), 2));
    T(write(end, "good", 4));
    T(write(end, (char *)8, 4));
    T(writev(end, VEC({ "good", 4 }, { NULL, 4 }), 2));
    T(write(end, "good", 4));
    T(write(99, (char *)8, 4));
    T(write(fd, "good", 4));
    state(fd);
    state(end);
    file("b");
}
CHECK(vectors_whose_lengths_overflow, 1) {
    int fd = make("a", 10, 1);
    T(writev(fd, VEC({ big, SIZE_MAX }, { big, 2 }), 2));
    T(writev(fd, VEC({ big, SSIZE_MAX }, { big, SSIZE_MAX }, { big, 4 }), 3));
    T(pwritev(fd, VEC({ big, 100 }, { big, (size_t)1 << 63 }), 2, 0));
    T(pwritev2(fd, VEC({ big, SSIZE_MAX }, { big, 1 }), 2, 0, RWF_APPEND));
    T(write(fd, big, SIZE_MAX));
    T(write(fd, big, (size_t)SSIZE_MAX + 1));
    T(pwrite(fd, big, SIZE_MAX, 5));
    state(fd);
}
CHECK(append_goes_to_the_end, 4) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_APPEND, 0644)), other = T(open("a", O_RDWR));
    T(write(fd, "first,", 6));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "second,", 7));
    T(pwrite(other, "far", 3, 50));
    T(write(fd, "last", 4));
    state(fd);
    T(lseek(fd, 3, SEEK_SET));
    T(read(fd, big, 4));
    state(fd);
}
CHECK(append_with_pwrite, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_APPEND, 0644));
    T(write(fd, "first,", 6));
    T(pwrite(fd, "second,", 7, 0));
    T(pwritev(fd, VEC({ "third", 5 }), 1, 2));
    state(fd);
}
CHECK(append_after_truncation, 4) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644));
    T(write(fd, "0123456789", 10));
    T(ftruncate(fd, 3));
    T(write(fd, "abc", 3));
    T(truncate("a", 100));
    T(write(fd, "def", 3));
    T(open("a", O_WRONLY | O_TRUNC));
    T(write(fd, "ghi", 3));
    state(fd);
    file("a");
}
CHECK(append_switched_on_and_off, 4) {
    int fd = make("a", 20, 1);
    T(fcntl(fd, F_SETFL, O_APPEND));
    T(write(fd, "end", 3));
    T(fcntl(fd, F_SETFL, 0));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "start", 5));
    T(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    T(pwrite(fd, "end", 3, 0));
    state(fd);
}
CHECK(append_of_many_sizes, 60) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644));
    for (int i = 0; i < 60; i++) {
        size_t bytes = (i * i * 37) % 9000 + 1;
        fill(big, bytes, i);
        if (write(fd, big, bytes) != (ssize_t)bytes) say("%s", errno_name(errno));
        if (lseek(fd, 0, SEEK_CUR) != lseek(fd, 0, SEEK_END)) say("cursor at %d", i);
    }
    file("a");
}
CHECK(flags_dsync_and_sync, 4) {
    int fd = make("a", 10, 1);
    T(pwritev2(fd, VEC({ "x", 1 }), 1, 3, RWF_DSYNC));
    T(pwritev2(fd, VEC({ "y", 1 }), 1, 4, RWF_SYNC));
    T(pwritev2(fd, VEC({ "z", 1 }), 1, -1, RWF_SYNC | RWF_DSYNC));
    state(fd);
}
CHECK(flag_append, 5) {
    int fd = make("a", 10, 1);
    T(pwritev2(fd, VEC({ "append", 6 }), 1, 3, RWF_APPEND));
    state(fd);
    T(pwritev2(fd, VEC({ "cursor", 6 }), 1, -1, RWF_APPEND));
    state(fd);
    T(write(fd, "w", 1));
    T(pwritev2(fd, VEC({ "both", 4 }), 1, 0, RWF_APPEND | RWF_DSYNC));
    state(fd);
}
CHECK(flag_append_on_a_remembered_cursor, 5) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "0123456789", 10));
    T(pwrite(fd, "far", 3, 100));
    T(pwritev2(fd, VEC({ "append", 6 }), 1, -1, RWF_APPEND));
    T(write(fd, "here", 4));
    T(write(fd, "there", 5));
    state(fd);
    file("a");
}
#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif
CHECK(flag_noappend, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_APPEND, 0644));
    T(write(fd, "0123456789", 10));
    T(pwritev2(fd, VEC({ "ab", 2 }), 1, 3, RWF_NOAPPEND));
    T(pwritev2(fd, VEC({ "ab", 2 }), 1, 3, RWF_NOAPPEND | RWF_APPEND));
    T(pwritev2(fd, VEC({ "cd", 2 }), 1, -1, RWF_NOAPPEND));
    state(fd);
}
CHECK(flag_nowait, 2) {
    int fd = make("a", 10, 1);
    ssize_t bytes = pwritev2(fd, VEC({ "x", 1 }), 1, 0, RWF_NOWAIT);
    IS(bytes == 1 || errno == EAGAIN || errno == EOPNOTSUPP);
    T(pwritev2(fd, VEC({ "y", 1 }), 1, 0, 0));
    state(fd);
}
CHECK(flag_hipri, 2) {
    int fd = make("a", 10, 1);
    T(pwritev2(fd, VEC({ "x", 1 }), 1, 0, RWF_HIPRI));
    state(fd);
}
CHECK(flags_unknown, 1) {
    int fd = make("a", 10, 1);
    T(pwritev2(fd, VEC({ "x", 1 }), 1, 0, 0x40000000));
    T(pwritev2(fd, VEC({ "x", 1 }), 1, 0, 0x40));
    T(pwritev2(fd, VEC({ "x", 1 }), 1, -1, 1 << 20));
    state(fd);
}
CHECK(preadv2_reads_what_was_written, 2) {
    int fd = make("a", 10, 1);
    T(pwrite(fd, "written", 7, 0));
    T(preadv2(fd, VEC({ big, 3 }, { big + 3, 4 }), 2, 0, 0));
    say("%.7s", big);
    T(preadv2(fd, VEC({ big, 3 }), 1, -1, RWF_NOWAIT));
    T(preadv(fd, VEC({ big, 3 }), 1, 100));
    state(fd);
}
CHECK(descriptors_that_cannot_write, 1) {
    T(close(make("a", 10, 1)));
    int fd = T(open("a", O_RDONLY)), dir = T(open(".", O_RDONLY));
    T(write(fd, "x", 1));
    T(pwrite(fd, "x", 1, 0));
    T(writev(fd, VEC({ "x", 1 }), 1));
    T(pwritev2(fd, VEC({ "x", 1 }), 1, 0, RWF_APPEND));
    T(ftruncate(fd, 0));
    T(fallocate(fd, 0, 0, 100));
    T(write(dir, "x", 1));
    T(ftruncate(dir, 0));
    file("a");
}
CHECK(pipes_and_sockets_have_no_place, 0) {
    int ends[2];
    T(pipe(ends));
    T(pwrite(ends[1], "x", 1, 0));
    T(pwritev2(ends[1], VEC({ "xy", 2 }), 1, -1, RWF_APPEND));
    T(lseek(ends[1], 0, SEEK_CUR));
    T(fsync(ends[1]));
    T(fallocate(ends[1], 0, 0, 1));
    T(write(ends[1], "x", 1));
    T(read(ends[0], big, 10));
}
CHECK(offsets_near_the_greatest, 3) {
    int fd = make("a", 10, 1);
    T(pwrite(fd, "xy", 2, LONG_MAX));
    T(pwrite(fd, "xy", 2, LONG_MAX - 1));
    T(pwrite(fd, "xy", 2, LONG_MAX - 4096) < 0);
    T(lseek(fd, LONG_MAX, SEEK_SET) == LONG_MAX);
    T(write(fd, "xy", 2));
    T(lseek(fd, 5, SEEK_SET));
    T(write(fd, "here", 4));
    T(ftruncate(fd, LONG_MAX) < 0);
    T(pwrite(fd, "xy", 2, 1L << 62) < 0);
    T(ftruncate(fd, 10));
    file("a");
}
CHECK(a_sparse_file_of_a_tebibyte, 2) {
    int fd = make("a", 0, 1);
    T(pwrite(fd, "far", 3, 1L << 40));
    T(pwrite(fd, "near", 4, 0));
    T(pread(fd, big, 3, 1L << 40));
    say("%.3s", big);
    T(lseek(fd, 0, SEEK_END));
    T(ftruncate(fd, 1L << 41));
    T(fsync(fd));
    T(ftruncate(fd, 100));
    state(fd);
}
CHECK(writes_of_many_sizes, 30) {
    int fd = make("a", 0, 1);
    for (int i = 0; i < 30; i++) {
        size_t bytes = i < 20 ? 1ul << i : 1000003ul / (i - 10);
        fill(big, bytes, i);
        if (pwrite(fd, big, bytes, i * 10001) != (ssize_t)bytes) say("%s", errno_name(errno));
    }
    state(fd);
}
CHECK(a_write_beyond_the_log, 2) {
    size_t bytes = 12 << 20;
    char *large = fill(malloc(bytes), bytes, 7);
    int fd = make("a", 100, 1);
    T(write(fd, large, bytes));
    T(pwrite(fd, large, bytes, 1000));
    T(write(fd, "behind", 6));
    T(writev(fd, VEC({ large, bytes / 2 }, { large, bytes / 2 }), 2));
    state(fd);
}
CHECK(a_write_beyond_the_log_appended, 3) {
    size_t bytes = 9 << 20;
    char *large = fill(malloc(bytes), bytes, 7);
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644));
    T(write(fd, "x", 1));
    T(write(fd, large, bytes));
    T(write(fd, "y", 1));
    state(fd);
    T(close(fd));
    T(fd = open("b", O_WRONLY | O_CREAT, 0644));
    T(write(fd, large, bytes));
    T(write(fd, "z", 1));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
    file("b");
}
CHECK(the_log_is_written_round, 1000) {
    int fd = make("a", 0, 1);
    char *block = fill(malloc(200000), 200000, 7);
    for (int i = 0; i < 1000; i++)
        if (pwrite(fd, block, 200000 - i, (i % 20) * 100000 + i) != 200000 - i) say("%s", errno_name(errno));
    state(fd);
}
CHECK(direct_writes, 4) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_DIRECT, 0644));
    if (fd < 0) return;
    char *block = fill(aligned_alloc(4096, 16384), 16384, 1);
    T(write(fd, block, 8192));
    T(pwrite(fd, block + 4096, 4096, 65536));
    T(pread(fd, block, 4096, 65536));
    T(write(fd, block, 4096));
    T(fsync(fd));
    T(fcntl(fd, F_SETFL, 0));
    T(write(fd, "unaligned", 9));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(direct_writes_that_are_not_aligned, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_DIRECT, 0644));
    if (fd < 0 || is_btrfs() || is_tmpfs()) return; /* They fall back to buffered writes. */
    char *block = fill(aligned_alloc(4096, 16384), 16384, 1);
    T(write(fd, block, 4096));
    T(write(fd, block + 1, 4096));
    T(write(fd, block, 100));
    T(pwrite(fd, block, 4096, 100));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(direct_switched_on, 3) {
    int fd = make("a", 10000, 1);
    char *block = fill(aligned_alloc(4096, 4096), 4096, 1);
    T(fcntl(fd, F_SETFL, O_DIRECT));
    T(pwrite(fd, block, 4096, 4096));
    T(fcntl(fd, F_SETFL, 0));
    T(pwrite(fd, "x", 1, 4097));
    state(fd);
}
CHECK(sync_flags_are_shown, 4) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC, 0644)), other = T(open("a", O_RDWR | O_DSYNC));
    T(write(fd, "sync", 4));
    T(write(other, "dsync", 5));
    T(fcntl(fd, F_SETFL, O_APPEND | O_DSYNC));
    T(fcntl(other, F_SETFL, O_SYNC));
    T(dup(other));
    T(write(fd, "sync", 4));
    T(write(other, "dsync", 5));
    state(fd);
    state(other);
    state(5);
}
CHECK(syncs_of_every_kind, 3) {
    int fd = make("a", 10, 1), dir = T(open(".", O_RDONLY | O_DIRECTORY));
    T(fsync(fd));
    T(fdatasync(fd));
    T(write(fd, "x", 1));
    T(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    T(sync_file_range(fd, 0, 10, 7));
    T(sync_file_range(fd, -1, 10, 1));
    T(sync_file_range(fd, 0, -1, 1));
    T(sync_file_range(fd, 0, 10, 8));
    T(sync_file_range(99, 0, 10, 1));
    T(sync_file_range(dir, 0, 10, 1));
    T(fsync(dir));
    T(fdatasync(dir));
    T(syncfs(fd));
    T(syncfs(99));
    T(fsync(open("a", O_RDONLY)));
    T(write(fd, "y", 1));
    state(fd);
}
CHECK(advice, 2) {
    int fd = make("a", 100000, 1);
    for (int advice = 0; advice < 8; advice++) T(posix_fadvise(fd, 0, 0, advice));
    T(posix_fadvise(99, 0, 0, 0));
    T(readahead(fd, 0, 100000));
    T(write(fd, "x", 1));
    T(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    state(fd);
}
CHECK(disk_full, 0) {
    int filler = make("filler", 0, 1), fd = make("a", 0, 1);
    unsigned long step = 1ul << 30;
    for (off_t at = 0; step >= 1 << 16;) {
        if (fallocate(filler, 0, at, step) == 0) at += step;
        else step /= 2;
    }
    ssize_t bytes = 0;
    int full = 0;
    off_t size = 0;
    fill(big, 65536, 1);
    for (int i = 0; i < 5000 && !full; i++) {
        bytes = write(fd, big, 65536);
        full = bytes < 65536;
        if (bytes > 0) size += bytes;
    }
    IS(full);
    if (bytes >= 0) bytes = write(fd, big, 65536);
    IS(bytes == -1 && errno == ENOSPC);
    IS(lseek(fd, 0, SEEK_END) == size);
    IS(lseek(fd, 0, SEEK_CUR) == size);
    T(ftruncate(filler, 0));
    T(unlink("filler"));
    T(close(filler));
    T(fsync(fd));
    T(ftruncate(fd, 0));
    T(lseek(fd, 0, SEEK_END));
    T(write(fd, "fits again", 10));
    state(fd);
}
