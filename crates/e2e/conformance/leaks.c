/* Nothing private of the library shows in the program. */
#include "conform.h"
#define THEME "leaks"
extern char **environ;

static int is_holdfasts_own(const char *variable) {
    return !strncmp(variable, "LD_PRELOAD=", 11) || !strncmp(variable, "HOLDFAST_SOCKET=", 16);
}
static int by_text(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }
CHECK(the_environment, 0) {
    char *seen[500];
    int count = 0, needed = 0;
    for (char **at = environ; *at; at++) {
        if (is_holdfasts_own(*at)) needed++;
        else seen[count++] = *at;
    }
    qsort(seen, count, sizeof *seen, by_text);
    for (int i = 0; i < count; i++) say("%.300s", seen[i]);
    IS(needed == 0 || needed == 2);
}
static int threads_now(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}
CHECK(no_thread_of_the_library, 1) {
    T(threads_now());
    int fd = make("a", 10, 1);
    T(fsync(fd));
    T(rename("a", "b"));
    T(threads_now());
}
CHECK(no_child_of_the_library, 1) {
    int fd = make("a", 10, 1);
    T(fsync(fd));
    T(waitpid(-1, NULL, WNOHANG));
    T(unlink("a"));
    T(waitpid(-1, NULL, WNOHANG));
}
CHECK(no_descriptor_after_everything, 4) {
    int fd = make("a", 10, 1);
    T(fsync(fd));
    T(write(fd, "x", 1));
    T(ftruncate(fd, 5));
    T(link("a", "b"));
    T(rename("a", "c"));
    T(unlink("b"));
    int dir = T(open(".", O_RDONLY));
    T(fsync(dir));
    T(write(fd, "x", 1));
    CHILD(T(write(fd, "x", 1)); descriptors());
    descriptors();
}
CHECK(limits_are_the_programs, 0) {
    for (int what = 0; what < RLIM_NLIMITS; what++) {
        struct rlimit limit;
        getrlimit(what, &limit);
        say("%d: %llx %llx", what, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    }
}
CHECK(address_space_may_be_limited, 3) {
    struct rlimit limit = { 1ul << 30, 1ul << 30 };
    T(setrlimit(RLIMIT_AS, &limit));
    int fd = make("a", 10, 1);
    T(write(fd, "x", 1));
    T(fsync(fd));
    IS(malloc(64 << 20) != NULL);
    CHILD(T(write(fd, "child", 5)));
    state(fd);
}
CHECK(address_space_of_a_new_program_may_be_limited, 1) {
    T(system("ulimit -v 1000000; echo limited > a; cat a > b") >> 8);
    file("b");
}
CHECK(memory_may_be_locked, 2) {
    int fd = make("a", 10, 1);
    struct rlimit limit = { 64 << 20, 64 << 20 };
    T(setrlimit(RLIMIT_MEMLOCK, &limit));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(the_name_and_arguments_stay, 1) {
    int fd = make("a", 10, 1), name = T(open("/proc/self/comm", O_RDONLY));
    T(fsync(fd));
    ssize_t bytes = T(read(name, big, 100));
    say("%.*s", (int)bytes - 1, big);
    bytes = readlink("/proc/self/exe", big, 4096);
    say("%s", strrchr(big, '/'));
}
CHECK(working_directory_mask_and_groups_stay, 1) {
    umask(027);
    int fd = make("a", 10, 1);
    T(fsync(fd));
    T(umask(0));
    IS(getcwd(big, 4096) != NULL);
    say("%s", strrchr(big, '/'));
    T(getpgrp() == getpid());
    T(getuid());
    T(geteuid());
    T(getgroups(0, NULL));
}
CHECK(timers_of_the_program_stay, 1) {
    struct itimerval timer = { { 0, 0 }, { 100, 0 } }, seen;
    setitimer(ITIMER_REAL, &timer, NULL);
    int fd = make("a", 10, 1);
    T(fsync(fd));
    getitimer(ITIMER_REAL, &seen);
    IS(seen.it_value.tv_sec >= 98);
    T(alarm(0) > 97);
}
CHECK(errno_of_the_program_stays, 3) {
    errno = EDOM;
    int fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (write(fd, "x", 1) == 1 && pwrite(fd, "y", 1, 5) == 1 && fsync(fd) == 0 && ftruncate(fd, 3) == 0 && rename("a", "b") == 0
        && link("b", "c") == 0 && unlink("c") == 0 && lseek(fd, 0, SEEK_END) == 3 && dup2(fd, 9) == 9 && close(9) == 0
        && chmod("b", 0600) == 0 && fcntl(fd, F_SETFL, O_APPEND) == 0 && write(fd, "z", 1) == 1 && truncate("b", 2) == 0
        && open("b", O_RDWR) > 0 && mkdir("d", 0755) == 0 && rmdir("d") == 0 && fallocate(fd, 0, 0, 100) == 0
        && close(fd) == 0 && unlink("b") == 0)
        say("all succeed");
    say("errno is %s", errno_name(errno));
}
CHECK(no_accounting_of_foreign_blocks, 51) {
    struct rusage before, after;
    int fd = make("a", 10, 1);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < 50; i++) pwrite(fd, "x", 1, i);
    getrusage(RUSAGE_CHILDREN, &after);
    IS(after.ru_utime.tv_sec == 0);
    state(fd);
}
CHECK(writable_and_executable_memory_is_not_left, 1) {
    int fd = make("a", 10, 1);
    T(fsync(fd));
    FILE *maps = fopen("/proc/self/maps", "r");
    int both = 0;
    for (char line[1000]; fgets(line, sizeof line, maps);) both += strstr(line, "rwx") != NULL;
    fclose(maps);
    T(both);
}
CHECK(libc_can_be_found, 0) {
    void *libc = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    for (char line[1000]; fgets(line, sizeof line, maps);) found |= strstr(line, "libc.so.6") != NULL;
    fclose(maps);
    T(found);
    (void)libc;
}
CHECK(core_files_stay_small, 0) {
    FILE *filter = fopen("/proc/self/coredump_filter", "r");
    char line[100];
    say("%s", fgets(line, sizeof line, filter) ? strtok(line, "\n") : "unreadable");
    fclose(filter);
}
