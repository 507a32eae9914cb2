/* Mapped files: stores and calls on the same bytes. */
#include "conform.h"
#define THEME "mapping"
#define RW (PROT_READ | PROT_WRITE)

CHECK(a_shared_mapping_before_any_write, 0) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(ftruncate(fd, 8192));
    char *map = P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 0));
    strcpy(map, "stored");
    T(pwrite(fd, "written", 7, 100));
    say("%s %.7s", map, map + 100);
    T(msync(map, 8192, MS_SYNC));
    T(fsync(fd));
    state(fd);
}
CHECK(a_mapping_that_is_refused, 5) {
    int fd = make("a", 8192, 1);
    T(fsync(fd));
    int out = T(open("a", O_WRONLY));
    P(mmap(NULL, 8192, RW, MAP_SHARED, out, 0));
    P(mmap(NULL, 0, RW, MAP_SHARED, fd, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 100));
    P(mmap(NULL, 8192, RW, MAP_SHARED_VALIDATE | 0x80000000, fd, 0));
    T(pwrite(fd, "still in the log", 16, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED_VALIDATE | 0x80000 /* MAP_SYNC */, fd, 0));
    for (int at = 0; at < 3; at++) T(pwrite(fd, "and now", 7, 100 * at));
    T(fsync(fd));
    state(fd);
}
CHECK(a_shared_mapping_after_writes, 2) {
    int fd = make("a", 8192, 1);
    T(pwrite(fd, "written", 7, 100));
    char *map = P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 0));
    say("%.7s", map + 100);
    memcpy(map + 100, "stored!", 7);
    T(pread(fd, big, 7, 100));
    say("%.7s", big);
    T(pwrite(fd, "again", 5, 100));
    say("%.7s", map + 100);
    T(msync(map, 8192, MS_ASYNC));
    T(munmap(map, 8192));
    T(write(fd, "after", 5));
    T(fsync(fd));
    state(fd);
}
CHECK(a_shared_mapping_after_its_descriptor_is_closed, 1) {
    int fd = make("a", 8192, 1);
    char *map = P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 0));
    T(close(fd));
    memcpy(map, "stored", 6);
    fd = T(open("a", O_RDWR));
    T(pwrite(fd, "W", 1, 1));
    say("%.6s", map);
    map[2] = 'M';
    T(fsync(fd));
    state(fd);
}
CHECK(a_private_mapping_keeps_its_stores, 3) {
    int fd = make("a", 8192, 1);
    char *map = P(mmap(NULL, 8192, RW, MAP_PRIVATE, fd, 0));
    T(pwrite(fd, "one", 3, 0));
    say("%.3s", map);
    memcpy(map, "mine", 4);
    T(pwrite(fd, "two", 3, 0));
    say("%.4s", map);
    T(msync(map, 8192, MS_SYNC));
    state(fd);
}
CHECK(a_read_map_sees_pwrite, 40) {
    /* As LMDB does it. */
    int fd = make("a", 0, 1);
    T(ftruncate(fd, 1 << 20));
    char *map = P(mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0)), page[4096];
    for (int i = 0; i < 40; i++) {
        fill(page, sizeof page, i);
        pwrite(fd, page, sizeof page, (i * 7 % 256) * 4096);
        if (i % 8 == 7 && fdatasync(fd)) say("%s", errno_name(errno));
        if (memcmp(map + (i * 7 % 256) * 4096, page, sizeof page)) say("differs at %d", i);
    }
    T(msync(map, 1 << 20, MS_SYNC));
    state(fd);
}
static long unseen(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
CHECK(a_read_map_of_a_file_of_before_sees_pwrite, 20) {
    /* As LMDB opens a file that is there already: mapped before its first write, which the map must show. */
    int fd = unseen(SYS_open, (long)"a", O_RDWR | O_CREAT, 0644);
    unseen(SYS_ftruncate, fd, 1 << 20, 0);
    unseen(SYS_close, fd, 0, 0);
    fd = T(open("a", O_RDWR));
    char *map = P(mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0)), page[4096];
    for (int i = 0; i < 20; i++) {
        fill(page, sizeof page, i);
        pwrite(fd, page, sizeof page, i * 4096);
        if (memcmp(map + i * 4096, page, sizeof page)) say("differs at %d", i);
    }
    state(fd);
}
CHECK(a_read_map_made_writable, 2) {
    int fd = make("a", 8192, 1);
    char *map = P(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0));
    T(pwrite(fd, "before", 6, 0));
    T(mprotect(map, 4096, RW));
    memcpy(map, "stored", 6);
    T(pwrite(fd, "W", 1, 3));
    say("%.6s", map);
    T(mprotect(map, 4096, PROT_READ));
    T(fsync(fd));
    state(fd);
}
CHECK(a_read_map_of_a_read_only_descriptor, 2) {
    int fd = make("a", 8192, 1), reader = T(open("a", O_RDONLY));
    char *map = P(mmap(NULL, 8192, PROT_READ, MAP_SHARED, reader, 0));
    T(mprotect(map, 4096, RW));
    P(mmap(NULL, 8192, RW, MAP_SHARED, reader, 0));
    P(mmap(NULL, 8192, RW, MAP_PRIVATE, reader, 0));
    T(pwrite(fd, "seen", 4, 0));
    say("%.4s", map);
    state(fd);
}
CHECK(mappings_that_fail, 1) {
    int fd = make("a", 8192, 1), writer = T(open("a", O_WRONLY)), dir = T(open(".", O_RDONLY)), ends[2];
    T(pipe(ends));
    P(mmap(NULL, 8192, PROT_READ, MAP_SHARED, writer, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, writer, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, dir, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, ends[0], 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, 99, 0));
    P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 100));
    P(mmap(NULL, 0, RW, MAP_SHARED, fd, 0));
    P(mmap(NULL, 8192, RW, 0, fd, 0));
    T(write(writer, "x", 1));
    state(fd);
}
CHECK(a_mapping_moved_and_grown, 1) {
    int fd = make("a", 65536, 1);
    char *map = P(mmap(NULL, 4096, RW, MAP_SHARED, fd, 0));
    map = P(mremap(map, 4096, 65536, MREMAP_MAYMOVE));
    memcpy(map + 60000, "far", 3);
    T(pwrite(fd, "near", 4, 0));
    say("%.4s", map);
    T(msync(map, 65536, MS_SYNC));
    state(fd);
}
CHECK(a_read_map_moved_and_made_writable, 1) {
    int fd = make("a", 65536, 1);
    char *map = P(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0));
    map = P(mremap(map, 4096, 65536, MREMAP_MAYMOVE));
    T(mprotect(map + 4096, 4096, RW));
    memcpy(map + 5000, "far", 3);
    T(fsync(fd));
    state(fd);
}
CHECK(two_mappings_of_one_file, 1) {
    int fd = make("a", 8192, 1);
    char *one = P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 0)), *other = P(mmap(NULL, 4096, RW, MAP_SHARED, fd, 4096));
    memcpy(one + 5000, "one", 3);
    say("%.3s", other + 5000 - 4096);
    memcpy(other, "other", 5);
    say("%.5s", one + 4096);
    state(fd);
}
CHECK(a_mapping_with_validation, 1) {
    int fd = make("a", 8192, 1);
    char *map = P(mmap(NULL, 4096, RW, MAP_SHARED_VALIDATE, fd, 0));
    if (map != MAP_FAILED) memcpy(map, "stored", 6);
    P(mmap(NULL, 4096, RW, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0));
    T(pwrite(fd, "w", 1, 100));
    state(fd);
}
CHECK(a_mapping_of_a_removed_file, 1) {
    int fd = make("a", 8192, 1);
    T(unlink("a"));
    char *map = P(mmap(NULL, 4096, RW, MAP_SHARED, fd, 0));
    memcpy(map, "stored", 6);
    T(pwrite(fd, "W", 1, 0));
    say("%.6s", map);
    state(fd);
}
CHECK(a_map_of_a_file_that_nobody_has_written_yet, 2) {
    T(close(T(open("a", O_RDONLY | O_CREAT, 0644))));
    int fd = T(open("a", O_RDONLY));
    char *map = P(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0));
    T(close(fd));
    fd = T(open("a", O_RDWR));
    T(pwrite(fd, "written", 7, 100));
    say("%.7s", map + 100);
    T(pwrite(fd, "again", 5, 100));
    say("%.7s", map + 100);
    state(fd);
}
CHECK(a_mapped_file_written_by_a_child, 2) {
    int fd = make("a", 8192, 1);
    T(pwrite(fd, "parent", 6, 0));
    char *map = P(mmap(NULL, 4096, RW, MAP_SHARED, fd, 0));
    CHILD(memcpy(map, "child!", 6); T(pwrite(fd, "by call", 7, 100)));
    say("%.6s %.7s", map, map + 100);
    T(pwrite(fd, "P", 1, 0));
    state(fd);
}
CHECK(a_file_written_from_its_own_mapping, 3) {
    int fd = make("a", 100000, 1);
    char *map = P(mmap(NULL, 100000, PROT_READ, MAP_PRIVATE, fd, 0));
    T(pwrite(fd, map + 50000, 40000, 3));
    T(pwrite(fd, map, 10, 100000));
    state(fd);
}
CHECK(a_file_written_from_another_ones_mapping, 2) {
    int from = make("from", 100000, 1), to = make("to", 0, 1);
    char *map = P(mmap(NULL, 100000, PROT_READ, MAP_SHARED, from, 0));
    T(write(to, map, 100000));
    state(to);
}
CHECK(faults_behind_the_end, 1) {
    int fd = make("a", 100, 1);
    volatile char *map = P(mmap(NULL, 8192, RW, MAP_SHARED, fd, 0));
    pid_t pid = fork();
    if (pid == 0) {
        map[5000] = 1;
        _exit(0);
    }
    reap("store behind the end", pid);
    map[200] = 1;
    T(ftruncate(fd, 300));
    T(pread(fd, big, 300, 0));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(madvise_and_mlock, 1) {
    int fd = make("a", 65536, 1);
    char *map = P(mmap(NULL, 65536, RW, MAP_SHARED, fd, 0));
    T(madvise(map, 65536, MADV_WILLNEED));
    T(madvise(map, 65536, MADV_DONTNEED));
    T(mlock(map, 4096));
    T(munlock(map, 4096));
    map[1] = 'x';
    T(madvise(map, 65536, MADV_REMOVE));
    T(pwrite(fd, "y", 1, 0));
    state(fd);
}
