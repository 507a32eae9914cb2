/* stdio on files: modes, buffers, positions. */
#include "conform.h"
#include <wchar.h>
#define THEME "streams"

static void close_and_tell(FILE *stream, const char *path) {
    T(fclose(stream));
    file(path);
}
/* One mode on a file with content and on a missing one. */
static void mode(const char *mode) {
    close(make("full", 100, 1));
    const char *names[] = { "full", "missing" };
    for (int i = 0; i < 2; i++) {
        say("%s as %s", names[i], mode);
        FILE *stream = P(fopen(names[i], mode));
        if (!stream) continue;
        T(fileno(stream));
        T(fcntl(fileno(stream), F_GETFL));
        T(fcntl(fileno(stream), F_GETFD));
        T(fwrite("written", 1, 7, stream));
        T(fflush(stream));
        T(ftell(stream));
        T(fseek(stream, 3, SEEK_SET));
        T(fread(big, 1, 5, stream));
        T(fseek(stream, 0, SEEK_CUR));
        T(fputs("more", stream));
        T(ferror(stream));
        close_and_tell(stream, names[i]);
    }
}
#define MODE_CHECK(NAME, WRITES, MODE) CHECK(NAME, WRITES) { mode(MODE); }
MODE_CHECK(mode_r, 1, "r")
MODE_CHECK(mode_r_plus, 3, "r+")
MODE_CHECK(mode_w, 5, "w")
MODE_CHECK(mode_w_plus, 5, "w+")
MODE_CHECK(mode_a, 5, "a")
MODE_CHECK(mode_a_plus, 5, "a+")
MODE_CHECK(mode_wx, 3, "wx")
MODE_CHECK(mode_w_plus_x_e, 3, "w+xe")
MODE_CHECK(mode_rb_plus, 3, "rb+")
MODE_CHECK(mode_ae, 5, "ae")
MODE_CHECK(mode_unknown, 1, "q")
MODE_CHECK(mode_rm, 1, "rm")

CHECK(buffering_of_every_kind, 602) {
    static char buffer[5000];
    for (int kind = 0; kind < 4; kind++) {
        FILE *stream = P(fopen("a", kind % 2 ? "w" : "w+"));
        T(kind == 0 ? setvbuf(stream, NULL, _IONBF, 0) : kind == 1 ? setvbuf(stream, buffer, _IOFBF, 5000)
          : kind == 2 ? setvbuf(stream, NULL, _IOLBF, 100) : setvbuf(stream, NULL, _IOFBF, 1 << 16));
        for (int i = 0; i < 300; i++) fprintf(stream, "row %d\n", i * i);
        struct stat st;
        stat("a", &st);
        say("%ld bytes so far", (long)st.st_size);
        close_and_tell(stream, "a");
    }
}
CHECK(flush_and_sync, 21) {
    FILE *stream = P(fopen("a", "w"));
    for (int i = 0; i < 20; i++) {
        fprintf(stream, "number %d\n", i);
        if (fflush(stream) || fsync(fileno(stream))) say("%s", errno_name(errno));
    }
    T(ftell(stream));
    T(fseek(stream, 0, SEEK_SET));
    T(fputs("NUMBER", stream));
    close_and_tell(stream, "a");
}
CHECK(positions, 5) {
    FILE *stream = P(fopen("a", "w+"));
    fpos_t place;
    T(fputs("0123456789", stream));
    T(fgetpos(stream, &place));
    T(fseeko(stream, -4, SEEK_END));
    T(fgetc(stream));
    T(ungetc('x', stream));
    T(fgetc(stream));
    T(fseek(stream, 0, SEEK_CUR));
    T(fputc('Y', stream));
    T(ftello(stream));
    T(fsetpos(stream, &place));
    T(fputs("end", stream));
    rewind(stream);
    T(fputs("start", stream));
    T(fseek(stream, -100, SEEK_SET));
    T(fseek(stream, 50, SEEK_SET));
    T(fputs("far", stream));
    close_and_tell(stream, "a");
}
CHECK(reading_and_writing_in_turn, 11) {
    close(make("a", 20000, 1));
    FILE *stream = P(fopen("a", "r+"));
    for (int i = 0; i < 10; i++) {
        T(fread(big, 1, 777, stream));
        T(fseek(stream, 0, SEEK_CUR));
        T(fprintf(stream, "row %d", i));
        T(fflush(stream));
        T(ftell(stream));
    }
    close_and_tell(stream, "a");
}
CHECK(appending_and_reading, 2) {
    close(make("a", 100, 1));
    FILE *stream = P(fopen("a", "a+"));
    T(ftell(stream));
    T(fread(big, 1, 10, stream));
    T(fseek(stream, 0, SEEK_SET));
    T(fputs("at the end", stream));
    T(ftell(stream));
    T(fseek(stream, 5, SEEK_SET));
    T(fread(big, 1, 10, stream));
    close_and_tell(stream, "a");
}
CHECK(a_stream_opened_anew, 3) {
    FILE *stream = P(fopen("a", "w"));
    T(fputs("to a", stream));
    stream = P(freopen("b", "w+", stream));
    T(fileno(stream));
    T(fputs("to b", stream));
    stream = P(freopen(NULL, "a", stream));
    T(fputs(" more", stream));
    close_and_tell(stream, "b");
    file("a");
    stream = P(fopen("a", "r"));
    P(freopen("missing/c", "w", stream));
    descriptors();
}
CHECK(standard_output_opened_anew, 1) {
    int saved = T(dup(1));
    P(freopen("a", "w", stdout));
    T(printf("to the file\n"));
    T(puts("line"));
    T(fflush(stdout));
    T(fileno(stdout));
    T(dup2(saved, 1));
    T(close(saved));
    file("a");
}
CHECK(a_stream_on_a_descriptor, 3) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "by call,", 8));
    FILE *stream = P(fdopen(fd, "w"));
    T(fputs("by stream,", stream));
    T(write(fd, "by call again,", 14));
    T(fflush(stream));
    T(lseek(fd, 0, SEEK_CUR));
    T(fileno(stream) == fd);
    P(fdopen(99, "w"));
    P(fdopen(open("a", O_RDONLY), "w"));
    close_and_tell(stream, "a");
    T(write(fd, "x", 1));
}
CHECK(a_stream_to_append_on_a_descriptor, 2) {
    int fd = make("a", 10, 1);
    FILE *stream = P(fdopen(fd, "a"));
    T(fcntl(fd, F_GETFL));
    T(fputs("at the end", stream));
    close_and_tell(stream, "a");
}
CHECK(truncation_under_a_stream, 3) {
    FILE *stream = P(fopen("a", "w+"));
    T(fputs("0123456789", stream));
    T(fflush(stream));
    T(ftruncate(fileno(stream), 3));
    T(fputs("abc", stream));
    T(fflush(stream));
    rewind(stream);
    T(fread(big, 1, 100, stream));
    T(ftruncate(fileno(stream), 0));
    rewind(stream);
    T(fputs("new", stream));
    close_and_tell(stream, "a");
}
CHECK(large_blocks, 5) {
    FILE *stream = P(fopen("a", "w"));
    fill(big, sizeof big, 1);
    T(fwrite(big, 1, 100, stream));
    T(fwrite(big, 1, sizeof big, stream));
    T(fwrite(big, 1000, 77, stream));
    close_and_tell(stream, "a");
}
CHECK(characters_and_lines, 2) {
    FILE *stream = P(fopen("a", "w+"));
    for (int i = 0; i < 5000; i++) putc('a' + i % 26, stream);
    T(putc_unlocked('\n', stream));
    T(fputc('\n', stream));
    T(putw(77, stream));
    rewind(stream);
    char *line = NULL;
    size_t room = 0;
    T(getline(&line, &room, stream));
    T(getdelim(&line, &room, 'M', stream));
    T(feof(stream));
    close_and_tell(stream, "a");
}
CHECK(wide_characters, 2) {
    FILE *stream = P(fopen("a", "w"));
    T(fwide(stream, 1));
    T(fputws(L"wide characters", stream));
    T(fwprintf(stream, L" %d\n", 5));
    close_and_tell(stream, "a");
}
CHECK(formatted_output_on_descriptors, 3) {
    int fd = T(open("a", O_WRONLY | O_CREAT, 0644));
    T(dprintf(fd, "number %d %s\n", 5, "five"));
    T(dprintf(fd, "%5000d\n", 7));
    T(dprintf(99, "x"));
    T(lseek(fd, 0, SEEK_CUR));
    file("a");
}
CHECK(streams_that_fail, 1) {
    P(fopen("missing/a", "w"));
    P(fopen(".", "w"));
    close(make("a", 10, 1));
    FILE *stream = P(fopen("a", "r"));
    T(fputs("x", stream));
    T(ferror(stream) != 0);
    clearerr(stream);
    T(ferror(stream));
    T(fclose(stream));
    stream = P(fopen("/dev/full", "w"));
    T(fputs("x", stream));
    T(fflush(stream));
    T(fclose(stream));
    stream = P(fopen("a", "w"));
    T(fputs("lost", stream));
    T(close(fileno(stream)));
    T(fclose(stream));
    file("a");
}
CHECK(a_stream_at_the_size_limit, 1) {
    struct rlimit limit = { 1000, RLIM_INFINITY };
    signal(SIGXFSZ, SIG_IGN);
    FILE *stream = P(fopen("a", "w"));
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 1000; i++) fputs("0123456789", stream);
    T(fflush(stream));
    T(ferror(stream) != 0);
    Q(fclose(stream));
    file("a");
}
CHECK(memory_streams, 0) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = P(open_memstream(&text, &bytes));
    T(fputs("memory", stream));
    T(fclose(stream));
    say("%s %zu", text, bytes);
    stream = P(fmemopen(big, 100, "w"));
    T(fputs("memory", stream));
    T(fclose(stream));
    say("%s", big);
}
CHECK(temporary_streams, 0) {
    FILE *stream = P(tmpfile());
    T(fputs("temporary", stream));
    T(fflush(stream));
    rewind(stream);
    T(fread(big, 1, 100, stream));
    T(fileno(stream));
    T(fclose(stream));
    descriptors();
}
CHECK(a_stream_shared_with_a_child, 3) {
    FILE *stream = P(fopen("a", "w"));
    T(fputs("parent,", stream));
    T(fflush(stream));
    CHILD(fputs("child,", stream); T(fclose(stream)));
    T(fputs("parent again", stream));
    close_and_tell(stream, "a");
}
CHECK(a_buffer_written_twice_by_exit, 2) {
    FILE *stream = P(fopen("a", "w"));
    T(fputs("unflushed,", stream));
    pid_t pid = fork();
    if (pid == 0) exit(0);
    reap("exit", pid);
    close_and_tell(stream, "a");
}
CHECK(all_streams_are_flushed_at_exit, 2) {
    CHILD(fputs("one", fopen("a", "w")); fputs("other", fopen("b", "a")); exit(3));
    file("a");
    file("b");
    CHILD(fputs("one", fopen("a", "w")); _exit(3));
    file("a");
}
static ssize_t take(void *cookie, const char *text, size_t bytes) { return write(*(int *)cookie, text, bytes); }
CHECK(streams_of_own_make, 1) {
    int fd = make("a", 0, 1);
    FILE *stream = P(fopencookie(&fd, "w", (cookie_io_functions_t){ .write = take }));
    T(fputs("cookie", stream));
    close_and_tell(stream, "a");
}
CHECK(streams_of_several_threads, 3) {
    static FILE *stream;
    stream = P(fopen("a", "w"));
    void *work(void *unused) {
        (void)unused;
        for (int i = 0; i < 500; i++) fputs("0123456\n", stream);
        return NULL;
    }
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    close_and_tell(stream, "a");
}
