/* Children and other processes: what they inherit and share. */
#include "conform.h"
#include <pty.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#define THEME "processes"

CHECK(parent_and_child_share_the_cursor, 5) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "parent,", 7));
    CHILD(T(write(fd, "child,", 6)); T(lseek(fd, 2, SEEK_CUR)); T(write(fd, "again,", 6)));
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "parent,", 7));
    CHILD(T(lseek(fd, 3, SEEK_SET)));
    T(write(fd, "X", 1));
    file("a");
}
CHECK(a_child_of_a_child, 5) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "parent,", 7));
    CHILD(T(write(fd, "child,", 6)); CHILD(T(write(fd, "grandchild,", 11))); T(write(fd, "child,", 6)));
    T(write(fd, "parent", 6));
    file("a");
}
CHECK(a_child_changes_flags_and_size, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "0123456789", 10));
    CHILD(T(fcntl(fd, F_SETFL, O_APPEND)); T(ftruncate(fd, 5)));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "end", 3));
    state(fd);
    CHILD(T(fcntl(fd, F_SETFL, 0)));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "start", 5));
    state(fd);
}
CHECK(a_child_closes_what_the_parent_keeps, 3) {
    int fd = make("a", 0, 1), other = make("b", 0, 1);
    T(write(fd, "x", 1));
    CHILD(T(close(fd)); T(dup2(other, fd)); T(write(fd, "to b", 4)));
    T(write(fd, "to a", 4));
    file("a");
    file("b");
}
CHECK(a_child_makes_files_of_its_own, 4) {
    int fd = make("a", 10, 1);
    CHILD(int own = T(open("own", O_RDWR | O_CREAT, 0644)); T(write(own, "own", 3)); T(fsync(own)); T(rename("own", "moved")));
    T(open("moved", O_WRONLY | O_APPEND));
    T(write(4, "+", 1));
    T(write(fd, "x", 1));
    file("moved");
}
CHECK(a_child_without_a_call_of_its_own, 2) {
    int fd = make("a", 10, 1);
    CHILD((void)0);
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(a_child_that_outlives_its_parent, 2) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644)), ends[2], wait_for_it[2];
    T(pipe(ends));
    T(pipe(wait_for_it));
    pid_t pid = fork();
    if (pid == 0) {
        if (fork() == 0) {
            read(wait_for_it[0], big, 1);
            T(write(fd, "orphan,", 7));
            T(fsync(fd));
            write(ends[1], "x", 1);
            _exit(0);
        }
        T(write(fd, "middle,", 7));
        _exit(0);
    }
    reap("middle", pid);
    write(wait_for_it[1], "x", 1);
    T(read(ends[0], big, 1));
    file("a");
}
CHECK(a_daemon, 3) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644)), ends[2];
    T(write(fd, "start,", 6));
    T(pipe(ends));
    int wait_for_it[2];
    T(pipe(wait_for_it));
    pid_t pid = fork();
    if (pid == 0) {
        if (daemon(1, 1) == 0) {
            read(wait_for_it[0], big, 1);
            T(write(fd, "daemon,", 7));
            T(open("b", O_WRONLY | O_CREAT, 0644));
            T(write(8, "own", 3));
            descriptors();
            write(ends[1], "x", 1);
        }
        _exit(0);
    }
    reap("parent of the daemon", pid);
    write(wait_for_it[1], "x", 1);
    T(read(ends[0], big, 1));
    file("a");
    file("b");
}
CHECK(a_daemon_made_by_hand, 2) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644)), ends[2], wait_for_it[2];
    T(pipe(ends));
    T(pipe(wait_for_it));
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork()) _exit(0);
        read(wait_for_it[0], big, 1);
        for (int i = 0; i < 3; i++) close(i);
        T(open("/dev/null", O_RDWR));
        T(open("log", O_WRONLY | O_CREAT | O_APPEND, 0644));
        T(dup(1));
        T(write(2, "to the log\n", 11));
        T(write(fd, "daemon", 6));
        T(fsync(2));
        write(ends[1], "x", 1);
        _exit(0);
    }
    reap("parent of the daemon", pid);
    write(wait_for_it[1], "x", 1);
    T(read(ends[0], big, 1));
    file("log");
    file("a");
}
CHECK(vfork_and_leave, 1) {
    int fd = make("a", 10, 1);
    pid_t pid = vfork();
    if (pid == 0) _exit(5);
    reap("vfork", pid);
    pid = vfork();
    if (pid == 0) {
        execl("/nonexistent", "x", NULL);
        _exit(errno);
    }
    reap("vfork", pid);
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(vfork_and_write, 1) {
    int fd = make("a", 10, 1);
    pid_t pid = vfork();
    if (pid == 0) {
        write(fd, "child", 5);
        _exit(5);
    }
    reap("vfork", pid);
    T(write(fd, "parent", 6));
    state(fd);
}
CHECK(clone_without_sharing, 2) {
    static char stack[65536];
    static int fd;
    fd = make("a", 0, 1);
    int work(void *unused) {
        (void)unused;
        T(write(fd, "cloned,", 7));
        return 9;
    }
    pid_t pid = clone(work, stack + sizeof stack, SIGCHLD, NULL);
    reap("clone", pid);
    T(write(fd, "parent", 6));
    file("a");
}
CHECK(clone_that_shares_descriptors, 1) {
    static char stack[65536];
    static int fd, other;
    fd = make("a", 0, 1), other = make("b", 0, 1);
    T(write(fd, "first,", 6));
    int work(void *unused) {
        (void)unused;
        T(dup2(other, fd));
        T(write(fd, "to b,", 5));
        return 9;
    }
    pid_t pid = clone(work, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
    reap("clone", pid);
    T(write(fd, "also to b", 9));
    file("a");
    file("b");
}
CHECK(clone_in_the_same_memory, 0) {
    static char stack[65536];
    static int fd;
    fd = make("a", 0, 1);
    int work(void *unused) {
        (void)unused;
        write(fd, "cloned,", 7);
        return 9;
    }
    pid_t pid = clone(work, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    reap("clone", pid);
    T(write(fd, "parent", 6));
    file("a");
}
CHECK(fork_by_other_names, 4) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "start,", 6));
    pid_t pid = _Fork();
    if (pid == 0) {
        write(fd, "_Fork,", 6);
        _exit(1);
    }
    reap("_Fork", pid);
    pid = syscall(SYS_fork);
    if (pid == 0) {
        write(fd, "raw,", 4);
        _exit(2);
    }
    reap("raw", pid);
    T(write(fd, "parent", 6));
    file("a");
}
CHECK(forkpty_and_write, 2) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644)), terminal;
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid == 0) {
        T(write(fd, "child,", 6));
        T(isatty(1));
        _exit(6);
    }
    reap("forkpty", pid);
    T(write(fd, "parent", 6));
    file("a");
}
static void send_fd(int socket, int fd) {
    char byte = 'x';
    struct iovec part = { &byte, 1 };
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control = { { 0 } };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1) say("sendmsg: %s", errno_name(errno));
}
static int receive_fd(int socket) {
    char byte;
    int fd = -1;
    struct iovec part = { &byte, 1 };
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    T(recvmsg(socket, &message, 0));
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return T(fd);
}
// musl copies what is given to it, and dies of it by itself.
#ifdef __GLIBC__
CHECK(messages_that_cannot_be_read, 0) {
    int ends[2];
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    char *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char byte = 'x';
    struct iovec part = { &byte, 1 };
    T(sendmsg(ends[0], NULL, 0));
    T(sendmsg(ends[0], (struct msghdr *)bad, 0));
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = bad, .msg_controllen = 64 };
    T(sendmsg(ends[0], &message, 0));
    T(sendmmsg(ends[0], NULL, 1, 0));
    T(sendmmsg(ends[0], (struct mmsghdr *)bad, 2, 0));
    struct mmsghdr two[2] = { { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } }, { .msg_hdr = message } };
    two[1].msg_hdr.msg_control = bad;
    T(sendmmsg(ends[0], two, 2, 0));
    munmap(bad, 4096);
}
#endif
CHECK(a_descriptor_sent_to_a_child, 1) {
    int ends[2];
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t pid = fork();
    if (pid == 0) {
        int fd = receive_fd(ends[1]);
        T(write(fd, "receiver,", 9));
        T(fsync(fd));
        _exit(0);
    }
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(write(fd, "before,", 7));
    send_fd(ends[0], fd);
    reap("receiver", pid);
    T(write(fd, "sender", 6));
    file("a");
}
CHECK(a_descriptor_sent_before_its_first_write, 0) {
    int ends[2];
    T(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    send_fd(ends[0], fd);
    int again = receive_fd(ends[1]);
    T(write(again, "again,", 6));
    T(write(fd, "first", 5));
    T(close(fd));
    T(write(again, "last", 4));
    file("a");
}
CHECK(a_descriptor_taken_from_another_process, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644)), ends[2];
    T(pipe(ends));
    pid_t pid = fork();
    if (pid == 0) {
        read(ends[0], big, 1);
        _exit(0);
    }
    int process = T(syscall(SYS_pidfd_open, pid, 0));
    int taken = T(syscall(SYS_pidfd_getfd, process, fd, 0));
    T(write(taken, "taken,", 6));
    T(write(fd, "own", 3));
    write(ends[1], "x", 1);
    reap("owner", pid);
    file("a");
}
CHECK(another_user_after_the_open, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(chmod(".", 0777));
    T(write(fd, "root,", 5));
    T(setresgid(65534, 65534, 65534));
    T(setresuid(65534, 65534, 65534));
    T(write(fd, "nobody,", 7));
    T(fsync(fd));
    int own = T(open("own", O_RDWR | O_CREAT, 0600));
    T(write(own, "own", 3));
    T(rename("own", "moved"));
    state(fd);
    file("moved");
}
CHECK(another_user_and_then_a_child, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(chmod(".", 0777));
    T(write(fd, "root,", 5));
    T(setresgid(65534, 65534, 65534));
    T(setresuid(65534, 65534, 65534));
    CHILD(T(write(fd, "child,", 6)); T(fsync(fd)); T(open("own", O_RDWR | O_CREAT, 0600)); T(write(4, "own", 3)));
    T(write(fd, "nobody", 6));
    state(fd);
    file("own");
}
CHECK(another_user_and_then_a_program, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    T(chmod(".", 0777));
    T(write(fd, "root,", 5));
    T(setresgid(65534, 65534, 65534));
    T(setresuid(65534, 65534, 65534));
    T(prctl(PR_SET_DUMPABLE, 1));
    T(system("echo by sh > own; cat own") >> 8);
    T(write(fd, "nobody", 6));
    file("own");
    state(fd);
}
CHECK(appends_of_several_processes, 600) {
    close(make("a", 0, 1));
    for (int child = 0; child < 3; child++) {
        if (fork() == 0) {
            int fd = open("a", O_WRONLY | O_APPEND);
            char line[20];
            for (int i = 0; i < 200; i++) {
                sprintf(line, "child %d row %5d\n", child, i);
                if (write(fd, line, 18) != 18) say("%s", errno_name(errno));
                if (i % 50 == 0) fsync(fd);
            }
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    int next[3] = { 0 }, fd = open("a", O_RDONLY), child, row;
    ssize_t bytes = T(read(fd, big, sizeof big));
    for (ssize_t at = 0; at < bytes; at += 18)
        if (sscanf(big + at, "child %d row %5d\n", &child, &row) != 2 || child < 0 || child > 2 || row != next[child]++)
            say("torn or out of order at %zd", at);
    say("%d %d %d", next[0], next[1], next[2]);
    T(unlink("a"));
}
CHECK(writes_of_several_processes_to_one_file, 300) {
    int fd = make("a", 0, 1);
    for (int child = 0; child < 3; child++) {
        if (fork() == 0) {
            char block[1000];
            for (int i = 0; i < 100; i++) pwrite(fd, fill(block, 1000, child * 100 + i), 1000, (i * 3 + child) * 1000);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    T(fsync(fd));
    state(fd);
}
CHECK(a_shared_cursor_of_several_processes, 300) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    for (int child = 0; child < 3; child++) {
        if (fork() == 0) {
            for (int i = 0; i < 100; i++) write(fd, "0123456789", 10);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(many_children_one_after_the_other, 50) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            write(fd, "child\n", 6);
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    file("a");
}
CHECK(a_child_made_in_a_thread_while_others_write, 20) {
    static int fd, stop;
    fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    void *writer(void *at) {
        do pwrite(fd, "0123456789", 10, (long)at);
        while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST));
        return NULL;
    }
    pthread_t thread[2];
    for (long i = 0; i < 2; i++) pthread_create(&thread[i], NULL, writer, (void *)(i * 10));
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (pwrite(fd, "child", 5, 20) != 5) _exit(1);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        if (status) say("status %x", status);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    file("a");
}
