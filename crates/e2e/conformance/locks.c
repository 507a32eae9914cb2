/* Locks and leases that the program takes for itself. */
#include "conform.h"
#define THEME "locks"

static struct flock range(short type, off_t start, off_t bytes) {
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes };
}
/* What another process is told about a range. */
static void ask(int command, short type, off_t start, off_t bytes) {
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open("a", O_RDWR);
        struct flock lock = range(type, start, bytes);
        T(fcntl(fd, command, &lock));
        if (command == F_GETLK || command == F_OFD_GETLK)
            say("type %d from %ld, %ld bytes, ours %d", lock.l_type, (long)lock.l_start, (long)lock.l_len, lock.l_pid == getppid());
        _exit(0);
    }
    reap("asked", pid);
}
CHECK(record_locks, 2) {
    int fd = make("a", 1000, 1);
    struct flock lock = range(F_WRLCK, 10, 20), reading = range(F_RDLCK, 100, 50);
    T(fcntl(fd, F_SETLK, &lock));
    T(fcntl(fd, F_SETLK, &reading));
    T(write(fd, "x", 1));
    ask(F_GETLK, F_WRLCK, 0, 0);
    ask(F_SETLK, F_WRLCK, 15, 1);
    ask(F_SETLK, F_RDLCK, 110, 1);
    ask(F_SETLK, F_WRLCK, 500, 1);
    lock = range(F_UNLCK, 0, 0);
    T(fcntl(fd, F_SETLK, &lock));
    ask(F_GETLK, F_WRLCK, 0, 0);
}
CHECK(record_locks_last_until_a_close, 4) {
    int fd = make("a", 1000, 1), other = T(open("a", O_RDWR));
    struct flock lock = range(F_WRLCK, 0, 0);
    T(fcntl(fd, F_SETLK, &lock));
    T(write(fd, "x", 1));
    T(fsync(fd));
    T(ftruncate(fd, 10));
    T(rename("a", "b"));
    T(rename("b", "a"));
    T(write(fd, "x", 1));
    ask(F_GETLK, F_WRLCK, 0, 0);
    T(close(other));
    ask(F_GETLK, F_WRLCK, 0, 0);
    T(write(fd, "x", 1));
}
/* A new file's bytes are read back at its first sync, for which we must not close it. */
CHECK(record_locks_survive_a_sync, 7) {
    int how[] = { O_WRONLY, O_WRONLY | O_APPEND, O_RDWR };
    for (int which = 0; which < 3; which++) {
        unlink("a");
        int fd = T(open("a", how[which] | O_CREAT | O_EXCL, 0644));
        struct flock lock = range(F_WRLCK, 0, 0);
        T(fcntl(fd, F_SETLK, &lock));
        T(write(fd, "pid", 3));
        ask(F_GETLK, F_WRLCK, 0, 0);
        T(fsync(fd));
        ask(F_GETLK, F_WRLCK, 0, 0);
        T(write(fd, "pid", 3));
        T(fdatasync(fd));
        ask(F_SETLK, F_RDLCK, 1, 1);
        T(close(fd));
    }
    unlink("a");
    FILE *stream = fopen("a", "w");
    fputs("text", stream);
    T(lockf(fileno(stream), F_LOCK, 0));
    T(fflush(stream));
    T(fsync(fileno(stream)));
    ask(F_GETLK, F_WRLCK, 0, 0);
    T(fclose(stream));
}
CHECK(record_locks_survive_a_truncating_open_of_another_process, 3) {
    int fd = make("a", 1000, 1);
    struct flock lock = range(F_WRLCK, 0, 10);
    T(fcntl(fd, F_SETLK, &lock));
    CHILD(T(open("a", O_WRONLY | O_TRUNC)); T(write(3, "x", 1)));
    T(write(fd, "y", 1));
    ask(F_GETLK, F_WRLCK, 0, 0);
    state(fd);
}
CHECK(record_locks_that_wait, 3) {
    int fd = make("a", 1000, 1), ends[2];
    struct flock lock = range(F_WRLCK, 0, 10);
    T(pipe(ends));
    T(fcntl(fd, F_SETLK, &lock));
    pid_t pid = fork();
    if (pid == 0) {
        struct flock wanted = range(F_WRLCK, 0, 10);
        write(ends[1], "r", 1);
        T(fcntl(fd, F_SETLKW, &wanted));
        T(pwrite(fd, "child", 5, 0));
        _exit(0);
    }
    T(read(ends[0], big, 1));
    usleep(20000);
    T(pwrite(fd, "parent", 6, 0));
    lock.l_type = F_UNLCK;
    fcntl(fd, F_SETLK, &lock);
    reap("waited for", pid);
    state(fd);
}
CHECK(record_locks_by_lockf, 2) {
    int fd = make("a", 1000, 1);
    T(lseek(fd, 100, SEEK_SET));
    T(lockf(fd, F_TLOCK, 50));
    T(write(fd, "x", 1));
    ask(F_GETLK, F_WRLCK, 0, 0);
    T(lseek(fd, 100, SEEK_SET));
    T(lockf(fd, F_ULOCK, 50));
    T(lockf(open("a", O_RDONLY), F_TLOCK, 0));
}
CHECK(description_locks, 3) {
    int fd = make("a", 1000, 1), other = T(open("a", O_RDWR));
    struct flock lock = range(F_WRLCK, 10, 20);
    T(fcntl(fd, F_OFD_SETLK, &lock));
    T(fcntl(other, F_OFD_SETLK, &lock));
    T(write(fd, "x", 1));
    T(close(dup(fd)));
    lock = range(F_WRLCK, 0, 0);
    T(fcntl(other, F_OFD_GETLK, &lock));
    say("type %d from %ld, %ld bytes, %d", lock.l_type, (long)lock.l_start, (long)lock.l_len, lock.l_pid);
    CHILD(struct flock mine = range(F_UNLCK, 0, 0); T(fcntl(fd, F_OFD_SETLK, &mine)));
    lock = range(F_WRLCK, 0, 0);
    T(fcntl(other, F_OFD_SETLK, &lock));
    T(write(other, "y", 1));
}
CHECK(whole_file_locks, 3) {
    int fd = make("a", 10, 1), other = T(open("a", O_RDWR));
    T(flock(fd, LOCK_EX));
    T(flock(other, LOCK_SH | LOCK_NB));
    T(write(fd, "x", 1));
    T(flock(dup(fd), LOCK_SH));
    T(flock(other, LOCK_SH | LOCK_NB));
    T(flock(other, LOCK_EX | LOCK_NB));
    T(write(other, "y", 1));
    T(flock(fd, LOCK_UN));
    T(flock(other, LOCK_EX | LOCK_NB));
    T(close(other));
    T(flock(fd, LOCK_EX | LOCK_NB));
    T(flock(99, LOCK_EX));
    T(flock(fd, 0));
}
CHECK(whole_file_locks_end_with_the_last_descriptor, 2) {
    int fd = make("a", 10, 1), other = T(open("a", O_RDONLY));
    T(flock(fd, LOCK_EX));
    T(write(fd, "x", 1));
    int copy = T(dup(fd));
    T(close(fd));
    T(flock(other, LOCK_EX | LOCK_NB));
    T(close(copy));
    T(flock(other, LOCK_EX | LOCK_NB));
}
CHECK(a_lock_file_of_one_writer, 2) {
    int fd = T(open("lock", O_WRONLY | O_CREAT | O_EXCL, 0644));
    T(write(fd, "1", 1));
    T(open("lock", O_WRONLY | O_CREAT | O_EXCL, 0644));
    T(close(fd));
    T(unlink("lock"));
    fd = T(open("lock", O_WRONLY | O_CREAT | O_EXCL, 0644));
    T(write(fd, "2", 1));
}
static volatile sig_atomic_t got;
static void on_signal(int number) { got = number; }
CHECK(a_read_lease, 1) {
    int fd = make("a", 10, 1);
    T(close(fd));
    signal(SIGIO, on_signal);
    int reader = T(open("a", O_RDONLY));
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    T(fcntl(reader, F_GETLEASE));
    T(open("a", O_RDWR | O_NONBLOCK));
    T(got);
    T(fcntl(reader, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, F_UNLCK));
    T(open("a", O_RDWR | O_NONBLOCK));
}
CHECK(a_read_lease_on_a_writable_description, 1) {
    int fd = make("a", 10, 1);
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    T(fcntl(fd, F_GETLEASE));
    T(write(fd, "x", 1));
}
CHECK(a_write_lease_before_the_first_write, 0) {
    signal(SIGIO, on_signal);
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(fcntl(fd, F_SETLEASE, F_WRLCK));
    T(fcntl(fd, F_GETLEASE));
    T(write(fd, "under a lease", 13));
    T(fsync(fd));
    T(got);
    T(fcntl(fd, F_GETLEASE));
    T(open("a", O_RDONLY | O_NONBLOCK));
    T(got);
    T(fcntl(fd, F_SETLEASE, F_UNLCK));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(a_write_lease_after_a_write, 2) {
    signal(SIGIO, on_signal);
    int fd = make("a", 10, 1);
    T(write(fd, "logged", 6));
    T(fcntl(fd, F_SETLEASE, F_WRLCK));
    T(fcntl(fd, F_GETLEASE));
    T(write(fd, "under a lease", 13));
    T(fsync(fd));
    T(got);
    T(open("a", O_RDONLY | O_NONBLOCK));
    T(got);
    T(fcntl(fd, F_SETLEASE, F_UNLCK));
    T(write(fd, "x", 1));
    state(fd);
    T(close(fd));
    fd = T(open("a", O_RDWR));
    T(write(fd, "managed again", 13));
    state(fd);
}
CHECK(a_write_lease_of_a_reader, 3) {
    signal(SIGIO, on_signal);
    int fd = make("a", 10, 1);
    T(write(fd, "logged", 6));
    T(fsync(fd));
    T(write(fd, "logged", 6));
    T(close(fd));
    fd = T(open("a", O_RDONLY));
    T(fcntl(fd, F_SETLEASE, F_WRLCK));
    T(fcntl(fd, F_GETLEASE));
    T(open("a", O_RDONLY | O_NONBLOCK));
    T(got);
    T(fcntl(fd, F_SETLEASE, F_UNLCK));
    state(fd);
    T(open("a", O_RDONLY));
    T(fcntl(fd, F_SETLEASE, F_WRLCK));
}
CHECK(a_write_lease_on_a_shared_file_is_refused, 1) {
    int fd = make("a", 10, 1);
    T(open("a", O_RDONLY));
    T(fcntl(fd, F_SETLEASE, F_WRLCK));
    T(fcntl(fd, F_GETLEASE));
    T(write(fd, "x", 1));
}
CHECK(signals_of_descriptors, 2) {
    int fd = make("a", 10, 1);
    T(fcntl(fd, F_GETSIG));
    T(fcntl(fd, F_SETSIG, SIGUSR1));
    T(write(fd, "x", 1));
    T(fcntl(fd, F_GETSIG));
    T(fcntl(fd, F_GETOWN));
    T(fcntl(fd, F_SETOWN, getpid()));
    T(fcntl(fd, F_GETOWN) == getpid());
}
CHECK(notices_of_a_directory, 1) {
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGUSR2, &action, NULL);
    int dir = T(open(".", O_RDONLY));
    T(fcntl(dir, F_SETSIG, SIGUSR2));
    T(fcntl(dir, F_NOTIFY, DN_CREATE | DN_MODIFY | DN_DELETE | DN_MULTISHOT));
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(got == SIGUSR2);
    got = 0;
    T(write(fd, "x", 1));
    T(got == SIGUSR2);
    got = 0;
    T(unlink("a"));
    T(got == SIGUSR2);
}
CHECK(hints_of_lifetime, 2) {
    int fd = make("a", 10, 1);
    uint64_t hint = 2;
    T(fcntl(fd, F_SET_RW_HINT, &hint));
    hint = 0;
    T(fcntl(fd, F_GET_RW_HINT, &hint));
    say("%d", (int)hint);
    T(fcntl(fd, 9999));
    T(write(fd, "x", 1));
}
