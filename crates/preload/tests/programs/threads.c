/* Cancellation, signal handlers that write, threads that write, errno. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static int ends[2], file;
static volatile sig_atomic_t signals;

static void *write_forever(void *unused) {
    char block[4096];
    memset(block, 0, sizeof block);
    for (;;) write(ends[1], block, sizeof block);
    return unused;
}

static void cleanup(void *flag) { *(int *)flag = 1; }

static void *wait_in_open(void *flag) {
    pthread_cleanup_push(cleanup, flag);
    int fd = open("fifo", O_WRONLY);
    close(fd);
    pthread_cleanup_pop(0);
    return NULL;
}

static void on_alarm(int signal) {
    int saved = errno;
    (void)signal;
    signals = signals + 1;
    write(file, "signal\n", 7);
    errno = saved;
}

static void *write_lines(void *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 2000; i++) {
        errno = 123;
        if (write(fd, "0123456789abcde\n", 16) != 16 || errno != 123) return "failed";
        if (i % 500 == 0) fsync(fd);
    }
    close(fd);
    return "done";
}

int main(void) {
    pthread_t thread, other;
    void *result;
    int cleaned = 0;
    pipe(ends);
    pthread_create(&thread, NULL, write_forever, NULL);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("write cancelled %d\n", result == PTHREAD_CANCELED);
    if (mkfifo("fifo", 0600)) return 1;
    pthread_create(&thread, NULL, wait_in_open, &cleaned);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("open cancelled %d cleaned %d\n", result == PTHREAD_CANCELED, cleaned);

    pthread_create(&thread, NULL, write_lines, "t1");
    pthread_create(&other, NULL, write_lines, "t2");
    pthread_join(thread, &result);
    printf("t1 %s\n", (char *)result);
    pthread_join(other, &result);
    printf("t2 %s\n", (char *)result);

    file = open("signals", O_WRONLY | O_CREAT | O_APPEND, 0644);
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = { { 0, 500 }, { 0, 500 } }, off = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &timer, NULL);
    long lines = 0;
    for (int i = 0; i < 20000 || signals < 20; i++) {
        if (write(file, "normal\n", 7) == 7) lines++;
    }
    setitimer(ITIMER_REAL, &off, NULL);
    long end = lseek(file, 0, SEEK_END);
    printf("signals come through %d, all there %d\n", signals > 0, end == 7 * (lines + signals));

    /* A signal that interrupts a blocking write still does. */
    action.sa_flags = 0;
    sigaction(SIGALRM, &action, NULL);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    char block[65536];
    memset(block, 0, sizeof block);
    struct itimerval once = { { 0, 0 }, { 0, 50000 } };
    setitimer(ITIMER_REAL, &once, NULL);
    ssize_t n = write(ends[1], block, sizeof block);
    printf("interrupted %d\n", n == -1 ? errno == EINTR : n < (ssize_t)sizeof block);
    return 0;
}
