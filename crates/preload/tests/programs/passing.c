/* Descriptors sent away, splices, ioctls and asynchronous interfaces. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <aio.h>
#include <unistd.h>

static void show(const char *what, long result) {
    int error = errno;
    printf("%s %ld errno %d\n", what, result < 0 ? -1 : result, result < 0 ? error : 0);
    fflush(stdout);
}

static void content(const char *path) {
    char buffer[4096];
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, buffer, sizeof buffer);
    close(fd);
    printf("%s: %zd bytes: %.*s\n", path, n, (int)n, buffer);
    fflush(stdout);
}

static void send_away(int fd) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    pid_t pid = fork();
    char byte = 'x';
    struct iovec part = { &byte, 1 };
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    if (pid == 0) {
        recvmsg(ends[1], &message, 0);
        int received;
        memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
        show("received writes", write(received, "by receiver,", 12));
        show("received syncs", fsync(received));
        _exit(0);
    }
    memset(&control, 0, sizeof control);
    control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    long sent = sendmsg(ends[0], &message, 0);
    waitpid(pid, NULL, 0);
    show("sendmsg", sent);
    show("sender writes", write(fd, "by sender,", 10));
    show("bad sendmsg", sendmsg(-1, &message, 0));
}

int main(void) {
    int fd = open("sent", O_RDWR | O_CREAT, 0644);
    show("write", write(fd, "first,", 6));
    send_away(fd);
    close(fd);
    content("sent");

    int ends[2];
    pipe(ends);
    fd = open("spliced", O_WRONLY | O_CREAT, 0644);
    show("write", write(fd, "before,", 7));
    show("write", write(ends[1], "through a pipe,", 15));
    show("splice", splice(ends[0], NULL, fd, NULL, 15, 0));
    show("write", write(fd, "after", 5));
    close(fd);
    content("spliced");

    fd = open("attributes", O_RDWR | O_CREAT, 0644);
    show("write", write(fd, "attributes", 10));
    show("fsetxattr", fsetxattr(fd, "user.a", "1", 1, 0));
    show("setxattr", setxattr("attributes", "user.b", "2", 1, XATTR_REPLACE));
    show("fremovexattr", fremovexattr(fd, "user.a"));
    show("removexattr", removexattr("attributes", "user.a"));
    int flags = 0, number = 0;
    show("get flags", ioctl(fd, FS_IOC_GETFLAGS, &flags));
    show("set flags", ioctl(fd, FS_IOC_SETFLAGS, &flags));
    show("FIGETBSZ", ioctl(fd, FIGETBSZ, &number));
    show("FIONREAD", ioctl(fd, FIONREAD, &number));
    show("unknown", ioctl(fd, 0x12345678, &number));
    show("write", write(fd, "more", 4));
    show("fsync", fsync(fd));
    close(fd);
    content("attributes");

    fd = open("aio", O_RDWR | O_CREAT, 0644);
    struct aiocb write_block = { .aio_fildes = fd, .aio_buf = "asynchronous", .aio_nbytes = 12, .aio_offset = 3 };
    const struct aiocb *list[] = { &write_block };
    show("aio_write", aio_write(&write_block));
    while (aio_error(&write_block) == EINPROGRESS) aio_suspend(list, 1, NULL);
    show("aio_return", aio_return(&write_block));
    struct aiocb sync_block = { .aio_fildes = fd };
    show("aio_fsync", aio_fsync(O_DSYNC, &sync_block));
    list[0] = &sync_block;
    while (aio_error(&sync_block) == EINPROGRESS) aio_suspend(list, 1, NULL);
    show("aio_return", aio_return(&sync_block));
    unsigned long context = 0;
    show("io_setup", syscall(SYS_io_setup, 8, &context));
    show("io_destroy", syscall(SYS_io_destroy, context));
    show("io_setup", syscall(SYS_io_setup, -1, &context));
    show("write", pwrite(fd, "xyz", 3, 0));
    close(fd);
    content("aio");
    fd = open("later", O_RDWR | O_CREAT | O_SYNC, 0644);
    show("write", write(fd, "later", 5));
    show("flags", fcntl(fd, F_GETFL) & O_SYNC);
    close(fd);
    content("later");
    return 0;
}
