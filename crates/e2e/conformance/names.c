/* Names: renaming, linking, removing, with the files open and closed. */
#include "conform.h"
#define THEME "names"

CHECK(rename_of_an_open_file, 3) {
    int fd = make("a", 10, 1);
    T(rename("a", "b"));
    T(write(fd, "after", 5));
    T(fsync(fd));
    file("a");
    file("b");
    int again = T(open("a", O_WRONLY | O_CREAT | O_EXCL, 0644));
    T(write(again, "another", 7));
    file("a");
    file("b");
}
CHECK(rename_over_an_open_file, 3) {
    int fd = make("a", 10, 1), victim = make("b", 20, 2);
    T(rename("a", "b"));
    T(write(victim, "unseen", 6));
    T(write(fd, "seen", 4));
    state(victim);
    state(fd);
    file("b");
    T(fsync(victim));
    T(fsync(fd));
}
CHECK(rename_over_itself_and_its_link, 2) {
    int fd = make("a", 10, 1);
    T(rename("a", "a"));
    T(link("a", "b"));
    T(rename("a", "b"));
    file("a");
    file("b");
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(rename_again_and_again, 40) {
    int fd = make("n0", 0, 1);
    char from[20], to[20];
    for (int i = 0; i < 40; i++) {
        sprintf(from, "n%d", i);
        sprintf(to, "n%d", i + 1);
        if (write(fd, to, strlen(to)) < 0 || rename(from, to)) say("%s at %d", errno_name(errno), i);
    }
    T(fsync(fd));
    file("n40");
}
CHECK(rename_into_another_directory, 4) {
    int fd = make("a", 10, 1);
    T(mkdir("d", 0755));
    T(mkdir("d/e", 0755));
    T(rename("a", "d/b"));
    T(write(fd, "x", 1));
    T(rename("d/b", "d/e/c"));
    T(write(fd, "y", 1));
    T(rename("d", "moved"));
    T(write(fd, "z", 1));
    T(fsync(fd));
    file("moved/e/c");
}
CHECK(rename_of_a_directory_with_open_files, 5) {
    T(mkdir("d", 0755));
    int fd = make("d/a", 10, 1), dir = T(open("d", O_RDONLY | O_DIRECTORY));
    T(rename("d", "e"));
    T(write(fd, "x", 1));
    T(fsync(dir));
    T(mkdir("d", 0755));
    int other = make("d/a", 5, 2);
    T(write(other, "other", 5));
    T(unlink("e/a"));
    T(write(fd, "y", 1));
    T(rmdir("e"));
    file("d/a");
}
CHECK(rename_that_fails, 1) {
    int fd = make("a", 10, 1);
    T(mkdir("d", 0755));
    T(mkdir("d/e", 0755));
    T(rename("missing", "b"));
    T(rename("a", "missing/b"));
    T(rename("a", "d"));
    T(rename("d", "a"));
    T(rename("d", "d/e/f"));
    T(rename("a", ""));
    T(rename("", "b"));
    T(rename("a/b", "c"));
    T(rename("a", "/proc/a"));
    T(rename("a", "/dev/shm/never"));
    T(renameat(99, "a", AT_FDCWD, "b"));
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", 0x100));
    T(write(fd, "still", 5));
    file("a");
}
CHECK(rename_without_replacing, 4) {
    int fd = make("a", 10, 1), other = make("b", 20, 2);
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE));
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE));
    T(write(fd, "x", 1));
    T(write(other, "y", 1));
    file("a");
    file("b");
    file("c");
}
CHECK(rename_exchanges, 3) {
    int fd = make("a", 10, 1), other = make("b", 20, 2);
    T(write(fd, "x", 1));
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE));
    T(write(fd, "one", 3));
    T(write(other, "other", 5));
    T(fsync(fd));
    file("a");
    file("b");
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "missing", RENAME_EXCHANGE));
    T(mkdir("d", 0755));
    T(renameat2(AT_FDCWD, "a", AT_FDCWD, "d", RENAME_EXCHANGE));
    file("d");
    T(renameat2(AT_FDCWD, "d", AT_FDCWD, "a", RENAME_EXCHANGE | RENAME_NOREPLACE));
}
CHECK(rename_leaves_a_whiteout, 2) {
    int fd = make("a", 10, 1);
    if (renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_WHITEOUT)) return;
    T(write(fd, "x", 1));
    file("a");
    file("b");
}
CHECK(rename_through_symbolic_links, 2) {
    int fd = make("a", 10, 1);
    T(symlink("a", "s"));
    T(rename("s", "t"));
    T(write(fd, "x", 1));
    T(rename("a", "t"));
    file("t");
    file("a");
}
CHECK(atomic_replacement_of_a_file, 20) {
    for (int i = 0; i < 20; i++) {
        char text[30];
        int bytes = sprintf(text, "version %d", i);
        int fd = open("new", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (write(fd, text, bytes) != bytes || fsync(fd) || close(fd) || rename("new", "current")) say("%s", errno_name(errno));
        int dir = open(".", O_RDONLY);
        if (fsync(dir) || close(dir)) say("%s", errno_name(errno));
    }
    file("current");
    file("new");
}
CHECK(replacement_while_a_reader_reads, 3) {
    close(make("a", 100, 1));
    int reader = T(open("a", O_RDONLY)), fd = make("b", 50, 2);
    T(rename("b", "a"));
    T(write(fd, "x", 1));
    T(read(reader, big, 1000));
    T(fstat(reader, &(struct stat){ 0 }));
    state(reader);
    file("a");
}
CHECK(links_show_the_same_content, 4) {
    int fd = make("a", 10, 1);
    T(link("a", "b"));
    T(write(fd, "x", 1));
    int other = T(open("b", O_WRONLY | O_APPEND));
    T(write(other, "y", 1));
    T(unlink("a"));
    T(write(fd, "z", 1));
    T(fsync(fd));
    state(fd);
    file("b");
}
CHECK(links_of_many_names, 10) {
    int fd = make("n0", 0, 1);
    char name[20];
    for (int i = 1; i < 10; i++) {
        sprintf(name, "n%d", i);
        T(link("n0", name));
        T(write(fd, name, 2));
    }
    for (int i = 0; i < 9; i++) {
        sprintf(name, "n%d", i);
        T(unlink(name));
    }
    T(write(fd, "last", 4));
    state(fd);
    T(unlink("n9"));
    state(fd);
}
CHECK(links_removed_in_reverse, 3) {
    int fd = make("a", 0, 1);
    T(write(fd, "first", 5));
    T(link("a", "b"));
    T(link("a", "c"));
    T(unlink("b"));
    T(unlink("c"));
    T(write(open("c", O_WRONLY | O_CREAT, 0644), "another", 7));
    T(write(fd, ", second", 8));
    file("a");
    file("c");
}
CHECK(links_that_fail, 1) {
    int fd = make("a", 10, 1);
    T(link("missing", "b"));
    T(link("a", "a"));
    T(link("a", "missing/b"));
    T(link(".", "b"));
    T(link("a", "/dev/shm/never"));
    T(linkat(AT_FDCWD, "a", AT_FDCWD, "b", 0x1));
    T(linkat(99, "a", AT_FDCWD, "b", 0));
    T(linkat(fd, "", AT_FDCWD, "b", 0));
    state(fd);
}
CHECK(links_by_descriptor, 2) {
    int fd = make("a", 10, 1);
    T(linkat(fd, "", AT_FDCWD, "b", AT_EMPTY_PATH));
    T(linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "c", AT_SYMLINK_FOLLOW));
    T(unlink("a"));
    T(write(fd, "x", 1));
    file("b");
    file("c");
}
CHECK(links_to_symbolic_links, 1) {
    close(make("a", 10, 1));
    T(symlink("a", "s"));
    T(link("s", "t"));
    T(linkat(AT_FDCWD, "s", AT_FDCWD, "u", AT_SYMLINK_FOLLOW));
    file("t");
    file("u");
    file("a");
}
CHECK(a_removed_file_lives_on, 6) {
    int fd = make("a", 10, 1);
    T(unlink("a"));
    T(unlink("a"));
    T(write(fd, "one", 3));
    T(pwrite(fd, "two", 3, 1000));
    T(ftruncate(fd, 500));
    T(fsync(fd));
    state(fd);
    int other = make("a", 5, 2);
    T(write(fd, "old", 3));
    T(write(other, "new", 3));
    state(fd);
    file("a");
}
CHECK(a_file_removed_before_its_first_write, 0) {
    int fd = T(open("a", O_RDWR | O_CREAT, 0600));
    T(unlink("a"));
    T(write(fd, "temporary", 9));
    T(fsync(fd));
    T(ftruncate(fd, 4));
    state(fd);
}
CHECK(removal_and_creation_again_and_again, 61) {
    for (int i = 0; i < 60; i++) {
        int fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0644);
        if (write(fd, "journal", 7) != 7 || fsync(fd) || close(fd) || unlink("a")) say("%s at %d", errno_name(errno), i);
    }
    file("a");
    close(make("a", 10, 3));
    file("a");
}
CHECK(removal_that_fails, 2) {
    int fd = make("a", 10, 1);
    T(mkdir("d", 0755));
    T(unlink("missing"));
    T(unlink("d"));
    T(unlink("a/b"));
    T(unlink("a/"));
    T(unlink(""));
    T(unlinkat(AT_FDCWD, "a", AT_REMOVEDIR));
    T(unlinkat(AT_FDCWD, "a", 0x1));
    T(unlinkat(99, "a", 0));
    T(rmdir("a"));
    T(rmdir("missing"));
    T(remove("missing"));
    close(make("d/x", 0, 1));
    T(rmdir("d"));
    T(remove("d"));
    T(rmdir("."));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(removal_by_other_calls, 2) {
    int fd = make("a", 10, 1);
    T(mkdir("d", 0755));
    T(remove("a"));
    say("%d", remove("d"));
    T(symlink("a", "s"));
    T(unlinkat(AT_FDCWD, "s", 0));
    T(mkdir("d", 0755));
    T(unlinkat(AT_FDCWD, "d", AT_REMOVEDIR));
    T(write(fd, "x", 1));
    state(fd);
}
CHECK(a_directory_removed_under_its_file, 2) {
    T(mkdir("d", 0755));
    int fd = make("d/a", 10, 1);
    T(chdir("d"));
    T(unlink("a"));
    T(rmdir("../d"));
    T(write(fd, "x", 1));
    T(open("b", O_WRONLY | O_CREAT, 0644));
    T(mkdir("e", 0755));
    T(chdir(".."));
    T(chdir("."));
    state(fd);
}
CHECK(directories_of_every_kind_of_call, 0) {
    T(mkdir("d", 0755));
    T(mkdir("d", 0755));
    T(mkdirat(AT_FDCWD, "e", 0700));
    T(mkdir("missing/d", 0755));
    T(symlink("e", "s"));
    T(symlinkat("nowhere", AT_FDCWD, "t"));
    T(symlink("x", "s"));
    T(rmdir("s"));
    T(rmdir("e"));
    T(readlink("t", big, 100));
    file("d");
    file("s");
}
CHECK(names_of_nodes, 0) {
    T(mknod("regular", S_IFREG | 0644, 0));
    T(mkfifo("fifo", 0600));
    T(mknodat(AT_FDCWD, "null", S_IFCHR | 0600, makedev(1, 3)));
    T(write(open("null", O_WRONLY), "x", 1));
    file("regular");
    file("fifo");
    T(unlink("fifo"));
    int fd = T(open("regular", O_RDWR | O_CREAT, 0644));
    T(fsync(fd));
}
CHECK(a_node_that_is_a_file, 2) {
    T(mknod("a", S_IFREG | 0600, 0));
    int fd = T(open("a", O_RDWR));
    T(write(fd, "x", 1));
    T(fsync(fd));
    T(write(fd, "y", 1));
    file("a");
}
CHECK(listing_shows_what_was_done, 2) {
    close(make("a", 1, 1));
    close(make("b", 1, 1));
    T(rename("a", "c"));
    T(unlink("b"));
    T(mkdir("d", 0755));
    DIR *dir = opendir(".");
    char seen[5] = { 0 };
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] >= 'a' && entry->d_name[0] <= 'd' && !entry->d_name[1]) seen[entry->d_name[0] - 'a'] = 1;
    say("%d%d%d%d", seen[0], seen[1], seen[2], seen[3]);
    closedir(dir);
}
CHECK(temporary_names, 3) {
    char name[] = "tmpXXXXXX", other[] = "otherXXXXXX.c", dir[] = "dirXXXXXX";
    int fd = T(mkstemp(name));
    T(write(fd, "x", 1));
    T(fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    T(rename(name, "a"));
    fd = T(mkostemps(other, 2, O_APPEND | O_CLOEXEC));
    T(write(fd, "y", 1));
    T(fcntl(fd, F_GETFD));
    T(rename(other, "b"));
    P(mkdtemp(dir));
    T(rmdir(dir));
    T(write(fd, "z", 1));
    file("a");
    file("b");
}
CHECK(names_inside_a_new_root, 5) {
    T(mkdir("root", 0755));
    T(chroot("root"));
    T(chdir("/"));
    int fd = T(open("/a", O_RDWR | O_CREAT, 0644));
    T(write(fd, "inside", 6));
    T(rename("/a", "/b"));
    T(write(fd, "x", 1));
    T(link("/b", "/c"));
    T(unlink("/b"));
    T(write(fd, "y", 1));
    T(fsync(fd));
    state(fd);
    T(unlink("/c"));
    T(write(fd, "z", 1));
    state(fd);
    int other = T(open("d", O_RDWR | O_CREAT, 0644));
    T(write(other, "d", 1));
    T(truncate("/d", 100));
    file("/d");
}
