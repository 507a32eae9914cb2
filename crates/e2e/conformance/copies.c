/* Content that the kernel moves: copy_file_range, sendfile, splice, shared extents, ioctls. */
#include "conform.h"
#include <linux/fiemap.h>
#include <sys/sendfile.h>
#define THEME "copies"

CHECK(copy_ranges_between_files, 4) {
    int from = make("from", 100000, 1), to = make("to", 1000, 2);
    off_t at = 500, place = 300;
    T(copy_file_range(from, &at, to, &place, 5000, 0));
    say("%ld %ld", (long)at, (long)place);
    T(copy_file_range(from, NULL, to, NULL, 100, 0));
    T(write(to, "behind", 6));
    T(copy_file_range(from, NULL, to, &place, 1 << 20, 0));
    say("%ld", (long)place);
    T(copy_file_range(from, NULL, to, NULL, 10, 0));
    T(write(to, "end", 3));
    state(from);
    state(to);
}
CHECK(copy_ranges_into_a_write_only_file, 4) {
    int from = make("from", 10000, 1), to = T(open("to", O_WRONLY | O_CREAT, 0644));
    T(write(to, "start", 5));
    T(copy_file_range(from, NULL, to, NULL, 3000, 0));
    T(write(to, "middle", 6));
    T(copy_file_range(from, NULL, to, NULL, 3000, 0));
    T(lseek(to, -2, SEEK_CUR));
    T(write(to, "end", 3));
    state(to);
    file("to");
}
CHECK(copy_ranges_within_a_file, 2) {
    int fd = make("a", 10000, 1);
    off_t at = 0, place = 5000;
    T(copy_file_range(fd, &at, fd, &place, 1000, 0));
    at = 0, place = 500;
    T(copy_file_range(fd, &at, fd, &place, 1000, 0));
    at = 5000, place = 20000;
    T(copy_file_range(fd, &at, fd, &place, 1000, 0));
    T(pwrite(fd, "x", 1, 20000));
    state(fd);
}
CHECK(copy_ranges_that_fail, 2) {
    int from = make("from", 1000, 1), to = make("to", 1000, 2), reader = T(open("to", O_RDONLY));
    int append = T(open("to", O_WRONLY | O_APPEND)), ends[2];
    off_t wrong = -1, far = LONG_MAX - 10;
    T(copy_file_range(from, NULL, reader, NULL, 10, 0));
    T(copy_file_range(from, NULL, append, NULL, 10, 0));
    T(copy_file_range(append, NULL, to, NULL, 10, 0));
    T(copy_file_range(from, &wrong, to, NULL, 10, 0));
    T(copy_file_range(from, NULL, to, &wrong, 10, 0));
    T(copy_file_range(from, NULL, to, &far, 1000, 0));
    T(copy_file_range(from, NULL, to, NULL, 10, 1));
    T(copy_file_range(99, NULL, to, NULL, 10, 0));
    T(copy_file_range(from, NULL, 99, NULL, 10, 0));
    T(copy_file_range(open(".", O_RDONLY), NULL, to, NULL, 10, 0));
    T(copy_file_range(from, (off_t *)8, to, NULL, 10, 0));
    T(pipe(ends));
    T(copy_file_range(ends[0], NULL, to, NULL, 10, 0));
    T(copy_file_range(from, NULL, to, NULL, 0, 0));
    state(to);
}
CHECK(sendfile_into_a_file, 6) {
    int from = make("from", 50000, 1), to = make("to", 10, 2), plain = T(open("w", O_WRONLY | O_CREAT, 0644));
    off_t at = 100;
    T(sendfile(to, from, &at, 5000));
    say("%ld", (long)at);
    T(sendfile(to, from, NULL, 20));
    T(write(to, "behind", 6));
    T(write(plain, "start", 5));
    T(sendfile(plain, from, NULL, 100000));
    T(write(plain, "end", 3));
    T(sendfile(plain, from, NULL, 100000));
    T(write(plain, "!", 1));
    state(to);
    state(plain);
    file("w");
}
CHECK(sendfile_that_fails, 2) {
    int from = make("from", 1000, 1), to = make("to", 10, 2), append = T(open("to", O_WRONLY | O_APPEND));
    off_t wrong = -1;
    T(sendfile(append, from, NULL, 10));
    T(sendfile(to, from, &wrong, 10));
    T(sendfile(99, from, NULL, 10));
    T(sendfile(to, 99, NULL, 10));
    T(sendfile(to, from, (off_t *)8, 10));
    T(sendfile(from, to, NULL, 5));
    state(to);
    state(from);
}
CHECK(sendfile_out_of_a_file, 1) {
    int from = make("from", 1000, 1), ends[2];
    T(pipe(ends));
    T(sendfile(ends[1], from, NULL, 500));
    T(read(ends[0], big, 1000));
    say("%llx", (unsigned long long)sum(big, 500, 0));
    state(from);
}
CHECK(splice_into_a_file, 2) {
    int to = make("to", 10, 2), plain = T(open("w", O_WRONLY | O_CREAT, 0644)), ends[2];
    off_t place = 100;
    T(pipe(ends));
    T(write(plain, "start", 5));
    T(write(ends[1], "through the pipe", 16));
    T(splice(ends[0], NULL, to, &place, 7, 0));
    T(splice(ends[0], NULL, to, NULL, 4, SPLICE_F_MOVE));
    T(splice(ends[0], NULL, plain, NULL, 100, SPLICE_F_MORE));
    T(write(to, "behind", 6));
    T(write(plain, "end", 3));
    say("%ld", (long)place);
    T(splice(ends[0], NULL, to, NULL, 100, SPLICE_F_NONBLOCK));
    state(to);
    state(plain);
    file("w");
}
CHECK(splice_that_fails, 1) {
    int fd = make("a", 100, 1), ends[2], append = T(open("a", O_WRONLY | O_APPEND));
    T(pipe(ends));
    T(write(ends[1], "x", 1));
    T(splice(ends[0], NULL, append, NULL, 1, 0));
    T(splice(fd, NULL, fd, NULL, 1, 0));
    T(splice(ends[0], NULL, open("a", O_RDONLY), NULL, 1, 0));
    T(splice(ends[0], &(off_t){ 0 }, fd, NULL, 1, 0));
    T(splice(99, NULL, fd, NULL, 1, 0));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(splice_out_of_a_file, 2) {
    int fd = make("a", 5000, 1), ends[2];
    T(pipe(ends));
    T(splice(fd, NULL, ends[1], NULL, 3000, 0));
    T(read(ends[0], big, 5000));
    say("%llx", (unsigned long long)sum(big, 3000, 0));
    T(write(fd, "here", 4));
    state(fd);
}
CHECK(vmsplice_and_tee, 0) {
    int fd = make("a", 0, 1), ends[2], other[2];
    T(pipe(ends));
    T(pipe(other));
    struct iovec part = { fill(big, 100, 1), 100 };
    T(vmsplice(ends[1], &part, 1, 0));
    T(tee(ends[0], other[1], 50, 0));
    T(splice(other[0], NULL, fd, NULL, 50, 0));
    T(splice(ends[0], NULL, fd, NULL, 100, 0));
    state(fd);
}
CHECK(whole_files_are_cloned, 5) {
    int from = make("from", 200000, 1), to = make("to", 500, 2);
    T(ioctl(to, FICLONE, from));
    state(to);
    T(pwrite(to, "changed", 7, 70000));
    T(pwrite(from, "source changed", 14, 0));
    state(to);
    state(from);
    T(ftruncate(to, 0));
    T(ioctl(to, FICLONE, to));
    T(ioctl(to, FICLONE, 99));
    T(ioctl(open("to", O_RDONLY), FICLONE, from));
    T(ioctl(open("to", O_WRONLY | O_APPEND), FICLONE, from));
    T(write(to, "x", 1));
    state(to);
}
CHECK(ranges_are_cloned, 3) {
    int from = make("from", 1 << 20, 1), to = make("to", 1 << 18, 2);
    struct file_clone_range range = { from, 65536, 131072, 0 }, odd = { from, 5, 100, 7 }, tail = { from, 0, 0, 1 << 19 };
    T(ioctl(to, FICLONERANGE, &range));
    T(ioctl(to, FICLONERANGE, &odd));
    T(ioctl(to, FICLONERANGE, &tail));
    T(pwrite(to, "x", 1, 65536));
    state(to);
    T(ioctl(to, FICLONERANGE, (void *)8));
}
CHECK(equal_ranges_are_shared, 3) {
    int one = make("one", 1 << 18, 1), other = make("other", 1 << 18, 1);
    T(fsync(one));
    T(fsync(other));
    struct { struct file_dedupe_range head; struct file_dedupe_range_info info; } request = {
        { .src_offset = 0, .src_length = 65536, .dest_count = 1 }, { .dest_fd = other, .dest_offset = 65536 } };
    T(ioctl(one, FIDEDUPERANGE, &request));
    say("status %d", request.info.status);
    request.info = (struct file_dedupe_range_info){ .dest_fd = other, .dest_offset = 0 };
    T(ioctl(one, FIDEDUPERANGE, &request));
    say("status %d, %lld bytes", request.info.status, (long long)request.info.bytes_deduped);
    T(pwrite(other, "changed", 7, 100));
    state(one);
    state(other);
}
CHECK(extents_are_told, 1) {
    int fd = make("a", 1 << 18, 1);
    struct { struct fiemap head; struct fiemap_extent extents[8]; } map = { { .fm_length = 1 << 18, .fm_flags = 1, .fm_extent_count = 8 }, { { 0 } } };
    T(ioctl(fd, FS_IOC_FIEMAP, &map));
    IS(is_tmpfs() || map.head.fm_mapped_extents > 0);
    state(fd);
}
CHECK(harmless_requests, 2) {
    int fd = make("a", 5000, 1), number = 0;
    T(lseek(fd, 1000, SEEK_SET));
    T(ioctl(fd, FIONREAD, &number));
    say("%d", number);
    T(ioctl(fd, FIONBIO, &(int){ 1 }));
    T(fcntl(fd, F_GETFL));
    T(ioctl(fd, FIONBIO, &(int){ 0 }));
    T(ioctl(fd, FIGETBSZ, &number));
    T(ioctl(fd, TCGETS, big));
    T(isatty(fd));
    T(ioctl(fd, FIOASYNC, &(int){ 0 }));
    T(ioctl(99, FIONREAD, &number));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(unknown_requests, 1) {
    int fd = make("a", 5000, 1);
    T(ioctl(fd, 0x12345678, big));
    T(ioctl(fd, 0, 0));
    T(ioctl(fd, ~0UL, 0));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(flags_of_the_inode, 2) {
    int fd = make("a", 10, 1), flags = 0;
    if (T(ioctl(fd, FS_IOC_GETFLAGS, &flags)) < 0) return;
    int changed = flags | FS_NODUMP_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &changed));
    T(ioctl(fd, FS_IOC_GETFLAGS, &changed));
    IS((changed & FS_NODUMP_FL) != 0);
    T(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    T(write(fd, "x", 1));
    T(fsync(fd));
    state(fd);
}
CHECK(freezing_is_refused_to_files, 1) {
    int fd = make("a", 10, 1);
    T(ioctl(fd, FITRIM, NULL) < 0);
    T(ioctl(fd, BLKGETSIZE64, big) < 0);
    T(write(fd, "x", 1));
    state(fd);
}
