/* Appends numbered lines to a file, syncs each and says so: a program that no library can be
 * preloaded into, if it is linked statically. Arguments: the file, how many. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[16];
	int fd = argc == 3 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
	if (fd < 0) {
		perror("open");
		return 1;
	}
	for (int number = 0; number < atoi(argv[2]); number++) {
		snprintf(line, sizeof line, "%09d\n", number);
		if (write(fd, line, strlen(line)) != (ssize_t)strlen(line) || fsync(fd) != 0) {
			perror("write or fsync");
			return 1;
		}
		printf("ack %d\n", number);
		fflush(stdout);
	}
	return 0;
}
