/* Other programs: what they are left by exec, spawn, system and popen. */
#include "conform.h"
#include <spawn.h>
#include <wordexp.h>
#define THEME "programs"
extern char **environ;

static char number[12];
static char *text(int fd) {
    sprintf(number, "%d", fd);
    return number;
}
/* Writes to a descriptor that it has inherited. */
HELPER(write_to) {
    int fd = atoi(arguments[0]);
    T(write(fd, arguments[1], strlen(arguments[1])));
    if (count > 2) T(fsync(fd));
    state(fd);
    return 0;
}
/* Tells what it has been left. */
HELPER(tell_inheritance) {
    descriptors();
    for (int i = 0; i < count; i++) state(atoi(arguments[i]));
    return 0;
}
/* Works on files of its own. */
HELPER(work) {
    int fd = T(open(arguments[0], O_RDWR | O_CREAT | O_APPEND, 0644));
    T(write(fd, "by another program\n", 19));
    T(fsync(fd));
    T(close(fd));
    return count;
}
/* Hands on to itself a few times. */
HELPER(chain) {
    int left = atoi(arguments[0]);
    T(write(3, arguments[0], 1));
    if (left == 0) return 7;
    arguments[0][0]--;
    become("chain", arguments[0], NULL);
}

CHECK(vfork_and_exec, 1) {
    int fd = make("a", 10, 1);
    volatile int changed = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        changed = 1;
        execl(self_path, self_path, "--helper", "write_to", "3", "by the child", "sync", NULL);
        _exit(127);
    }
    reap("vfork", pid);
    T(changed);
    T(write(fd, "parent", 6));
    state(fd);
}
CHECK(vfork_and_redirect, 1) {
    int fd = make("a", 0, 1);
    T(write(fd, "start\n", 6));
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(fd, 1);
        close(fd);
        execl("/bin/echo", "echo", "by echo", NULL);
        _exit(127);
    }
    reap("vfork", pid);
    T(write(fd, "parent\n", 7));
    file("a");
    descriptors();
}
CHECK(posix_spawn_with_actions, 1) {
    int fd = make("a", 0, 1), status;
    pid_t pid;
    T(write(fd, "start\n", 6));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addopen(&actions, 5, "opened", O_RDWR | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_addclose(&actions, fd);
    T(posix_spawn(&pid, "/bin/sh", &actions, NULL, (char *[]){ "sh", "-c", "echo spawned; echo more >&5", NULL }, environ));
    reap("spawned", pid);
    posix_spawn_file_actions_destroy(&actions);
    T(write(fd, "after\n", 6));
    file("a");
    file("opened");
    T(posix_spawnp(&pid, "no-such-program", NULL, NULL, (char *[]){ "x", NULL }, environ));
    T(waitpid(-1, &status, WNOHANG));
    descriptors();
}
CHECK(posix_spawn_of_a_client, 1) {
    pid_t pid;
    char *argv[] = { (char *)self_path, "--helper", "work", "own", NULL };
    if (posix_spawn(&pid, self_path, NULL, NULL, argv, environ)) say("not spawned");
    reap("spawned", pid);
    file("own");
}
CHECK(system_and_its_files, 2) {
    T(system("printf system > by-system; exit 5") >> 8);
    file("by-system");
    T(system("/nonexistent 2>/dev/null") >> 8);
    T(system(NULL) != 0);
    int fd = make("a", 10, 1);
    T(system("echo more >> a; truncate -s 100 a; cat a > b") >> 8);
    T(write(fd, "x", 1));
    file("a");
    file("b");
}
CHECK(popen_both_ways, 1) {
    int fd = make("a", 10, 1);
    FILE *in = popen("cat a | wc -c; echo from child", "r");
    char line[100];
    while (fgets(line, sizeof line, in)) say("%.*s", (int)strcspn(line, "\n"), line);
    T(pclose(in));
    FILE *out = popen("cat > by-popen; exit 3", "we");
    T(fputs("to the child", out));
    T(pclose(out) >> 8);
    T(popen("true", "x") == NULL);
    T(write(fd, "x", 1));
    file("by-popen");
    descriptors();
}
CHECK(word_expansion, 0) {
    wordexp_t words;
    T(wordexp("$(echo one two) ~root *", &words, 0));
    for (size_t i = 0; i < words.we_wordc; i++) say("%s", words.we_wordv[i]);
    wordfree(&words);
    descriptors();
}
CHECK(exec_keeps_descriptors, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644)), gone = T(open("b", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    T(write(fd, "before,", 7));
    T(write(gone, "gone", 4));
    T(dup2(fd, 30));
    CHILD(become("tell_inheritance", text(fd), "4", "30", NULL));
    T(write(fd, "after", 5));
    state(fd);
}
CHECK(exec_and_both_write, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "before,", 7));
    CHILD(become("write_to", text(fd), "by the other,", "sync", NULL));
    T(write(fd, "after", 5));
    T(fsync(fd));
    state(fd);
}
CHECK(exec_keeps_appending, 1) {
    int fd = T(open("a", O_WRONLY | O_CREAT | O_APPEND, 0644));
    T(write(fd, "before,", 7));
    CHILD(become("write_to", text(fd), "by the other,", NULL));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "after", 5));
    file("a");
}
CHECK(exec_keeps_synchronous_writes, 2) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC, 0644)), other = T(open("b", O_RDWR | O_CREAT | O_DSYNC, 0644));
    T(write(fd, "before,", 7));
    T(write(other, "before,", 7));
    CHILD(become("write_to", text(fd), "by the other,", NULL));
    CHILD(become("write_to", text(other), "by the other,", NULL));
    T(write(fd, "after", 5));
    T(write(other, "after", 5));
    state(fd);
    state(other);
}
CHECK(exec_keeps_synchronous_appends_and_their_cursor, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC | O_APPEND, 0644));
    T(write(fd, "before,", 7));
    T(lseek(fd, 2, SEEK_SET));
    CHILD(become("write_to", text(fd), "by the other,", NULL));
    T(lseek(fd, 0, SEEK_CUR));
    T(read(fd, big, 3));
    T(write(fd, "after", 5));
    state(fd);
}
CHECK(exec_keeps_locks, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC | O_APPEND, 0644));
    T(write(fd, "x", 1));
    T(flock(fd, LOCK_EX));
    CHILD(become("write_to", text(fd), "by the other,", NULL));
    int other = T(open("a", O_RDWR));
    T(flock(other, LOCK_EX | LOCK_NB));
    T(flock(fd, LOCK_UN));
    T(flock(other, LOCK_EX | LOCK_NB));
}
CHECK(exec_that_fails_changes_nothing, 1) {
    int fd = T(open("a", O_RDWR | O_CREAT | O_SYNC, 0644));
    T(write(fd, "before,", 7));
    T(execl("/nonexistent", "x", NULL));
    T(execl(".", "x", NULL));
    T(execv((char *)8, (char *[]){ "x", NULL }));
    T(write(fd, "after", 5));
    state(fd);
}
CHECK(exec_chains, 1) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    char left[] = "5";
    T(write(fd, "x", 1));
    CHILD(become("chain", left, NULL));
    T(write(fd, "y", 1));
    file("a");
}
CHECK(exec_of_a_file_just_written, 2) {
    static const char script[] = "#!/bin/sh\necho run > result\nexit 9\n";
    int fd = T(open("script", O_WRONLY | O_CREAT, 0755));
    T(write(fd, script, sizeof script - 1));
    CHILD(execl("./script", "script", NULL); say("%s", errno_name(errno)));
    T(close(fd));
    CHILD(execl("./script", "script", NULL); say("%s", errno_name(errno)));
    file("result");
    fd = T(open("script", O_WRONLY | O_TRUNC));
    T(write(fd, "#!/bin/true\n", 12));
    T(close(fd));
    CHILD(execl("./script", "script", NULL));
}
CHECK(exec_of_a_copied_program, 1) {
    int from = T(open("/bin/true", O_RDONLY)), to = T(open("copy", O_WRONLY | O_CREAT, 0755));
    for (ssize_t bytes; (bytes = read(from, big, sizeof big)) > 0;) write(to, big, bytes);
    T(close(to));
    CHILD(execl("./copy", "copy", NULL); say("%s", errno_name(errno)));
    T(unlink("copy"));
}
CHECK(exec_of_all_kinds, 4) {
    char *argv[] = { (char *)self_path, "--helper", "work", "own", NULL };
    CHILD(execv(self_path, argv));
    CHILD(execve(self_path, argv, environ));
    CHILD(execvp(self_path, argv));
    CHILD(int fd = open(self_path, O_RDONLY | O_CLOEXEC); fexecve(fd, argv, environ));
    file("own");
}
CHECK(exec_without_environment, 0) {
    char *argv[] = { (char *)self_path, "--helper", "work", "own", NULL };
    CHILD(execve(self_path, argv, (char *[]){ NULL }));
    CHILD(execve(self_path, argv, (char *[]){ "A=1", NULL }));
    file("own");
}
