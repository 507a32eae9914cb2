/* Writes a word to a file, from a program that cannot be followed for one reason or another.
 * Arguments: the reason, the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void *argument)
{
	(void)argument;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "loads")) {
		/* What it puts there would be code. */
		void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0)
			return 3;
	} else if (!strcmp(argv[1], "shares")) {
		char *stack = malloc(65536);
		int pid = clone(child, stack + 65536, CLONE_VM | SIGCHLD, NULL);
		if (pid < 0 || waitpid(pid, NULL, 0) != pid)
			return 4;
	}
#ifdef OLD_CALLS
	/* A call in the way of programs for 32 bits: getpid. */
	if (!strcmp(argv[1], "old")) {
		int pid;
		__asm__ volatile("int $0x80" : "=a"(pid) : "a"(20) : "r8", "r9", "r10", "r11", "memory");
		if (pid != getpid())
			return 5;
	}
#endif
#ifdef BETWEEN_JUMPS
	/* A call that jumps lead to from both sides: nothing beside it can be replaced. */
	if (!strcmp(argv[1], "jumps")) {
		long pid = 39;
		__asm__ volatile("jmp 2f\n1: jmp 3f\n2: syscall\n3: jmp 4f\n jmp 1b\n jmp 2b\n4:"
				 : "+a"(pid) : : "rcx", "r11", "memory");
		if (pid != getpid())
			return 6;
	}
#endif
	int fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, "word", 4) != 4 || fsync(fd) != 0 || write(fd, "word", 4) != 4 || fsync(fd) != 0)
		return 1;
	return 0;
}
