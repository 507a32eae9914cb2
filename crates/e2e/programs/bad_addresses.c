// Writes from memory that cannot be read, again and again, while another thread sends signals that
// have a handler: each write must say EFAULT or be short, as natively, and end nobody.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_int stop;
static atomic_int taken;

static void handle(int signal) { taken++; }

static void *send(void *thread) {
    while (!stop) {
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        for (int before = taken, turns = 0; taken == before && turns < 20000; turns++) {
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0644);
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    pthread_t self = pthread_self(), sender;
    if (fd < 0 || pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE) != 0 ||
        sigaction(SIGUSR1, &action, NULL) != 0 || pwrite(fd, pages, 4096, 0) != 4096 || fsync(fd) != 0)
        return 2;
    if (pthread_create(&sender, NULL, send, &self) != 0)
        return 2;
    for (int at = 0; at < 2000 && taken < 400; at++) {
        long wrote = pwrite(fd, pages + 4096 - at % 100, 4096, 0);
        if (wrote >= 0 ? wrote != at % 100 : errno != EFAULT)
            return 3;
    }
    stop = 1;
    pthread_join(sender, NULL);
    printf("bad addresses told\n");
    return 0;
}
