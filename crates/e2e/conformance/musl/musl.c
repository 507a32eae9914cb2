/* Functions that glibc has and musl (1.2.3) does not, made of the system calls. */
#include "musl.h"

#include <dlfcn.h>
#include <sys/syscall.h>

int close_range(unsigned first, unsigned last, int flags) {
    return syscall(SYS_close_range, first, last, flags);
}

void closefrom(int first) {
    syscall(SYS_close_range, first, ~0u, 0);
}

void *dlmopen(long space, const char *name, int mode) {
    return dlopen(name, mode);
}

int execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags) {
    return syscall(SYS_execveat, dirfd, path, argv, envp, flags);
}

int pkey_mprotect(void *address, size_t bytes, int protection, int key) {
    return syscall(SYS_pkey_mprotect, address, bytes, protection, key);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return syscall(SYS_preadv2, fd, parts, count, offset, 0, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
}

int renameat2(int old_dir, const char *old, int new_dir, const char *new, unsigned flags) {
    return syscall(SYS_renameat2, old_dir, old, new_dir, new, flags);
}

int statx(int dirfd, const char *restrict path, int flags, unsigned mask, struct statx *restrict out) {
    return syscall(SYS_statx, dirfd, path, flags, mask, out);
}

const char *strerrorname_np(int number) {
    static char text[8][16];
    static int at;
    char *name = text[at++ % 8];
    snprintf(name, sizeof text[0], "E%d", number);
    return number ? name : "0";
}
