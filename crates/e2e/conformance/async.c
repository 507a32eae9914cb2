/* io_uring, the kernel's asynchronous calls, and POSIX AIO. */
#include "conform.h"
#include <aio.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#define THEME "async"

static long submit(aio_context_t context, struct iocb *block) {
    struct io_event event;
    long count = syscall(SYS_io_submit, context, 1, &block);
    if (count != 1) return -1;
    if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1) return -2;
    return event.res;
}
static struct iocb block_of(int fd, int operation, const void *buffer, size_t bytes, off_t at) {
    return (struct iocb){ .aio_fildes = fd, .aio_lio_opcode = operation, .aio_buf = (uintptr_t)buffer, .aio_nbytes = bytes, .aio_offset = at };
}
CHECK(kernel_aio_on_a_new_file, 0) {
    aio_context_t context = 0;
    T(syscall(SYS_io_setup, 8, &context));
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    struct iocb block = block_of(fd, IOCB_CMD_PWRITE, "asynchronous", 12, 3);
    T(submit(context, &block));
    T(write(fd, "sync", 4));
    block = block_of(fd, IOCB_CMD_PWRITE, "again", 5, 100);
    T(submit(context, &block));
    T(fsync(fd));
    state(fd);
    T(syscall(SYS_io_destroy, context));
    T(syscall(SYS_io_setup, -1, &context));
}
CHECK(kernel_aio_on_a_written_file, 2) {
    int fd = make("a", 1000, 1);
    T(write(fd, "before", 6));
    aio_context_t context = 0;
    T(syscall(SYS_io_setup, 8, &context));
    struct iocb block = block_of(fd, IOCB_CMD_PWRITE, "asynchronous", 12, 2);
    T(submit(context, &block));
    block = block_of(fd, IOCB_CMD_PREAD, big, 100, 0);
    T(submit(context, &block));
    T(write(fd, "after", 5));
    block = block_of(fd, IOCB_CMD_FDSYNC, NULL, 0, 0);
    T(submit(context, &block));
    state(fd);
}
static char *submissions, *completions;
static struct io_uring_sqe *entries;
static struct io_uring_params ring;
static int make_ring(void) {
    memset(&ring, 0, sizeof ring);
    int fd = syscall(SYS_io_uring_setup, 8, &ring);
    if (fd < 0) return fd;
    submissions = mmap(NULL, ring.sq_off.array + ring.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    completions = mmap(NULL, ring.cq_off.cqes + ring.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED,
                       fd, IORING_OFF_CQ_RING);
    entries = mmap(NULL, ring.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    return fd;
}
static int ring_call(int fd, struct io_uring_sqe entry) {
    unsigned tail = *(unsigned *)(submissions + ring.sq_off.tail), mask = *(unsigned *)(submissions + ring.sq_off.ring_mask);
    entries[tail & mask] = entry;
    ((unsigned *)(submissions + ring.sq_off.array))[tail & mask] = tail & mask;
    __atomic_store_n((unsigned *)(submissions + ring.sq_off.tail), tail + 1, __ATOMIC_SEQ_CST);
    if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) return -errno;
    unsigned head = *(unsigned *)(completions + ring.cq_off.head), end = *(unsigned *)(completions + ring.cq_off.ring_mask);
    int result = ((struct io_uring_cqe *)(completions + ring.cq_off.cqes))[head & end].res;
    __atomic_store_n((unsigned *)(completions + ring.cq_off.head), head + 1, __ATOMIC_SEQ_CST);
    return result;
}
static struct io_uring_sqe ring_write(int fd, const char *text, off_t at) {
    return (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = fd, .addr = (uintptr_t)text, .len = strlen(text), .off = at };
}
CHECK(a_ring_before_the_file, 0) {
    int uring = make_ring();
    IS(uring >= 0 || errno == ENOSYS || errno == EPERM);
    if (uring < 0) return;
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC, 0644));
    T(write(fd, "by call", 7));
    T(ring_call(uring, ring_write(fd, "by ring", 3)));
    T(write(fd, "by call", 7));
    T(ring_call(uring, (struct io_uring_sqe){ .opcode = IORING_OP_FSYNC, .fd = fd }));
    T(fsync(fd));
    state(fd);
    descriptors();
}
CHECK(a_ring_after_the_file, 2) {
    int fd = make("a", 1000, 1);
    T(write(fd, "before", 6));
    int uring = make_ring();
    if (uring < 0) return;
    T(ring_call(uring, ring_write(fd, "by ring", 3)));
    T(pwrite(fd, "by call", 7, 5));
    T(ring_call(uring, ring_write(fd, "by ring", 2000)));
    T(ftruncate(fd, 2003));
    T(fsync(fd));
    state(fd);
}
CHECK(a_ring_opens_and_closes, 1) {
    int fd = make("a", 1000, 1), uring = make_ring();
    if (uring < 0) return;
    int other = T(ring_call(uring, (struct io_uring_sqe){ .opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)"b",
                                                         .len = 0644, .open_flags = O_RDWR | O_CREAT }));
    T(write(other, "by call", 7));
    T(ring_call(uring, (struct io_uring_sqe){ .opcode = IORING_OP_CLOSE, .fd = fd }));
    T(open("c", O_RDWR | O_CREAT, 0644));
    T(write(fd, "to c", 4));
    T(ring_call(uring, (struct io_uring_sqe){ .opcode = IORING_OP_UNLINKAT, .fd = AT_FDCWD, .addr = (uintptr_t)"a" }));
    file("a");
    file("b");
    file("c");
}
static void wait_for(struct aiocb *block) {
    const struct aiocb *list[] = { block };
    while (aio_error(block) == EINPROGRESS) aio_suspend(list, 1, NULL);
    T(aio_error(block));
    T(aio_return(block));
}
CHECK(posix_aio, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    struct aiocb block = { .aio_fildes = fd, .aio_buf = "asynchronous", .aio_nbytes = 12, .aio_offset = 3 };
    IS(aio_write(&block) == 0);
    wait_for(&block);
    struct aiocb sync = { .aio_fildes = fd };
    IS(aio_fsync(O_DSYNC, &sync) == 0);
    wait_for(&sync);
    struct aiocb reading = { .aio_fildes = fd, .aio_buf = big, .aio_nbytes = 100 };
    IS(aio_read(&reading) == 0);
    wait_for(&reading);
    T(write(fd, "x", 1));
    state(fd);
    struct aiocb wrong = { .aio_fildes = 99, .aio_buf = big, .aio_nbytes = 100 };
    IS(aio_write(&wrong) == 0);
    wait_for(&wrong);
}
CHECK(posix_aio_of_a_list, 4) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    struct aiocb block[4], *list[4];
    for (int i = 0; i < 4; i++) {
        block[i] = (struct aiocb){ .aio_fildes = fd, .aio_buf = fill(big + i * 1000, 1000, i), .aio_nbytes = 1000,
                                   .aio_offset = i * 1500, .aio_lio_opcode = LIO_WRITE };
        list[i] = &block[i];
    }
    IS(lio_listio(LIO_WAIT, list, 4, NULL) == 0);
    for (int i = 0; i < 4; i++) T(aio_return(&block[i]));
    state(fd);
}
