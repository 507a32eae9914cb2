/* Every way to make a child, with files and descriptors shared between parent and child. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

extern char **environ;

static void content(const char *path) {
    char buffer[4096];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, buffer, sizeof buffer);
    if (fd >= 0) close(fd);
    printf("%s: %zd bytes: %.*s\n", path, n, (int)n, buffer);
    fflush(stdout);
}

static void reap(const char *what, pid_t pid) {
    int status = -1;
    pid_t waited = waitpid(pid, &status, 0);
    printf("%s: %s, status %x\n", what, waited == pid ? "waited" : "lost", status);
    fflush(stdout);
}

static int run_clone(void *fd) {
    write(*(int *)fd, "cloned,", 7);
    return 9;
}

int main(void) {
    int fd = open("shared", O_WRONLY | O_CREAT, 0644);
    write(fd, "start,", 6);
    pid_t pid = fork();
    if (pid == 0) {
        write(fd, "child,", 6);
        if (fork() == 0) {
            write(fd, "grandchild,", 11);
            _exit(0);
        }
        wait(NULL);
        int own = open("own", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        write(own, "own", 3);
        fsync(own);
        _exit(3);
    }
    reap("fork", pid);
    write(fd, "parent,", 7);
    content("shared");
    content("own");

    volatile int changed = 0;
    pid = vfork();
    if (pid == 0) {
        changed = 1;
        int other = open("/dev/null", O_WRONLY);
        close(other);
        _exit(4);
    }
    reap("vfork", pid);
    printf("changed %d\n", changed);
    pid = vfork();
    if (pid == 0) {
        dup2(fd, 1);
        execl("/bin/echo", "echo", "-n", "vforked,", NULL);
        _exit(127);
    }
    reap("vfork exec", pid);
    write(fd, "after,", 6);
    content("shared");
    pid = vfork();
    if (pid == 0) {
        execl("/nonexistent", "x", NULL);
        _exit(errno);
    }
    reap("vfork exec failed", pid);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addclose(&actions, fd);
    char *arguments[] = { "sh", "-c", "echo spawned; echo more", NULL };
    int error = posix_spawn(&pid, "/bin/sh", &actions, NULL, arguments, environ);
    printf("posix_spawn %d\n", error);
    reap("posix_spawn", pid);
    content("spawned");
    write(fd, "spawned,", 8);
    posix_spawn_file_actions_destroy(&actions);
    error = posix_spawnp(&pid, "no-such-program", NULL, NULL, arguments, environ);
    printf("posix_spawnp %d\n", error);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    error = posix_spawnp(&pid, "sh", &actions, NULL, (char *[]){ "sh", "-c", "printf dup2,", NULL }, environ);
    printf("posix_spawnp %d\n", error);
    reap("posix_spawnp", pid);
    posix_spawn_file_actions_destroy(&actions);
    content("shared");

    printf("system %x\n", system("printf system > by-system; exit 5"));
    fflush(stdout);
    content("by-system");
    FILE *p = popen("cat; echo from child", "r");
    char text[100];
    printf("popen r: %s", fgets(text, sizeof text, p));
    printf("pclose %x\n", pclose(p));
    fflush(stdout);
    p = popen("cat > by-popen", "w");
    fputs("to child", p);
    printf("pclose %x\n", pclose(p));
    content("by-popen");
    wordexp_t words;
    printf("wordexp %d ", wordexp("$(echo a b)", &words, 0));
    printf("%zu\n", words.we_wordc);
    fflush(stdout);
    wordfree(&words);

    pid = fork();
    if (pid == 0) {
        dup2(fd, 1);
        execlp("printf", "printf", "execed,", NULL);
        _exit(127);
    }
    reap("fork exec", pid);
    write(fd, "end,", 4);
    content("shared");

    static char stack[65536];
    pid = clone(run_clone, stack + sizeof stack, SIGCHLD, &fd);
    reap("clone", pid);
    pid = clone(run_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &fd);
    reap("clone in our memory", pid);
    pid = _Fork();
    if (pid == 0) {
        write(fd, "_Fork,", 6);
        _exit(1);
    }
    reap("_Fork", pid);
    pid = syscall(SYS_fork);
    if (pid == 0) {
        write(fd, "raw fork,", 9);
        _exit(2);
    }
    reap("raw fork", pid);
    write(fd, "last,", 5);
    content("shared");
    int terminal;
    pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid == 0) {
        write(fd, "forkpty,", 8);
        _exit(6);
    }
    reap("forkpty", pid);
    int ends[2];
    pipe(ends);
    pid = fork();
    if (pid == 0) {
        if (daemon(1, 1) == 0) {
            write(fd, "daemon,", 7);
            write(ends[1], "d", 1);
            _exit(0);
        }
        _exit(1);
    }
    reap("daemon's parent", pid);
    read(ends[0], text, 1);
    content("shared");
    for (int i = 0; i < 3; i++) {
        pid = fork();
        if (pid == 0) {
            for (int j = 0; j < 20; j++) write(fd, "xxxxxxxxx,", 10);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    printf("cursor %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    return 0;
}
