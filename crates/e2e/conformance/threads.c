/* Threads on shared descriptors: writes against writes, closes and duplicates; one that waits for another. */
#include "conform.h"
#include <sched.h>
#include <sys/fanotify.h>
#define THEME "threads"

static int fd, stop;
/* Writes made by threads that write for ever: on a busy machine a thread may wait long before its first. */
static long made;
static void wait_for_writes(int more) {
    long until = __atomic_load_n(&made, __ATOMIC_SEQ_CST) + more;
    while (__atomic_load_n(&made, __ATOMIC_SEQ_CST) < until) usleep(500);
}
static void *started[8];
static pthread_t thread[8];
static void start(int index, void *(*work)(void *)) { pthread_create(&thread[index], NULL, work, (void *)(long)index); }
static void *end(int index) {
    pthread_join(thread[index], &started[index]);
    return started[index];
}
static void end_all(int count) {
    for (int i = 0; i < count; i++)
        if (end(i)) say("thread %d: %s", i, (char *)started[i]);
}

static void *read_thrice(void *unused) {
    char part[8];
    int fd = open("a", O_RDONLY);
    for (int at = 0; at < 3; at++) pread(fd, part, sizeof part, at);
    close(fd);
    return unused;
}
/* Who has reads wait for permission is asked for each of them. */
CHECK(a_read_that_waits_for_permission, 20) {
    fd = make("a", 4096, 1);
    T(fsync(fd));
    for (int at = 0; at < 20; at++, usleep(5000)) T(pwrite(fd, "written", 7, 10 * at));
    for (int mask = FAN_ACCESS_PERM; mask <= 0x100000 /* FAN_PRE_ACCESS */; mask *= 8) {
        int judge = T(fanotify_init(FAN_CLASS_PRE_CONTENT | FAN_NONBLOCK, O_RDONLY)), asked = 0;
        if (judge < 0 || T(fanotify_mark(judge, FAN_MARK_ADD, mask, AT_FDCWD, "a")) != 0) continue;
        pthread_t reader;
        T(pthread_create(&reader, NULL, read_thrice, NULL));
        for (int over = 0; !over; usleep(1000)) {
            over = pthread_tryjoin_np(reader, NULL) == 0;
            ssize_t bytes = read(judge, big, 1000);
            struct fanotify_event_metadata *event = (void *)big;
            for (; FAN_EVENT_OK(event, bytes); event = FAN_EVENT_NEXT(event, bytes), asked++) {
                write(judge, &(struct fanotify_response){ event->fd, FAN_ALLOW }, sizeof(struct fanotify_response));
                close(event->fd);
            }
        }
        say("asked %d times", asked);
        close(judge);
        T(pwrite(fd, "again", 5, 100));
    }
    state(fd);
}

static void *write_blocks(void *index) {
    char block[1000];
    for (int i = 0; i < 200; i++)
        if (pwrite(fd, fill(block, sizeof block, (long)index * 200 + i), 1000, (i * 4 + (long)index) * 1000) != 1000) return "failed";
    return NULL;
}
CHECK(regions_of_their_own, 800) {
    fd = make("a", 0, 1);
    for (int i = 0; i < 4; i++) start(i, write_blocks);
    end_all(4);
    state(fd);
}
static void *append_rows(void *index) {
    char row[20];
    for (int i = 0; i < 200; i++) {
        sprintf(row, "thread %ld row %4d\n", (long)index, i);
        if (write(fd, row, 18) != 18) return "failed";
    }
    return NULL;
}
static void check_rows(int flags) {
    fd = T(open("a", O_RDWR | O_CREAT | flags, 0644));
    for (int i = 0; i < 4; i++) start(i, append_rows);
    end_all(4);
    T(lseek(fd, 0, SEEK_CUR));
    int next[4] = { 0 }, index, row;
    ssize_t bytes = T(pread(fd, big, sizeof big, 0));
    for (ssize_t at = 0; at < bytes; at += 18)
        if (sscanf(big + at, "thread %d row %4d\n", &index, &row) != 2 || index < 0 || index > 3 || row != next[index]++)
            say("torn or out of order at %zd", at);
    T(unlink("a"));
}
CHECK(appends_of_threads_are_whole, 800) { check_rows(O_APPEND); }
CHECK(writes_at_a_shared_cursor_are_whole, 800) { check_rows(0); }

static void *write_same_page(void *index) {
    char block[512];
    memset(block, 'a' + (long)index, sizeof block);
    for (int i = 0; i < 300; i++)
        if (pwrite(fd, block, sizeof block, 100) != sizeof block) return "failed";
    return NULL;
}
CHECK(the_same_bytes_are_never_mixed, 1201) {
    fd = make("a", 0, 1);
    for (int i = 0; i < 4; i++) start(i, write_same_page);
    end_all(4);
    T(pread(fd, big, 512, 100));
    int mixed = 0;
    for (int i = 1; i < 512; i++) mixed |= big[i] != big[0];
    say("mixed %d", mixed);
    T(pwrite(fd, "the end", 7, 100));
    T(ftruncate(fd, 107));
    state(fd);
}
static void *write_until_closed(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        ssize_t bytes = pwrite(fd, "0123456789", 10, 0);
        if (bytes != 10 && !(bytes == -1 && errno == EBADF)) return "a wrong result";
        __atomic_fetch_add(&made, bytes == 10, __ATOMIC_SEQ_CST);
    }
    return NULL;
}
CHECK(writes_while_another_closes, 100) {
    fd = 50;
    stop = 0;
    int kept = make("a", 10, 1);
    dup2(kept, fd);
    for (int i = 0; i < 2; i++) start(i, write_until_closed);
    for (int i = 0; i < 300; i++) {
        if (close(fd)) say("close: %s", errno_name(errno));
        if (dup2(kept, fd) != fd) say("dup2: %s", errno_name(errno));
        if (i % 50 == 0) wait_for_writes(20);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    end_all(2);
    T(pwrite(fd, "0123456789", 10, 0));
    file("a");
    descriptors();
}
CHECK(writes_while_another_duplicates_over_them, 100) {
    fd = 50;
    stop = 0;
    int one = make("a", 10, 1), other = make("b", 10, 1);
    dup2(one, fd);
    for (int i = 0; i < 2; i++) start(i, write_until_closed);
    for (int i = 0; i < 300; i++) {
        if (dup2(i % 2 ? one : other, fd) != fd) say("dup2: %s", errno_name(errno));
        if (i % 50 == 0) wait_for_writes(20);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    end_all(2);
    T(pwrite(one, "0123456789", 10, 0));
    T(pwrite(other, "0123456789", 10, 0));
    file("a");
    file("b");
}
static void *open_and_close(void *index) {
    char name[20];
    for (int i = 0; i < 100; i++) {
        sprintf(name, "f%ld", (long)index);
        int own = open(name, O_RDWR | O_CREAT | O_APPEND, 0644);
        if (own < 0 || write(own, name, 2) != 2) return "failed";
        if (i % 10 == 0 && fsync(own)) return "sync failed";
        if (close(own)) return "close failed";
    }
    return NULL;
}
CHECK(files_of_their_own, 400) {
    for (int i = 0; i < 4; i++) start(i, open_and_close);
    end_all(4);
    for (char name[] = "f0"; name[1] < '4'; name[1]++) file(name);
    descriptors();
}
static void *rename_back_and_forth(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++)
        if (rename(i % 2 ? "b" : "a", i % 2 ? "a" : "b")) return "rename failed";
    return NULL;
}
CHECK(writes_while_another_renames, 200) {
    fd = make("a", 0, 1);
    start(0, write_blocks);
    start(1, rename_back_and_forth);
    end_all(2);
    T(fsync(fd));
    file("a");
}
static void *sync_always(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
        if (fsync(fd) || fdatasync(fd)) return "sync failed";
    return NULL;
}
CHECK(writes_while_another_syncs, 133) {
    stop = 0;
    fd = make("a", 0, 1);
    start(0, write_blocks);
    start(1, write_blocks);
    start(2, sync_always);
    if (end(0) || end(1)) say("failed");
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    if (end(2)) say("failed");
    state(fd);
}
static void *truncate_and_grow(void *unused) {
    (void)unused;
    for (int i = 0; i < 100; i++)
        if (ftruncate(fd, 1000000 + i)) return "truncation failed";
    return NULL;
}
CHECK(writes_while_another_changes_the_size, 200) {
    fd = make("a", 0, 1);
    start(0, write_blocks);
    start(1, truncate_and_grow);
    end_all(2);
    state(fd);
}
static void *write_for_ever(void *unused) {
    (void)unused;
    for (;;) {
        pwrite(fd, "0123456789", 10, 0);
        __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}
CHECK(a_writer_is_cancelled, 10) {
    fd = make("a", 0, 1);
    for (int i = 0; i < 10; i++) {
        start(0, write_for_ever);
        wait_for_writes(5);
        pthread_cancel(thread[0]);
        IS(end(0) == PTHREAD_CANCELED);
        if (pwrite(fd, "parent", 6, 20) != 6) say("%s", errno_name(errno));
    }
    T(fsync(fd));
    state(fd);
}
static void *write_and_end_anywhere(void *index) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return write_for_ever(index);
}
CHECK(a_writer_that_may_end_anywhere_is_cancelled, 10) {
    fd = make("a", 0, 1);
    for (int i = 0; i < 10; i++) {
        start(0, write_and_end_anywhere);
        wait_for_writes(5);
        pthread_cancel(thread[0]);
        IS(end(0) == PTHREAD_CANCELED);
        if (pwrite(fd, "parent", 6, 20) != 6) say("%s", errno_name(errno));
    }
    int before = -1;
    T(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before));
    IS(before == PTHREAD_CANCEL_DEFERRED);
    T(write(fd, "anywhere", 8));
    T(pthread_setcanceltype(42, &before));
    T(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before));
    IS(before == PTHREAD_CANCEL_ASYNCHRONOUS);
    T(fsync(fd));
    state(fd);
}
static void *write_and_sync_for_ever(void *unused) {
    (void)unused;
    for (;;) {
        int own = open("b", O_RDWR | O_CREAT, 0644);
        write(own, "x", 1);
        __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
        fsync(own);
        close(own);
    }
    return NULL;
}
CHECK(a_writer_that_opens_and_syncs_is_cancelled, 1) {
    fd = make("a", 0, 1);
    for (int i = 0; i < 10; i++) {
        start(0, write_and_sync_for_ever);
        wait_for_writes(2);
        pthread_cancel(thread[0]);
        IS(end(0) == PTHREAD_CANCELED);
    }
    T(write(fd, "still", 5));
    file("a");
    file("b");
}
CHECK(many_short_threads, 200) {
    fd = make("a", 0, 1);
    void *one(void *index) {
        return pwrite(fd, "0123456789", 10, (long)index * 10) == 10 ? NULL : "failed";
    }
    for (long i = 0; i < 200; i++) {
        pthread_t short_one;
        void *result;
        pthread_create(&short_one, NULL, one, (void *)i);
        pthread_join(short_one, &result);
        if (result) say("failed");
    }
    state(fd);
}
CHECK(a_thread_on_a_small_stack, 1) {
    fd = make("a", 0, 1);
    void *one(void *unused) {
        (void)unused;
        return pwrite(fd, "0123456789", 10, 0) == 10 && fsync(fd) == 0 && rename("a", "b") == 0 ? NULL : "failed";
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    T(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    void *result = "not started";
    T(pthread_create(&thread[0], &attributes, one, NULL));
    pthread_join(thread[0], &result);
    T(result == NULL);
    file("b");
}
CHECK(a_thread_with_descriptors_of_its_own, 1) {
    static int other;
    fd = make("a", 0, 1);
    other = make("b", 0, 1);
    T(write(fd, "first,", 6));
    void *one(void *unused) {
        (void)unused;
        if (unshare(CLONE_FILES)) return "not unshared";
        dup2(other, fd);
        write(fd, "to b,", 5);
        return NULL;
    }
    start(0, one);
    end_all(1);
    T(write(fd, "to a", 4));
    file("a");
    file("b");
}
