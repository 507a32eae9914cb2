// Gives up rights in one of several ways, before, amid or after writing to a file, with one thread
// or several; then calls every function that Holdfast has a hook for, under all its names, and
// prints what each returns. Natively and under Holdfast the same must come out.
//
// filters calls SITUATION WHEN THREADS    all calls, one after the other
// filters each SITUATION                  each call in a child of its own, for filters that kill
// filters write SITUATION FILE            writes and syncs, gives up rights, waits to be killed
// filters stay NOTHING FILE               calls that take nothing away, and writes
// filters lend NOTHING FILE               children in its memory give up rights
// filters start SITUATION                 gives up rights and starts programs that show what they have
//
// rows.h is made by tests/filters.rs: NAMES(row) lists all names of a hook.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <grp.h>
#include <linux/capability.h>
#include <mntent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include "rows.h"

extern char **environ;

static int data, other, synced, spare[8], pipes[2], sockets[2], notices, directory;
static char buffer[8192];
static struct iovec part = {buffer, 10};
static void *mapping;
static FILE *stream, *pipe_stream;
static DIR *listing;
static long long zero, one;

static void say(const char *format, ...) {
	char line[512];
	va_list list;
	va_start(list, format);
	int bytes = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	if (write(1, line, bytes) != bytes) _exit(99);
}

static void die(const char *what) {
	say("%s: %s\n", what, strerror(errno));
	_exit(98);
}

// --- ways to give up rights -------------------------------------------------------------------

#define ALLOW(number) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int filter(struct sock_filter *code, int count, int by_prctl, int flags) {
	struct sock_fprog program = {count, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
	if (by_prctl) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#define LOAD_NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define END(action) BPF_STMT(BPF_RET | BPF_K, action)
#define COUNT(code) (int)(sizeof code / sizeof *code)

static int few(int flags) {
	struct sock_filter code[] = {
		LOAD_NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group),
		END(SECCOMP_RET_KILL_PROCESS),
	};
	return filter(code, COUNT(code), 1, flags);
}

static int threads_run;

// What glibc itself calls for files, and nothing that Holdfast calls besides. Where there are
// threads, glibc needs its locks.
static int refuses(int flags) {
	struct sock_filter code[] = {
		LOAD_NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_pread64), ALLOW(SYS_pwrite64),
		ALLOW(SYS_readv), ALLOW(SYS_writev), ALLOW(SYS_openat), ALLOW(SYS_close), ALLOW(SYS_newfstatat),
		ALLOW(SYS_fsync), ALLOW(SYS_fdatasync), ALLOW(SYS_unlink), ALLOW(SYS_rename), ALLOW(SYS_mkdir),
		ALLOW(SYS_exit), ALLOW(SYS_exit_group), ALLOW(SYS_wait4), ALLOW(SYS_brk), ALLOW(SYS_clone),
		ALLOW(SYS_rt_sigreturn), ALLOW(SYS_close_range),
		ALLOW(threads_run ? SYS_futex : SYS_read),
		END(SECCOMP_RET_ERRNO | EPERM),
	};
	return filter(code, COUNT(code), 0, flags);
}

// What some servers take from themselves: new programs; and an argument that is looked at, of a call
// that Holdfast makes with another one.
static int lenient(void) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc000003e, 1, 0),
		END(SECCOMP_RET_KILL_PROCESS),
		LOAD_NUMBER,
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execveat, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 0, 1),
		END(SECCOMP_RET_ERRNO | EACCES),
		END(SECCOMP_RET_ALLOW),
	};
	return filter(code, COUNT(code), 0, SECCOMP_FILTER_FLAG_TSYNC);
}

// As `few`, with what a program needs that writes by offset and waits.
static int waiting(void) {
	struct sock_filter code[] = {
		LOAD_NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_pwrite64), ALLOW(SYS_fsync), ALLOW(SYS_pause),
		ALLOW(SYS_exit_group), END(SECCOMP_RET_KILL_PROCESS),
	};
	return filter(code, COUNT(code), 1, 0);
}

// Programs can be started, but none that says hello to a keeper.
static int refuses_sockets(void) {
	struct sock_filter code[] = {
		LOAD_NUMBER, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1), END(SECCOMP_RET_KILL_PROCESS),
		END(SECCOMP_RET_ALLOW),
	};
	return filter(code, COUNT(code), 1, 0);
}

static int landlock(void) {
	struct landlock_ruleset_attr attr = {.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE |
		LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR};
	int set = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
	if (set < 0) return -1;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
	int result = syscall(SYS_landlock_restrict_self, set, 0);
	close(set);
	return result;
}

static int drop(void) {
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2] = {0};
	return syscall(SYS_capset, &header, sets);
}

static int become(void) {
	gid_t group = 65534;
	return setgroups(1, &group) || setgid(65534) || setuid(65534) ? -1 : 0;
}

static int give_up(const char *how) {
	if (!strcmp(how, "nothing")) return 0;
	if (!strcmp(how, "strict")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
	if (!strcmp(how, "few")) return few(0);
	if (!strcmp(how, "refuses")) return refuses(0);
	if (!strcmp(how, "few-waiting")) return waiting();
	if (!strcmp(how, "refuses-exec")) return refuses_sockets();
	if (!strcmp(how, "refuses-all")) return refuses(SECCOMP_FILTER_FLAG_TSYNC);
	if (!strcmp(how, "user")) return become();
	if (!strcmp(how, "effective")) return seteuid(65534);
	if (!strcmp(how, "files-user")) return setfsuid(65534) == 0 ? 0 : -1;
	if (!strcmp(how, "group")) return setresgid(65534, 65534, 65534);
	if (!strcmp(how, "groups")) return initgroups("nobody", 65534);
	if (!strcmp(how, "capabilities")) return drop();
	if (!strcmp(how, "landlock")) return landlock();
	if (!strcmp(how, "namespace")) return unshare(CLONE_NEWUSER);
	if (!strcmp(how, "root")) return chroot("jail");
	die(how);
	return -1;
}

// --- every hook, called -----------------------------------------------------------------------

#define AS(result, ...) ((result(*)(__VA_ARGS__))f)
#define IS(text) (strstr(name, text) != NULL)
#define FILLED(pointer) ((pointer) ? 1 : -1)
#define ACTION(...) struct sigaction action = {0}; __VA_ARGS__

typedef const char *path_t;
static char *const arguments[] = {"x", NULL};

static char *template(const char *suffix) {
	static char text[32];
	snprintf(text, sizeof text, "t-XXXXXX%s", suffix);
	return text;
}

static long waited(long pid) {
	int status = 0;
	if (pid == 0) _exit(7);
	if (pid < 0) return pid;
	int saved = errno;
	if (wait4(pid, &status, 0, NULL) < 0) return -100 - errno;
	errno = saved;
	return 1000 + status;
}

static long spawned(int error, pid_t pid) {
	return error ? -error : waited(pid);
}

static struct msghdr message(void) {
	return (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
}

#define ROWS \
	ROW(open, AS(int, path_t, int, int)("data", O_RDWR, 0)) \
	ROW(openat, AS(int, int, path_t, int, int)(AT_FDCWD, "data", O_RDWR, 0)) \
	ROW(creat, AS(int, path_t, int)("made", 0644)) \
	ROW(open_by_handle_at, AS(int, int, void *, int)(-1, NULL, 0)) \
	ROW(close, AS(int, int)(spare[IS("nocancel") ? 0 : IS("__") ? 1 : 2])) \
	ROW(close_range, AS(int, unsigned, unsigned, int)(1000, 1001, 0)) \
	ROW(closefrom, (AS(void, int)(1000), 0)) \
	ROW(dup, AS(int, int)(data)) \
	ROW(dup2, AS(int, int, int)(data, 100)) \
	ROW(dup3, AS(int, int, int, int)(data, 101, O_CLOEXEC)) \
	ROW(fcntl, AS(int, int, int, long)(synced, F_GETFL, 0) * 1000L + AS(int, int, int, long)(data, F_GETFL, 0)) \
	ROW(read, AS(long, int, void *, size_t, size_t)(data, buffer, 10, sizeof buffer)) \
	ROW(pread, AS(long, int, void *, size_t, long, size_t)(data, buffer, 10, 0, sizeof buffer)) \
	ROW(readv, AS(long, int, void *, int)(data, &part, 1)) \
	ROW(preadv, AS(long, int, void *, int, long)(data, &part, 1, 0)) \
	ROW(preadv2, AS(long, int, void *, int, long, int)(data, &part, 1, 0, 0)) \
	ROW(write, AS(long, int, void *, size_t)(data, "x", 1) + AS(long, int, void *, size_t)(synced, "x", 1)) \
	ROW(pwrite, AS(long, int, void *, size_t, long)(data, "x", 1, 0)) \
	ROW(writev, AS(long, int, void *, int)(data, &part, 1)) \
	ROW(pwritev, AS(long, int, void *, int, long)(data, &part, 1, 0)) \
	ROW(pwritev2, AS(long, int, void *, int, long, int)(data, &part, 1, 0, 0)) \
	ROW(lseek, AS(long, int, long, int)(data, 0, SEEK_CUR)) \
	ROW(fstat, IS("xstat") ? AS(int, int, int, void *)(1, data, buffer) : AS(int, int, void *)(data, buffer)) \
	ROW(stat, IS("xstat") ? AS(int, int, path_t, void *)(1, "data", buffer) : AS(int, path_t, void *)("data", buffer)) \
	ROW(lstat, IS("xstat") ? AS(int, int, path_t, void *)(1, "data", buffer) : AS(int, path_t, void *)("data", buffer)) \
	ROW(fstatat, IS("xstat") ? AS(int, int, int, path_t, void *, int)(1, AT_FDCWD, "data", buffer, 0) \
		: AS(int, int, path_t, void *, int)(AT_FDCWD, "data", buffer, 0)) \
	ROW(statx, AS(int, int, path_t, int, int, void *)(AT_FDCWD, "data", 0, 0x7ff, buffer)) \
	ROW(setrlimit, AS(int, int, void *)(RLIMIT_NOFILE, &(struct rlimit){512, 1024})) \
	ROW(prlimit, AS(int, int, int, void *, void *)(0, RLIMIT_NOFILE, NULL, buffer)) \
	ROW(ftruncate, AS(int, int, long)(data, 8192)) \
	ROW(truncate, AS(int, path_t, long)("data", 8192)) \
	ROW(fallocate, AS(int, int, int, long, long)(data, 0, 0, 4096)) \
	ROW(posix_fallocate, AS(int, int, long, long)(data, 0, 4096)) \
	ROW(fsync, AS(int, int)(data)) \
	ROW(fdatasync, AS(int, int)(data)) \
	ROW(sync, IS("syncfs") ? AS(int, int)(data) : 0) \
	ROW(sync_file_range, AS(int, int, long, long, int)(data, 0, 0, 0)) \
	ROW(sendfile, (zero = 0, AS(long, int, int, void *, size_t)(other, data, &zero, 10))) \
	ROW(copy_file_range, (zero = one = 0, AS(long, int, void *, int, void *, size_t, int)(data, &zero, other, &one, 10, 0))) \
	ROW(splice, (zero = 0, AS(long, int, void *, int, void *, size_t, int)(data, &zero, pipes[1], NULL, 10, 0))) \
	ROW(ioctl, AS(int, int, long, void *)(data, _IO(0, 2), buffer)) \
	ROW(sendmsg, AS(long, int, void *, int)(sockets[0], &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, 0)) \
	ROW(sendmmsg, AS(int, int, void *, int, int)(sockets[0], &(struct mmsghdr){message(), 0}, 1, 0)) \
	ROW(mmap, AS(void *, void *, size_t, int, int, int, long)(NULL, 4096, PROT_READ, MAP_SHARED, data, 0) == MAP_FAILED ? -1 : 0) \
	ROW(mprotect, AS(int, void *, size_t, int)(mapping, 4096, PROT_READ)) \
	ROW(pkey_mprotect, AS(int, void *, size_t, int, int)(mapping, 4096, PROT_READ, -1)) \
	ROW(mremap, AS(void *, void *, size_t, size_t, int)(mapping, 4096, 4096, 0) == MAP_FAILED ? -1 : 0) \
	ROW(unlink, AS(int, path_t)("a1")) \
	ROW(unlinkat, AS(int, int, path_t, int)(AT_FDCWD, "a2", 0)) \
	ROW(remove, AS(int, path_t)("a3")) \
	ROW(rmdir, AS(int, path_t)("d1")) \
	ROW(rename, AS(int, path_t, path_t)("a4", "b4")) \
	ROW(renameat, AS(int, int, path_t, int, path_t)(AT_FDCWD, "a5", AT_FDCWD, "b5")) \
	ROW(renameat2, AS(int, int, path_t, int, path_t, int)(AT_FDCWD, "a6", AT_FDCWD, "b6", 0)) \
	ROW(link, AS(int, path_t, path_t)("data", "l1")) \
	ROW(linkat, AS(int, int, path_t, int, path_t, int)(AT_FDCWD, "data", AT_FDCWD, "l2", 0)) \
	ROW(mkdir, AS(int, path_t, int)("m1", 0755)) \
	ROW(mkdirat, AS(int, int, path_t, int)(AT_FDCWD, "m2", 0755)) \
	ROW(mknod, IS("__x") ? AS(int, int, path_t, int, void *)(0, "k1", S_IFREG | 0600, &zero) \
		: AS(int, path_t, int, long)("k2", S_IFREG | 0600, 0)) \
	ROW(mknodat, IS("__x") ? AS(int, int, int, path_t, int, void *)(0, AT_FDCWD, "k3", S_IFREG | 0600, &zero) \
		: AS(int, int, path_t, int, long)(AT_FDCWD, "k4", S_IFREG | 0600, 0)) \
	ROW(mkfifo, AS(int, path_t, int)("p1", 0600)) \
	ROW(mkfifoat, AS(int, int, path_t, int)(AT_FDCWD, "p2", 0600)) \
	ROW(symlink, AS(int, path_t, path_t)("data", "s1")) \
	ROW(symlinkat, AS(int, path_t, int, path_t)("data", AT_FDCWD, "s2")) \
	ROW(chmod, AS(int, path_t, int)("data", 0666)) \
	ROW(fchmod, AS(int, int, int)(data, 0666)) \
	ROW(fchmodat, IS("lchmod") ? AS(int, path_t, int)("data", 0666) : AS(int, int, path_t, int, int)(AT_FDCWD, "data", 0666, 0)) \
	ROW(chown, AS(int, path_t, int, int)("data", -1, -1)) \
	ROW(lchown, AS(int, path_t, int, int)("data", -1, -1)) \
	ROW(fchown, AS(int, int, int, int)(data, -1, -1)) \
	ROW(fchownat, AS(int, int, path_t, int, int, int)(AT_FDCWD, "data", -1, -1, 0)) \
	ROW(utime, AS(int, path_t, void *)("data", NULL)) \
	ROW(utimes, AS(int, path_t, void *)("data", NULL)) \
	ROW(lutimes, AS(int, path_t, void *)("data", NULL)) \
	ROW(futimes, AS(int, int, void *)(data, NULL)) \
	ROW(futimens, AS(int, int, void *)(data, NULL)) \
	ROW(futimesat, AS(int, int, path_t, void *)(AT_FDCWD, "data", NULL)) \
	ROW(utimensat, AS(int, int, path_t, void *, int)(AT_FDCWD, "data", NULL, 0)) \
	ROW(setxattr, AS(int, path_t, path_t, void *, size_t, int)("data", "user.a", "v", 1, 0)) \
	ROW(lsetxattr, AS(int, path_t, path_t, void *, size_t, int)("data", "user.b", "v", 1, 0)) \
	ROW(fsetxattr, AS(int, int, path_t, void *, size_t, int)(data, "user.c", "v", 1, 0)) \
	ROW(removexattr, AS(int, path_t, path_t)("data", "user.a")) \
	ROW(lremovexattr, AS(int, path_t, path_t)("data", "user.b")) \
	ROW(fremovexattr, AS(int, int, path_t)(data, "user.c")) \
	ROW(fork, waited(AS(int, void)())) \
	ROW(_Fork, waited(AS(int, void)())) \
	ROW(posix_spawn, ({ pid_t pid = 0; int error = AS(int, void *, path_t, void *, void *, char *const *, char *const *)( \
		&pid, "/bin/true", NULL, NULL, arguments, environ); spawned(error, pid); })) \
	ROW(posix_spawnp, ({ pid_t pid = 0; int error = AS(int, void *, path_t, void *, void *, char *const *, char *const *)( \
		&pid, "true", NULL, NULL, arguments, environ); spawned(error, pid); })) \
	ROW(system, AS(int, path_t)("exit 3")) \
	ROW(popen, IS("proc_open") ? 0 : FILLED(pipe_stream = AS(void *, path_t, path_t)("exit 4", "r"))) \
	ROW(pclose, pipe_stream ? AS(int, FILE *)(pipe_stream) : 0) \
	ROW(execve, AS(int, path_t, char *const *, char *const *)("/nowhere", arguments, environ)) \
	ROW(execveat, AS(int, int, path_t, char *const *, char *const *, int)(AT_FDCWD, "/nowhere", arguments, environ, 0)) \
	ROW(fexecve, AS(int, int, char *const *, char *const *)(directory, arguments, environ)) \
	ROW(execl, IS("execle") ? AS(int, path_t, path_t, void *, char *const *)("/nowhere", "x", NULL, environ) \
		: IS("execlp") ? AS(int, path_t, path_t, void *)("/nowhere", "x", NULL) \
		: IS("execl") ? AS(int, path_t, path_t, void *)("/nowhere", "x", NULL) \
		: AS(int, path_t, char *const *, char *const *)("/nowhere", arguments, environ)) \
	ROW(sigaction, ({ ACTION(action.sa_handler = SIG_IGN); AS(int, int, void *, void *)(SIGUSR2, &action, NULL); })) \
	ROW(signal, IS("siginterrupt") || IS("sigignore") ? AS(int, int, int)(SIGUSR2, 0) \
		: (AS(void *, int, void *)(SIGUSR2, SIG_IGN) == SIG_ERR ? -1 : 0)) \
	ROW(pthread_setcanceltype, AS(int, int, void *)(PTHREAD_CANCEL_DEFERRED, &(int){0})) \
	ROW(syscall, AS(long, long, long)(SYS_fsync, data)) \
	ROW(fopen, FILLED(AS(void *, path_t, path_t)("data", "r"))) \
	ROW(fdopen, FILLED(AS(void *, int, path_t)(spare[3], "r"))) \
	ROW(freopen, !stream ? 0 : FILLED(stream = AS(void *, path_t, path_t, FILE *)("data", "r", stream))) \
	ROW(fclose, stream ? AS(int, FILE *)(stream) : 0) \
	ROW(tmpfile, FILLED(AS(void *, void)())) \
	ROW(setmntent, IS("end") ? 0 : FILLED(AS(void *, path_t, path_t)("data", "r"))) \
	ROW(dprintf, IS("vd") ? 0 : AS(int, int, path_t, ...)(other, "%d %.1f\n", 5, 2.5)) \
	ROW(mkstemp, IS("mkdtemp") ? FILLED(AS(void *, char *)(template(""))) : IS("mkostemps") ? AS(int, char *, int, int)(template(".c"), 2, 0) \
		: IS("mkstemps") ? AS(int, char *, int)(template(".c"), 2) : AS(int, char *, int)(template(""), 0)) \
	ROW(closedir, IS("closedir") ? AS(int, DIR *)(listing) : 0) \
	ROW(inotify_add_watch, AS(int, int, path_t, int)(notices, "data", IN_OPEN)) \
	ROW(fanotify_mark, AS(int, int, int, long, int, path_t)(-1, 1, 1, AT_FDCWD, "data")) \
	ROW(dlopen, FILLED(AS(void *, path_t, int)("libm.so.6", RTLD_LAZY))) \
	ROW(unshare, AS(int, int)(0)) \
	ROW(prctl, AS(int, int, void *, long, long, long)(PR_GET_NAME, buffer, 0, 0, 0)) \
	ROW(capset, AS(int, void *, void *)(NULL, NULL)) \
	ROW(chroot, IS("pivot") ? AS(int, path_t, path_t)("nowhere", "nowhere") : AS(int, path_t)("nowhere")) \
	ROW(setns, AS(int, int, int)(-1, 0)) \
	ROW(setgid, IS("setresgid") ? AS(int, int, int, int)(65533, 65533, 65533) : IS("setregid") ? AS(int, int, int)(65533, 65533) \
		: IS("setgroups") ? AS(int, size_t, void *)(0, NULL) : IS("initgroups") ? AS(int, path_t, int)("nobody", 65533) \
		: AS(int, int)(65533)) \
	ROW(setuid, IS("setresuid") ? AS(int, int, int, int)(65533, 65533, 65533) : IS("setreuid") ? AS(int, int, int)(65533, 65533) \
		: AS(int, int)(65533))

enum { BEFORE_ROWS
#define ROW(name, call) , N_##name
ROWS
#undef ROW
};

static const struct { const char *row, *name; int number; } names[] = {
#define NAME(row, name) {#row, #name, N_##row},
NAMES
#undef NAME
};
static void *functions[sizeof names / sizeof *names];

static long made(int number, const char *name, void *f) {
	switch (number) {
#define ROW(name, call) case N_##name: return (long)(call);
ROWS
#undef ROW
	}
	return -77;
}

static void called(size_t at) {
	if (!functions[at]) {
		say("%s: none\n", names[at].name);
		return;
	}
	errno = 0;
	long result = made(names[at].number, names[at].name, functions[at]);
	int error = errno;
	say("%s: %ld %d\n", names[at].name, result, result == -1 || result == -101 ? error : 0);
}

// --- the file, and what is done to it ------------------------------------------------------------

static void make(const char *name) {
	int fd = open(name, O_RDWR | O_CREAT, 0666);
	if (fd < 0 || close(fd)) die(name);
}

static void prepare(void) {
	struct rlimit limit = {1024, 1024};
	umask(0);
	setrlimit(RLIMIT_NOFILE, &limit);
	for (int at = 1; at <= 6; at++) {
		char name[8];
		snprintf(name, sizeof name, "a%d", at);
		make(name);
	}
	mkdir("d1", 0777);
	mkdir("jail", 0777);
	data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0666);
	other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0666);
	synced = open("synced", O_WRONLY | O_CREAT | O_TRUNC | O_SYNC, 0666);
	directory = open(".", O_RDONLY | O_DIRECTORY);
	listing = opendir(".");
	for (int at = 0; at < 8; at++) spare[at] = dup(data);
	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets)) die("pipe");
	notices = inotify_init();
	stream = fopen("other", "r");
	mapping = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data < 0 || other < 0 || synced < 0 || directory < 0 || !listing || !stream) die("prepare");
	for (size_t at = 0; at < sizeof names / sizeof *names; at++) functions[at] = dlsym(RTLD_DEFAULT, names[at].name);
}

static void work(void) {
	memset(buffer, 'a', sizeof buffer);
	for (int at = 0; at < 4; at++)
		if (write(data, buffer, 4096) != 4096 || write(synced, buffer, 100) != 100) die("write");
	if (fsync(data) || write(other, buffer, 100) != 100) die("fsync");
}

static volatile int stop, reads;
static volatile long rounds;

// Writes all the time.
static void *writer(void *unused) {
	char line[512];
	int fd = *(int *)unused;
	memset(line, 'w', sizeof line);
	while (!stop) {
		if (pwrite(fd, line, sizeof line, 0) != sizeof line) return "a write failed";
		if (rounds % 8 == 0 && fdatasync(fd)) return "a sync failed";
		rounds++;
	}
	return NULL;
}

// Waits in the kernel.
static void *reader(void *unused) {
	char byte;
	reads = 1;
	return read(*(int *)unused, &byte, 1) == 1 && byte == 'e' ? NULL : "a read failed";
}

static void await_rounds(void) {
	for (long until = rounds + 50; rounds < until;) sched_yield();
}

// Whether anything of Holdfast's is mapped besides its library.
static void look(void) {
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[1024];
	int found = 0;
	while (maps && fgets(line, sizeof line, maps)) found += strstr(line, "/dev/shm/") || strstr(line, "memfd:holdfast");
	say("mapped: %d\n", maps ? found : -1);
	if (maps) fclose(maps);
}

static void given_up(const char *how) {
	int result = give_up(how);
	say("%s: %d %d\n", how, result, result ? errno : 0);
}

static int all(const char *how, const char *when, int threads) {
	pthread_t running[2];
	int waits[2];
	prepare();
	if (!strcmp(when, "after")) work();
	int written = open("written", O_RDWR | O_CREAT, 0666);
	threads_run = threads;
	if (threads) {
		if (pipe(waits)) die("pipe");
		pthread_create(&running[0], NULL, writer, &written);
		pthread_create(&running[1], NULL, reader, &waits[0]);
		await_rounds();
		// glibc ends the program where a thread begins under a filter that refuses rseq(2).
		while (!reads) sched_yield();
	}
	given_up(how);
	if (threads) {
		// Others may not wait for each other's ends any more: they are asked by what may be done.
		if (strncmp(how, "refuses", 7)) await_rounds();
		stop = 1;
		if (write(waits[1], "e", 1) != 1) die("wake");
		if (strncmp(how, "refuses", 7)) {
			void *what[2];
			pthread_join(running[0], &what[0]);
			pthread_join(running[1], &what[1]);
			for (int at = 0; at < 2; at++) say("thread: %s\n", what[at] ? (char *)what[at] : "well");
		}
	}
	if (!strcmp(when, "before")) work();
	if (strncmp(how, "refuses", 7) && strcmp(how, "nothing")) look();
	for (size_t at = 0; at < sizeof names / sizeof *names; at++) called(at);
	say("cursor %ld, size %ld\n", (long)lseek(data, 0, SEEK_CUR), (long)lseek(other, 0, SEEK_END));
	return 0;
}

static int each(const char *how) {
	prepare();
	for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
		if (strcmp(names[at].row, names[at].name)) continue;
		pid_t pid = fork();
		if (pid == 0) {
			if (at % 8 == 0) work();
			int result = give_up(how);
			if (result) say("%s: %d\n", how, errno);
			called(at);
			syscall(SYS_exit, 0);
		}
		int status;
		waitpid(pid, &status, 0);
		say("%s ends %x\n", names[at].name, status & 0x7f);
	}
	return 0;
}

static void put(int fd, char letter) {
	memset(buffer, letter, 4096);
	if (pwrite(fd, buffer, 4096, 0) != 4096 || fsync(fd)) die("put");
}

static void acknowledged(const char *how, const char *path) {
	int fd = open(path, O_RDWR | O_CREAT, 0666);
	if (fd < 0) die(path);
	mkdir("jail", 0777);
	put(fd, 'a');
	if (give_up(how)) die(how);
	// No record of before may come over this.
	put(fd, 'b');
	say("acknowledged\n");
	for (;;) pause();
}

// What takes nothing away.
static int stay(const char *path) {
	gid_t groups[256];
	int count = getgroups(256, groups), fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];
	syscall(SYS_capget, &header, sets);
	say("%d ", setuid(getuid()));
	say("%d ", setgroups(count, groups));
	say("%d ", setresgid(-1, getgid(), -1));
	say("%d ", setfsuid(-1) == (int)getuid());
	say("%ld ", syscall(SYS_capset, &header, sets));
	say("%d ", chroot("/"));
	say("%d ", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	say("%d ", prctl(PR_CAPBSET_DROP, CAP_SYS_PACCT, 0, 0, 0));
	say("%ld %d ", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL), errno);
	say("%d %d ", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0), errno);
	say("%d ", unshare(CLONE_NEWIPC));
	say("%d ", lenient());
	say("%d ", execv("/bin/true", arguments));
	say("%d %d\n", socket(AF_INET, SOCK_STREAM, 0), socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
	for (int at = 0; at < 20; at++) put(fd, 'a' + at);
	return 0;
}

// The environment of what is started, by the ways that glibc has: this program's own, as it is by
// then, and a copy that was made before.
static int start(const char *how) {
	char *copy[500];
	pid_t pid;
	int status, count = 0;
	do copy[count] = environ[count]; while (environ[count++] && count < 500);
	if (count == 500) die("too many variables");
	make("data");
	if (give_up(how)) die(how);
	if (system("env | sort") != 0) die("system");
	if (posix_spawn(&pid, "/usr/bin/env", NULL, NULL, (char *[]){"env", NULL}, environ)) die("posix_spawn");
	if (waitpid(pid, &status, 0) < 0 || status) die("env");
	if (posix_spawnp(&pid, "env", NULL, NULL, (char *[]){"env", NULL}, copy)) die("posix_spawnp");
	if (waitpid(pid, &status, 0) < 0 || status) die("env of a copy");
	for (int way = 0; way < 4; way++) {
		pid = way == 3 ? vfork() : fork();
		if (pid == 0) {
			if (way == 0) execle("/usr/bin/env", "env", NULL, copy);
			if (way == 1) execvpe("env", (char *[]){"env", NULL}, copy);
			if (way == 2) execlp("env", "env", NULL);
			execve("/usr/bin/env", (char *[]){"env", NULL}, copy);
			_exit(1);
		}
		if (waitpid(pid, &status, 0) < 0 || status) die("exec");
	}
	execl("/usr/bin/env", "env", NULL);
	die("execl");
	return 1;
}

// Children in this memory give up rights, and it goes on as before.
static int lend(const char *path) {
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), status;
	put(fd, 'a');
	for (int at = 0; at < 3; at++) {
		pid_t pid = vfork();
		if (pid == 0) {
			if (at == 0 ? setgid(65534) || setuid(65534) : at == 1 ? chroot("/proc") : few(0)) _exit(1);
			if (at == 0) execl("/usr/bin/id", "id", "-u", NULL);
			if (at == 1) execl("/nowhere", "nowhere", NULL);
			syscall(SYS_exit, 3);
		}
		if (waitpid(pid, &status, 0) != pid) die("wait");
		say("child %x\n", status);
		put(fd, 'b' + at);
	}
	return 0;
}

int main(int count, char **words) {
	if (count == 5 && !strcmp(words[1], "calls")) return all(words[2], words[3], atoi(words[4]));
	if (count == 3 && !strcmp(words[1], "each")) return each(words[2]);
	if (count == 4 && !strcmp(words[1], "write")) acknowledged(words[2], words[3]);
	if (count == 4 && !strcmp(words[1], "stay")) return stay(words[3]);
	if (count == 3 && !strcmp(words[1], "start")) return start(words[2]);
	if (count == 4 && !strcmp(words[1], "lend")) return lend(words[3]);
	return 2;
}
