/* Runs a program in a process that may not make memory executable, as MemoryDenyWriteExecute has it:
     no_exec_gain mdwe PROGRAM...     by prctl, as systemd does from version 254 on
     no_exec_gain filter PROGRAM...   by a system call filter, as systemd does before
     no_exec_gain strict PROGRAM...   by a filter that refuses memfd_create too */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)
#define GIVE(value) BPF_STMT(BPF_RET | BPF_K, value)

static int refuse(int memfd) {
    struct sock_filter code[] = {
        LOAD(nr),
        IS(SYS_mmap, 4, 0),
        IS(SYS_mprotect, 8, 0),
        IS(SYS_pkey_mprotect, 7, 0),
        IS(memfd ? SYS_memfd_create : -1u, 8, 0),
        GIVE(SECCOMP_RET_ALLOW),
        LOAD(args[2]), /* mmap: writable and executable at once */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC),
        IS(PROT_WRITE | PROT_EXEC, 4, 0),
        GIVE(SECCOMP_RET_ALLOW),
        GIVE(SECCOMP_RET_ALLOW),
        LOAD(args[2]), /* mprotect: executable */
        HAS(PROT_EXEC, 0, 1),
        GIVE(SECCOMP_RET_ERRNO | EPERM),
        GIVE(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
    const int set_mdwe = 65, refuse_exec_gain = 1;
    int failed = 0;
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "mdwe")) failed = prctl(set_mdwe, refuse_exec_gain, 0, 0, 0);
    else failed = refuse(!strcmp(argv[1], "strict"));
    if (failed) fprintf(stderr, "%s is not supported\n", argv[1]);
    execvp(argv[2], argv + 2);
    return 127;
}
