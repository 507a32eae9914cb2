// A function of the program's own under every name in names.h. It looks up the next library's at
// its first call and jumps there ever after, with all arguments and the stack as they were.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("hidden"))) void *forward_find(const char *name)
{
    void *next = dlsym(RTLD_NEXT, name);
    if (next == NULL)
        abort();
    return next;
}

// Behind the jump: the six registers of arguments, the count of vectors, the eight vectors.
__asm__(".text\n"
        "forward_first:\n"
        "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax; push %r11\n"
        "    sub $136, %rsp\n"
        "    movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\n"
        "    movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\n"
        "    mov %r10, %rdi\n"
        "    call forward_find\n"
        "    mov %rax, %r10\n"
        "    movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\n"
        "    movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\n"
        "    add $136, %rsp\n"
        "    pop %r11; pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\n"
        "    mov %r10, (%r11)\n"
        "    jmp *%r10\n");

#define EXPORT(name)                                                                               \
    __asm__(".section .rodata\n"                                                                   \
            "forward_name_" #name ": .asciz \"" #name "\"\n"                                       \
            ".data; .balign 8\n"                                                                   \
            "forward_slot_" #name ": .quad 0\n"                                                    \
            ".text\n"                                                                              \
            ".globl " #name "; .type " #name ", @function\n" #name ":\n"                           \
            "    cmpq $0, forward_slot_" #name "(%rip)\n"                                          \
            "    je 1f\n"                                                                          \
            "    jmp *forward_slot_" #name "(%rip)\n"                                              \
            "1:  lea forward_name_" #name "(%rip), %r10\n"                                         \
            "    lea forward_slot_" #name "(%rip), %r11\n"                                         \
            "    jmp forward_first\n");
#include "names.h"
