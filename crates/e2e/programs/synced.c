/* Whether the kernel itself makes the writes synchronous that libc makes to a descriptor which was opened so. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int fd = open("data", O_WRONLY | O_CREAT | O_TRUNC | O_SYNC, 0600);
    if (argc != 2 || write(fd, "first", 5) != 5) return 1;
    if (!strcmp(argv[1], "dprintf")) dprintf(fd, "%d", 2);
    else fflush(fdopen(fd, "w"));
    char path[64];
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "r");
    if (!info || fscanf(info, "pos: %*d flags: %o", &flags) != 1) return 2;
    puts((flags & O_SYNC) == O_SYNC ? "synchronous" : "not synchronous");
    return 0;
}
