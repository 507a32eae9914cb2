// Writes from memory of which the first page comes late and the second cannot be read. While the
// library waits for the first, another thread sends a signal that has a handler, so that it is put
// off when the second faults: each write must be short, as natively, and end nobody.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 200 };

static int faults;
static pthread_t writer;
static atomic_int taken;

static void handle(int signal) { taken++; }

static void *supply(void *pages) {
    struct uffd_msg fault;
    for (;;) {
        if (read(faults, &fault, sizeof fault) != sizeof fault)
            return NULL;
        // The signal ends the wait for the page, which then begins again: a second message may come.
        pthread_kill(writer, SIGUSR1);
        struct uffdio_zeropage page = {.range = {.start = (unsigned long)pages, .len = PAGE}};
        ioctl(faults, UFFDIO_ZEROPAGE, &page);
    }
}

int main(int count, char **arguments) {
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0644);
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    if (fd < 0 || pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) != 0 ||
        sigaction(SIGUSR1, &action, NULL) != 0 || pwrite(fd, pages, PAGE, 0) != PAGE || fsync(fd) != 0)
        return 2;
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register first = {.range = {.start = (unsigned long)pages, .len = PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    writer = pthread_self();
    pthread_t supplier;
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0 || ioctl(faults, UFFDIO_REGISTER, &first) != 0 ||
        pthread_create(&supplier, NULL, supply, pages) != 0)
        return 4;
    for (int at = 1; at <= ROUNDS; at++) {
        if (madvise(pages, PAGE, MADV_DONTNEED) != 0)
            return 5;
        if (pwrite(fd, pages + PAGE - at, PAGE, 0) != at)
            return 3;
    }
    if (taken < ROUNDS)
        return 6;
    printf("bad addresses told\n");
    return 0;
}
