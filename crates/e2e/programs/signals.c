// Signal handlers that write to the file their thread is writing to, and addresses that cannot be
// read. Prints what a program can see of it; the same natively and under Holdfast.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static int file;
static volatile sig_atomic_t alarms, queued, wrong, plain;
static volatile int wanted_value;
static sigjmp_buf jump;

static void must(int held, const char *what) {
    if (!held) {
        printf("FAILED: %s (%s)\n", what, strerror(errno));
        exit(1);
    }
}

static void on_alarm(int number, siginfo_t *info, void *context) {
    (void)context;
    char text[64];
    memset(text, 'a' + alarms % 26, sizeof text);
    // The same page that the interrupted thread may hold.
    if (number != SIGALRM || info->si_signo != SIGALRM || pwrite(file, text, sizeof text, 512) != sizeof text) wrong++;
    alarms++;
}

static void on_queued(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    if (info->si_code != SI_QUEUE || info->si_value.sival_int != wanted_value || info->si_pid != getpid()) wrong++;
    wanted_value++;
    queued++;
    if (pwrite(file, &wanted_value, sizeof wanted_value, 1024) != sizeof wanted_value) wrong++;
}

static void on_plain(int number) {
    plain += number;
}

static void on_fault(int number) {
    (void)number;
    siglongjmp(jump, 1);
}

static void *write_on(void *stop) {
    char text[4096];
    long rounds = 0;
    while (!*(volatile int *)stop) {
        memset(text, (int)(rounds++ & 63) + 33, sizeof text);
        if (pwrite(file, text, 512, 0) != 512) wrong++;
    }
    return NULL;
}

static void handlers_that_write(void) {
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART}, seen;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    must(sigaction(SIGALRM, NULL, &seen) == 0 && seen.sa_sigaction == on_alarm, "the handler is the program's");
    printf("flags %x, masks SIGUSR2 %d, SIGUSR1 %d\n", seen.sa_flags, sigismember(&seen.sa_mask, SIGUSR2),
           sigismember(&seen.sa_mask, SIGUSR1));
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    char text[4096];
    for (int round = 0; alarms < 2000 && round < 5000000; round++) {
        memset(text, round & 255, sizeof text);
        must(pwrite(file, text, 512, 0) == 512, "pwrite");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("alarms %d, wrong %d\n", alarms >= 2000, wrong);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    int blocked = 0;
    for (int number = 1; number < 65; number++) blocked += sigismember(&mask, number) == 1;
    printf("blocked afterwards %d\n", blocked);
}

static void queued_signals(void) {
    struct sigaction action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO};
    must(sigaction(SIGRTMIN + 3, &action, NULL) == 0, "sigaction");
    pthread_t writer;
    volatile int stop = 0;
    must(pthread_create(&writer, NULL, write_on, (void *)&stop) == 0, "pthread_create");
    for (int value = 0; value < 5000; value++) {
        union sigval sent = {.sival_int = value};
        while (pthread_sigqueue(writer, SIGRTMIN + 3, sent) == EAGAIN) usleep(10);
        if (value % 16 == 0) while (queued < value) usleep(10);
    }
    while (queued < 5000) usleep(100);
    stop = 1;
    pthread_join(writer, NULL);
    printf("queued %d, wrong %d\n", queued, wrong);
}

static void dispositions(void) {
    must(signal(SIGUSR1, on_plain) == SIG_DFL, "signal tells the default");
    must(signal(SIGUSR1, SIG_IGN) == on_plain, "signal tells the handler");
    must(raise(SIGUSR1) == 0 && plain == 0, "ignored");
    must(signal(SIGUSR1, on_plain) == SIG_IGN, "signal tells that it was ignored");
    raise(SIGUSR1);
    printf("plain %d\n", plain);
    struct sigaction once = {.sa_handler = on_plain, .sa_flags = SA_RESETHAND}, seen;
    sigaction(SIGUSR2, &once, NULL);
    raise(SIGUSR2);
    sigaction(SIGUSR2, NULL, &seen);
    printf("plain %d, reset %d\n", plain, seen.sa_handler == SIG_DFL);
    errno = 0;
    printf("internal %d", sigaction(32, &once, NULL));
    printf(" errno %d, unknown %d", errno, sigaction(65, &once, NULL));
    printf(" errno %d, kill %d", errno, sigaction(SIGKILL, &once, NULL));
    printf(" errno %d\n", errno);
}

static void bad_addresses(void) {
    char *memory = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 'x', 3 * 4096);
    mprotect(memory + 4096, 4096, PROT_NONE);
    struct { void *at; size_t bytes; } places[] = {
        {NULL, 10}, {(void *)8, 5000}, {memory + 4096, 100}, {memory + 4000, 4096}, {memory, 3 * 4096},
        {memory + 96, 4000}, {(void *)0xdead000000000000, 64}, {memory + 8192, 4096}, {(void *)-4096L, 64},
    };
    for (unsigned at = 0; at < sizeof places / sizeof *places; at++) {
        errno = 0;
        long result = pwrite(file, places[at].at, places[at].bytes, 8192);
        printf("place %u: %ld errno %d", at, result, errno);
        struct iovec parts[2] = {{memory, 100}, {places[at].at, places[at].bytes}};
        errno = 0;
        result = pwritev(file, parts, 2, 16384);
        printf(", second part: %ld errno %d\n", result, errno);
    }
    errno = 0;
    printf("vector: %zd errno %d\n", pwritev(file, (void *)64, 3, 0), errno);
    munmap(memory, 3 * 4096);
}

static void own_faults(void) {
    signal(SIGSEGV, on_fault);
    for (int round = 0; round < 3; round++) {
        if (sigsetjmp(jump, 1) == 0) *(volatile char *)16 = 1;
    }
    printf("own faults survived, then a write of %zd\n", pwrite(file, "end", 3, 0));
    signal(SIGSEGV, SIG_DFL);
}

int main(int count, char **arguments) {
    file = open("signals.data", O_RDWR | O_CREAT, 0644);
    must(file >= 0, "open");
    handlers_that_write();
    queued_signals();
    dispositions();
    bad_addresses();
    own_faults();
    must(fsync(file) == 0, "fsync");
    fflush(stdout);
    if (count > 1 && strcmp(arguments[1], "die") == 0) *(volatile char *)16 = 1;
    return 0;
}
