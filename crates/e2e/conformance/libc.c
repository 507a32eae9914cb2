/* What libc does by itself: streams, temporary files, asynchronous writes, children. Where it does that by system calls that no
 * library sees (musl), files and descriptor numbers are shared between what is seen and what is not. */
#include "conform.h"
#include <aio.h>
#include <mntent.h>
#include <pty.h>
#include <spawn.h>
#include <sys/socket.h>
#include <utmp.h>
#define THEME "libc"

extern char **environ;
static int fd;

static int open_new(const char *path, int flags) {
    return open(path, flags | O_CREAT, 0644);
}

CHECK(a_number_that_a_stream_gave_back, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, "first", 5));
    FILE *stream = P(fdopen(fd, "w"));
    T(fputs(" second", stream));
    T(fclose(stream));
    int pair[2];
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    IS(pair[0] == fd);
    T(write(pair[0], "elsewhere", 9));
    T(fsync(pair[0]));
    T(close(pair[0]));
    T(close(pair[1]));
    IS(open_new("b", O_WRONLY) == fd);
    T(write(fd, "another", 7));
    T(fsync(fd));
    file("a");
    state(fd);
}
CHECK(a_number_that_a_directory_gave_back, 1) {
    DIR *directory = P(opendir("."));
    fd = dirfd(directory);
    T(fsync(fd));
    T(write(fd, "x", 1));
    T(closedir(directory));
    IS(open_new("a", O_RDWR) == fd);
    T(write(fd, "content", 7));
    T(fsync(fd));
    state(fd);
}
CHECK(a_stream_and_a_descriptor_of_one_file, 0) {
    FILE *stream = P(fopen("a", "w+"));
    fd = open("a", O_RDWR);
    T(pwrite(fd, "under the stream", 16, 0));
    T(fputs("STREAM", stream));
    T(fflush(stream));
    T(pwrite(fd, "between", 7, 4));
    T(fsync(fd));
    T(fputs(" goes on", stream));
    T(fclose(stream));
    T(pwrite(fd, "after", 5, 12));
    T(fsync(fd));
    state(fd);
}
CHECK(a_descriptor_and_then_a_stream, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, "written first, by a descriptor", 30));
    FILE *stream = P(fopen("a", "r+"));
    T(fputs("OVER IT", stream));
    T(fflush(stream));
    T(write(fd, " and on", 7));
    T(fsync(fd));
    T(fputs(" AGAIN", stream));
    T(fclose(stream));
    T(pwrite(fd, "last", 4, 2));
    state(fd);
}
CHECK(a_file_truncated_by_a_stream, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, fill(big, 9000, 1), 9000));
    FILE *stream = P(fopen("a", "w"));
    T(fputs("short", stream));
    T(fclose(stream));
    T(pwrite(fd, "behind", 6, 20));
    state(fd);
}
CHECK(a_file_that_a_stream_is_opened_anew_on, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, fill(big, 9000, 1), 9000));
    FILE *stream = P(fopen("b", "w"));
    T(fputs("into b", stream));
    int number = fileno(stream);
    stream = P(freopen("a", "w", stream));
    IS(fileno(stream) == number);
    T(fputs("into a", stream));
    T(fflush(stream));
    T(pwrite(fd, "far", 3, 100));
    T(fputs(", too", stream));
    stream = P(freopen("c", "wx", stream));
    T(fputs("into c", stream));
    IS(freopen("no/such", "w", stream) == NULL);
    file("b");
    file("c");
    state(fd);
    IS(open_new("d", O_WRONLY) == number);
    T(write(number, "into d", 6));
    file("d");
}
CHECK(a_descriptor_in_the_place_of_a_streams, 1) {
    FILE *stream = P(fopen("a", "w"));
    fd = open_new("b", O_RDWR);
    T(write(fd, "b begins", 8));
    T(dup2(fd, fileno(stream)) >= 0);
    T(fputs(", the stream", stream));
    T(fflush(stream));
    T(write(fd, ", the descriptor", 16));
    T(fsync(fd));
    T(fclose(stream));
    T(write(fd, ", the end", 9));
    file("a");
    state(fd);
}
CHECK(a_number_closed_under_a_stream, 0) {
    FILE *stream = P(fopen("a", "w"));
    fd = fileno(stream);
    T(close(fd));
    IS(open_new("b", O_RDWR) == fd);
    T(write(fd, "b begins", 8));
    T(fputs(", the stream", stream));
    T(fflush(stream));
    T(pwrite(fd, "B", 1, 0));
    T(fsync(fd));
    T(fclose(stream));
    file("a");
    file("b");
}
CHECK(standard_output_on_a_file, 1) {
    int before = dup(1);
    fd = open_new("a", O_RDWR);
    T(write(fd, "begin\n", 6));
    fflush(stdout);
    T(dup2(fd, 1));
    printf("printed %d\n", 7);
    fflush(stdout);
    T(write(fd, "written\n", 8));
    T(write(1, "to one\n", 7));
    T(fsync(fd));
    puts("put");
    fflush(stdout);
    T(dup2(before, 1));
    close(before);
    T(write(fd, "end\n", 4));
    state(fd);
}
static void print(const char *format, ...) {
    va_list list;
    va_start(list, format);
    T(vdprintf(fd, format, list));
    va_end(list);
}
CHECK(formatted_output_between_writes, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, "begin ", 6));
    T(dprintf(fd, "%s %d %.2f %c %ld %g %s %d|", "text", 7, 1.5, 'c', 123456789012L, 2.25, "more", -1));
    T(pwrite(fd, "BEGIN", 5, 0));
    print("%d %.1f %s", 1, 2.5, "three");
    T(write(fd, " end", 4));
    T(fsync(fd));
    state(fd);
}
CHECK(asynchronous_writes_between_others, 1) {
    fd = open_new("a", O_RDWR);
    T(write(fd, fill(big, 5000, 1), 5000));
    struct aiocb one = { .aio_fildes = fd, .aio_buf = "asynchronous", .aio_nbytes = 12, .aio_offset = 100 }, two = one, *list[2] = { &two };
    two.aio_offset = 200, two.aio_lio_opcode = LIO_WRITE;
    const struct aiocb *wait[1] = { &one };
    IS(aio_write(&one) == 0);
    while (aio_suspend(wait, 1, NULL)) ;
    T(aio_return(&one));
    T(pwrite(fd, "SYNC", 4, 100));
    IS(lio_listio(LIO_WAIT, list, 1, NULL) == 0);
    T(aio_return(&two));
    T(pwrite(fd, "SYNC", 4, 206));
    T(fsync(fd));
    state(fd);
    T(close(fd));
}
CHECK(temporary_files_by_name, 0) {
    char a[] = "a-XXXXXX", b[] = "b-XXXXXX", c[] = "c-XXXXXX.end", d[] = "d-XXXXXX.end", e[] = "e-XXXXXX";
    int numbers[] = { mkstemp(a), mkostemp(b, O_APPEND), mkstemps(c, 4), mkostemps(d, 4, O_CLOEXEC) };
    P(mkdtemp(e));
    const char *made[] = { a, b, c, d, e }, *names[] = { "a", "b", "c", "d", "e" };
    for (int i = 0; i < 4; i++) {
        T(write(numbers[i], fill(big, 1000, i), 1000));
        T(pwrite(numbers[i], "over", 4, 10));
        T(fsync(numbers[i]));
    }
    for (int i = 0; i < 5; i++) T(rename(made[i], names[i]));
    for (int i = 0; i < 4; i++) state(numbers[i]);
    FILE *nameless = P(tmpfile());
    T(fputs("nobody sees it", nameless));
    T(fflush(nameless));
    T(write(fileno(nameless), "!", 1));
    state(fileno(nameless));
    T(fclose(nameless));
}
CHECK(a_table_of_mounts, 0) {
    FILE *table = P(setmntent("table", "w"));
    struct mntent row = { "device", "/place", "kind", "rw", 1, 2 };
    for (int i = 0; i < 5; i++) T(addmntent(table, &row));
    fd = fileno(table);
    T(endmntent(table));
    IS(open_new("b", O_WRONLY) == fd);
    T(write(fd, "content", 7));
    file("table");
    state(fd);
}
CHECK(a_child_with_files_of_its_own, 1) {
    fd = open_new("a", O_RDWR | O_CLOEXEC);
    T(write(fd, fill(big, 3000, 1), 3000));
    int other = open_new("b", O_WRONLY | O_APPEND | O_CLOEXEC);
    T(write(other, "b begins\n", 9));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "a", O_WRONLY | O_TRUNC, 0);
    posix_spawn_file_actions_adddup2(&actions, other, 2);
    posix_spawn_file_actions_addclose(&actions, 0);
    char *arguments[] = { "sh", "-c", "echo out; echo error >&2", NULL };
    pid_t child;
    int status;
    T(posix_spawnp(&child, "sh", &actions, NULL, arguments, environ));
    T(waitpid(child, &status, 0) == child && status == 0);
    T(pwrite(fd, "OUT", 3, 0));
    T(write(other, "b ends\n", 7));
    T(fsync(fd));
    state(fd);
    file("b");
    T(posix_spawnp(&child, "no-such-program", &actions, NULL, arguments, environ));
    FILE *pipe = P(popen("cat >> b", "w"));
    T(fputs("by a pipe\n", pipe));
    T(pclose(pipe));
    file("b");
}
CHECK(programs_by_all_functions, 0) {
    char *arguments[] = { "sh", "-c", "echo \"$0 $1 $X\" >> a", "name", "argument", NULL }, *environment[8] = { "X=given", "PATH=/bin:/usr/bin" };
    int used = 2;
    for (char **one = environ; *one; one++)
        if (!strncmp(*one, "LD_PRELOAD=", 11) || !strncmp(*one, "HOLDFAST_SOCKET=", 16)) environment[used++] = *one;
    setenv("X", "own", 1);
    CHILD(execl("/bin/sh", "sh", "-c", "echo \"$0 $*\" >> a", "l", "1", "2", "3", "4", "5", "6", "7", "8", NULL));
    CHILD(execlp("sh", "sh", "-c", "echo \"$0 $*\" >> a", "lp", "1", NULL));
    CHILD(execle("/bin/sh", "sh", "-c", "echo \"$0 $* $X\" >> a", "le", "1", "2", "3", NULL, environment));
    CHILD(execv("/bin/sh", arguments));
    CHILD(execvp("sh", arguments));
    CHILD(execvpe("sh", arguments, environment));
    file("a");
    T(execlp("no-such-program", "x", NULL));
    T(execvp("./no/such", arguments));
    T(execvp("", arguments));
    setenv("PATH", ":/no/such:/bin", 1);
    close(open_new("true", O_WRONLY));
    CHILD(execlp("true", "true", NULL));
    T(execlp("tree-that-is-not-there", "x", NULL));
}
CHECK(a_terminal_in_the_place_of_a_file, 1) {
    int controller, terminal;
    T(openpty(&controller, &terminal, NULL, NULL, NULL));
    fd = open_new("a", O_RDWR);
    T(write(fd, "in the file", 11));
    CHILD(dup2(fd, 1); write(1, ", too", 5); if (login_tty(terminal) == 0) write(1, "on the terminal", 15));
    state(fd);
}
static volatile int signals;

static void count(int number) {
    (void)number;
    signals++;
    if (pwrite(fd, "signal", 6, signals % 50 * 10) != 6) _exit(9);
}
CHECK(handlers_installed_by_older_functions, 100) {
    fd = open_new("a", O_RDWR);
    T(signal(SIGALRM, count) == SIG_DFL);
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 200000 && signals < 60; i++) if (pwrite(fd, "program", 7, 400) != 7) say("failed");
    setitimer(ITIMER_REAL, &never, NULL);
    IS(signals >= 60);
    T(signal(SIGALRM, SIG_DFL) == count);
    T(sigset(SIGUSR1, count) == SIG_DFL);
    T(sigset(SIGUSR1, SIG_HOLD) == count);
    signals = 0;
    raise(SIGUSR1);
    IS(signals == 0);
    T(sigset(SIGUSR1, count) == SIG_HOLD);
    IS(signals == 1);
    T(siginterrupt(SIGUSR1, 0));
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    IS(action.sa_handler == count && (action.sa_flags & SA_RESTART));
    T(sigignore(SIGUSR1));
    raise(SIGUSR1);
    IS(signals == 1);
    T(signal(99, count) == SIG_ERR);
    T(write(fd, NULL, 5));
}
