/* Streams: libc opens, writes, seeks and closes without the PLT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void content(const char *path) {
    char buffer[8192];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(buffer, 1, sizeof buffer - 1, f) : 0;
    unsigned long sum = 5381;
    for (size_t i = 0; i < n; i++) sum = sum * 33 + (unsigned char)buffer[i];
    printf("%s: %zu bytes, sum %lx\n", path, n, sum);
    if (f) fclose(f);
}

int main(int argc, char **argv) {
    unsigned (*seen)(void) = (unsigned (*)(void))dlsym(RTLD_DEFAULT, "holdfast_seen_writes");
    unsigned before = seen ? seen() : 0;
    char block[1000];
    memset(block, 'x', sizeof block);
    FILE *f = fopen("89", "w");
    for (int i = 0; i < 89; i++) {
        fwrite(block, 1, sizeof block, f);
        fflush(f);
    }
    fclose(f);
    unsigned count = seen ? seen() - before : 89;
    printf("%u writes of 89 seen\n", count);
    content("89");

    f = fopen("a", "w+");
    for (int i = 0; i < 500; i++) fprintf(f, "line %d\n", i);
    fseek(f, 100, SEEK_SET);
    fputs("HERE", f);
    rewind(f);
    char text[64];
    printf("%s", fgets(text, sizeof text, f));
    fseek(f, 0, SEEK_END);
    printf("at %ld\n", ftell(f));
    fputs("end\n", f);
    fclose(f);
    content("a");
    f = fopen("a", "a");
    fputs("appended\n", f);
    f = freopen("b", "w", f);
    fputs("reopened\n", f);
    fclose(f);
    content("a");
    content("b");
    f = fopen("a", "r+");
    fputs("start", f);
    fclose(f);
    content("a");
    errno = 0;
    printf("%d %d\n", fopen("missing", "r") == NULL, errno);
    errno = 0;
    printf("%d %d\n", fopen("a", "wx") == NULL, errno);
    f = tmpfile();
    fputs("temporary", f);
    rewind(f);
    printf("%s\n", fgets(text, sizeof text, f));
    fclose(f);
    char name[] = "made-XXXXXX";
    int fd = mkstemp(name);
    dprintf(fd, "made %d\n", 1);
    f = fdopen(fd, "w");
    fputs("more\n", f);
    fclose(f);
    errno = 0;
    printf("%zd %d\n", write(fd, "x", 1), errno);
    content(name + (rename(name, "made") ? 0 : strlen(name)));
    content("made");
    f = fopen("/dev/full", "w");
    fputs("x", f);
    errno = 0;
    int failed = fflush(f);
    printf("%d %d\n", failed, errno);
    fclose(f);
    f = fopen("c", "w");
    setvbuf(f, NULL, _IONBF, 0);
    for (int i = 0; i < 10; i++) putc('0' + i, f);
    fclose(f);
    content("c");
    FILE *out = fopen("d", "w");
    for (int i = 0; i < 3; i++) {
        fputs("shared ", out);
        fflush(out);
        write(fileno(out), "cursor ", 7);
    }
    fclose(out);
    content("d");
    return 0;
}
