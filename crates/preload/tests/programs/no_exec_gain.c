/* Runs a program in a process that may not make memory executable, as under MemoryDenyWriteExecute. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const int set_mdwe = 65, refuse_exec_gain = 1;
    if (prctl(set_mdwe, refuse_exec_gain, 0, 0, 0)) fputs("PR_SET_MDWE is not supported\n", stderr);
    execv(argv[1], argv + 1);
    return 127;
}
