/* Calls that wait, and what ends them: cancellation, and handlers with and without SA_RESTART.
 * Prints what a program can see of it; the same natively and under Holdfast. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int ends[2];
static int cleaned;
static volatile sig_atomic_t alarms;

static void clean(void *argument)
{
	(void)argument;
	cleaned++;
}

static void *reads(void *argument)
{
	char byte;
	pthread_cleanup_push(clean, argument);
	if (read(ends[0], &byte, 1) == 1)
		puts("FAILED: nobody wrote");
	pthread_cleanup_pop(0);
	return argument;
}

static void *writes(void *argument)
{
	char bytes[4096] = {1};
	pthread_cleanup_push(clean, argument);
	while (write(ends[1], bytes, sizeof bytes) > 0)
		;
	pthread_cleanup_pop(0);
	return argument;
}

static void *opens(void *argument)
{
	pthread_cleanup_push(clean, argument);
	if (open("fifo", O_RDONLY) >= 0)
		puts("FAILED: nobody opened the other end");
	pthread_cleanup_pop(0);
	return argument;
}

static void must_end(const char *what, void *(*waits)(void *))
{
	pthread_t thread;
	void *result = NULL;
	cleaned = 0;
	pthread_create(&thread, NULL, waits, NULL);
	usleep(200000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	printf("%s: cancelled %d, cleaned %d\n", what, result == PTHREAD_CANCELED, cleaned);
}

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

/* A handler runs while an open waits for the other end. */
static void interrupted(int flags)
{
	struct sigaction action;
	pid_t child = 0;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_alarm;
	action.sa_flags = flags;
	sigaction(SIGALRM, &action, NULL);
	alarms = 0;
	if (flags & SA_RESTART && (child = fork()) == 0) {
		while (waitpid(-1, NULL, 0) > 0)
			;
		sleep(2);
		_exit(open("fifo", O_WRONLY) < 0);
	}
	alarm(1);
	errno = 0;
	int fd = open("fifo", O_RDONLY);
	printf("flags %x: opened %d, errno %d, alarms %d\n", flags, fd >= 0, fd < 0 ? errno : 0, (int)alarms);
	if (fd >= 0)
		close(fd);
	if (child)
		waitpid(child, NULL, 0);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pipe(ends) != 0 || mkfifo("fifo", 0600) != 0)
		return 1;
	must_end("read", reads);
	must_end("write", writes);
	must_end("open", opens);
	interrupted(0);
	interrupted(SA_RESTART);
	return 0;
}
