/* What glibc's headers have and musl's (1.2.3) do not, for sources that are written for both. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define CLOSE_RANGE_UNSHARE 2
#define CLOSE_RANGE_CLOEXEC 4
#define LM_ID_BASE 0
/* Two KiB hold no call of a preloaded library. */
#undef PTHREAD_STACK_MIN
#define PTHREAD_STACK_MIN 16384
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#define RWF_HIPRI 1
#define RWF_DSYNC 2
#define RWF_SYNC 4
#define RWF_NOWAIT 8
#define RWF_APPEND 16

struct statx;
int close_range(unsigned first, unsigned last, int flags);
void closefrom(int first);
void *dlmopen(long space, const char *name, int mode);
int execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags);
int pkey_mprotect(void *address, size_t bytes, int protection, int key);
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags);
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags);
int renameat2(int old_dir, const char *old, int new_dir, const char *new, unsigned flags);
const char *strerrorname_np(int number);
