// Writes to a file by calls that can be seen from outside of libc, then by stdio over the same
// bytes, which cannot where libc is not patched, and of which the file's size does not tell. Syncs
// each line and says so, then waits to be killed.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || write(fd, "begin\n", 6) != 6 || fsync(fd)) return 1;
    FILE *file = fdopen(fd, "r+");
    for (int number = 0; number < 6; number++) {
        rewind(file);
        if (fprintf(file, "%5d\n", number) < 0 || fflush(file) || fsync(fd)) return 2;
        printf("ack %d\n", number);
        fflush(stdout);
    }
    pause();
    return 0;
}
