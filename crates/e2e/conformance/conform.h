/* The frame of the conformance checks. A check makes calls and tells what came of them, line by line; the same program,
 * run natively and under Holdfast, must tell the same. Nothing may be told that differs between two native runs:
 * no addresses, ids, inode numbers or present times. */
#ifndef CONFORM_H
#define CONFORM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* One check. It runs in a child process of its own, in a fresh directory, and must leave no process behind. */
struct check {
    const char *theme, *name;
    void (*run)(void);
    /* Writes that Holdfast absorbs at least where it manages files. */
    int writes;
};

#define CHECK(NAME, WRITES)                                                                            \
    static void NAME(void);                                                                            \
    static const struct check check_##NAME = { THEME, #NAME, NAME, WRITES };                           \
    __attribute__((section("checks"), used)) static const struct check *const place_##NAME = &check_##NAME; \
    static void NAME(void)

/* A program of its own that a check executes: `conform --helper NAME ARGUMENTS`. */
struct helper {
    const char *name;
    int (*run)(int count, char **arguments);
};

#define HELPER(NAME)                                                                                   \
    static int helper_run_##NAME(int count, char **arguments);                                         \
    static const struct helper helper_##NAME = { #NAME, helper_run_##NAME };                           \
    __attribute__((section("helpers"), used)) static const struct helper *const helper_place_##NAME = &helper_##NAME; \
    static int helper_run_##NAME(__attribute__((unused)) int count, __attribute__((unused)) char **arguments)

/* Adds a line to the transcript. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds a line about a call; `error` is errno behind it, which was ERRNO_BEFORE. */
void tell(const char *call, long long result, int error);
const char *errno_name(int error);
#define ERRNO_BEFORE 4242

/* Makes a call that returns an integer and tells result, error, and an errno that a success has touched. */
#define T(call) ({ errno = ERRNO_BEFORE; long long r_ = (long long)(call); int e_ = errno; tell(#call, r_, e_); r_; })
/* As T, for calls whose result may not be told (ids, times): only whether they failed. */
#define Q(call) ({ errno = ERRNO_BEFORE; long long r_ = (long long)(call); int e_ = errno; tell(#call, r_ < 0 ? -1 : 0, e_); r_; })
/* As T, for calls that return a pointer. */
#define P(call) ({ errno = ERRNO_BEFORE; void *p_ = (void *)(call); int e_ = errno; \
    int bad_ = p_ == NULL || p_ == MAP_FAILED; tell(#call, bad_ ? -1 : 0, e_); p_; })
/* Tells a condition. */
#define IS(condition) say("%s: %s", #condition, (condition) ? "yes" : "no")

/* Tells size, content, mode and links of the file at a path, and of a descriptor with its cursor and flags. */
void file(const char *path);
void state(int fd);
/* Fills a buffer with bytes that depend on `seed`. */
char *fill(void *buffer, size_t bytes, unsigned seed);
/* A checksum. */
uint64_t sum(const void *buffer, size_t bytes, uint64_t before);
/* Tells the open descriptor numbers below 800. */
void descriptors(void);
/* Makes a file with that many bytes. */
int make(const char *path, size_t bytes, unsigned seed);
/* Forks and runs `work` in the child, and waits for it; tells its end. */
#define CHILD(work) ({ pid_t p_ = fork(); if (p_ == 0) { work; _exit(0); } reap(#work, p_); })
void reap(const char *what, pid_t pid);
/* Starts `conform --helper NAME ...` in the place of this process. */
void become(const char *helper, ...) __attribute__((noreturn, sentinel));
extern const char *self_path;
/* The file system's magic number, and whether Holdfast manages files on it. */
long filesystem(void);
int is_btrfs(void), is_xfs(void), is_ext4(void), is_tmpfs(void);

/* A buffer for anybody, zeroed when a check begins. */
extern char big[1 << 20];
#endif
