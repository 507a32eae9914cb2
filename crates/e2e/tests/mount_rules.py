"""What a program sees of a directory: each call's errno or result, line by line. Run in an empty
directory natively and through the mount, as root and with calls as another user in between, and
compared. Inode numbers, times and free space are left out or brought into a form that compares."""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import subprocess
import sys

root = sys.argv[1]
os.chdir(root)
os.umask(0o022)
libc = ctypes.CDLL(None, use_errno=True)


def say(name, call, *args, **kwargs):
    try:
        told = call(*args, **kwargs)
    except OSError as error:
        told = errno.errorcode[error.errno]
    print(name, told, flush=True)
    return told


def facts(path):
    told = os.lstat(path)
    return oct(told.st_mode), told.st_uid, told.st_gid, told.st_nlink, told.st_size if not stat.S_ISDIR(told.st_mode) else "-"


def as_user(uid, gid, call):
    """Makes the call in a child of another user, with its own mask."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.umask(0o027)
        call()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def write(path, bytes, flags=0, mode=0o666):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode)
    try:
        return os.write(fd, bytes)
    finally:
        os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def names():
    say("mkdir", os.mkdir, "d", 0o777)
    say("mkdir again", os.mkdir, "d")
    say("facts", facts, "d")
    say("rmdir full", lambda: (write("d/f", b"x"), os.rmdir("d")))
    say("unlink a directory", os.unlink, "d")
    say("rmdir a file", os.rmdir, "d/f")
    say("below a file", os.open, "d/f/g", os.O_RDONLY)
    say("missing", os.stat, "none")
    say("long", write, "n" * 256, b"x")
    say("longest", write, "n" * 255, b"x")
    say("excl", write, "d/f", b"y", os.O_EXCL)
    say("directory to write", os.open, "d", os.O_WRONLY)
    say("symlink", os.symlink, "d/f", "s")
    say("symlink again", os.symlink, "d/f", "s")
    say("readlink", os.readlink, "s")
    say("through it", read, "s")
    say("nofollow", os.open, "s", os.O_RDONLY | os.O_NOFOLLOW)
    say("loop", lambda: (os.symlink("l", "l"), os.stat("l")))
    say("facts of a link", lambda: facts("s")[:4])
    say("chown of a link", os.lchown, "s", 5, 6)
    say("facts of a link", lambda: facts("s")[:4])
    say("times of a link", os.utime, "s", ns=(7, 8), follow_symlinks=False)
    say("times of a link", lambda: os.lstat("s").st_mtime_ns)
    say("link", os.link, "d/f", "h")
    say("facts", facts, "d/f")
    say("one inode", lambda: os.stat("d/f").st_ino == os.stat("h").st_ino)
    say("link a directory", os.link, "d", "dd")
    say("link to a name that is there", os.link, "d/f", "h")
    say("link of a symlink", os.link, "s", "s2", follow_symlinks=False)
    say("written by one name", write, "h", b"both", os.O_TRUNC)
    say("read by the other", read, "d/f")
    say("unlink", os.unlink, "h")
    say("facts", facts, "d/f")
    for kind, mode in (("fifo", stat.S_IFIFO), ("file", stat.S_IFREG), ("socket", stat.S_IFSOCK), ("null", stat.S_IFCHR)):
        say("mknod", os.mknod, kind, mode | 0o666, os.makedev(1, 3))
        say("facts", facts, kind)
    say("device", lambda: os.stat("null").st_rdev)
    say("list", lambda: sorted(os.listdir(".")))
    say("kinds", lambda: sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in os.scandir(".")))


def renames():
    def renameat2(old, new, flags):
        if libc.renameat2(-100, old, -100, new, flags) != 0:
            raise OSError(ctypes.get_errno(), "")

    write("a", b"a")
    write("b", b"bb")
    os.makedirs("x/y")
    say("over", os.rename, "a", "b")
    say("read", read, "b")
    say("missing", os.rename, "a", "b")
    say("into itself", os.rename, "x", "x/y/z")
    say("file over directory", os.rename, "b", "x")
    say("directory over file", os.rename, "x", "b")
    say("over a full directory", lambda: (os.mkdir("e"), os.rename("e", "x")))
    say("over an empty one", os.rename, "e", "x/y")
    say("noreplace", renameat2, b"b", b"x", 1)
    say("noreplace free", renameat2, b"b", b"c", 1)
    say("exchange", lambda: (write("b", b"new"), renameat2(b"b", b"c", 2), read("b"), read("c")))
    say("exchange missing", renameat2, b"b", b"none", 2)
    say("bad flags", renameat2, b"b", b"c", 3)
    say("open across", lambda: across())
    say("list", lambda: sorted(os.walk(".")))


def across():
    fd = os.open("b", os.O_RDWR)
    os.rename("b", "moved")
    os.write(fd, b"after")
    told = read("moved")
    os.unlink("moved")
    os.pwrite(fd, b"gone", 2)
    told = told, os.pread(fd, 100, 0), os.fstat(fd).st_nlink
    os.close(fd)
    return told


def modes():
    write("m", b"x", mode=0o644)
    say("facts", facts, "m")
    for mode in (0, 0o7777, 0o4755, 0o2755, 0o600):
        say("chmod", os.chmod, "m", mode)
        say("facts", facts, "m")
    os.chmod("m", 0o6755)
    say("chown takes privileges", os.chown, "m", 1234, 4321)
    say("facts", facts, "m")
    os.chmod("m", 0o6777)
    say("root's write keeps them", write, "m", b"y")
    say("facts", facts, "m")
    as_user(1001, 1001, lambda: say("another's write", write, "m", b"z"))
    say("facts", facts, "m")
    # Of root without the right to leave them only the kernel above the mount knows.
    os.chmod("m", 0o6777)
    kept_from = ["setpriv", "--inh-caps=-fsetid", "--bounding-set=-fsetid"]
    subprocess.run([*kept_from, "sh", "-c", "echo z >> m"], check=True)
    say("facts", facts, "m")
    os.chmod("m", 0o6777)
    as_user(1001, 1001, lambda: say("another's truncation", os.truncate, "m", 0))
    say("facts", facts, "m")
    # Whoever changes a file that is another's takes its rights away, by whatever call.
    def opened(call):
        fd = os.open("m", os.O_RDWR)
        try:
            return call(fd)
        finally:
            os.close(fd)

    for what, call in (
        ("write", lambda fd: os.write(fd, b"z" * 100)),
        ("allocation", lambda fd: os.posix_fallocate(fd, 0, 5000)),
        ("copy", lambda fd: os.copy_file_range(fd, fd, 50, 0, 100)),
    ):
        os.chmod("m", 0o6777)
        say("facts", facts, "m")
        as_user(1001, 1001, lambda: say("another's " + what, opened, call))
        say("facts", facts, "m")
    os.mkdir("open")
    os.chmod("open", 0o777)
    os.mkdir("group")
    os.chown("group", 0, 77)
    os.chmod("group", 0o2777)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)

    def make(where):
        say("create", write, where + "/file", b"mine")
        say("facts", facts, where + "/file")
        say("setuid", write, where + "/setuid", b"mine", mode=0o6777)
        say("facts", facts, where + "/setuid")
        say("mkdir", os.mkdir, where + "/dir", 0o777)
        say("facts", facts, where + "/dir")
        say("symlink", os.symlink, "file", where + "/link")
        say("facts", lambda: facts(where + "/link")[:4])
        say("fifo", os.mkfifo, where + "/fifo", 0o666)
        say("facts", facts, where + "/fifo")
        say("link", os.link, where + "/file", where + "/hard")
        say("facts", facts, where + "/hard")

    for where in ("open", "group", "sticky"):
        as_user(1001, 1002, lambda: make(where))
    as_user(1003, 1003, lambda: say("not his", os.unlink, "sticky/file"))
    as_user(1003, 1003, lambda: say("not readable", read, "open/file"))
    as_user(1003, 1003, lambda: say("not his to chmod", os.chmod, "open/file", 0o777))
    as_user(1003, 1003, lambda: say("not his to chown", os.chown, "open/file", 1003, 1003))
    as_user(1003, 1003, lambda: say("closed", os.mkdir, "closed"))
    as_user(1001, 1002, lambda: say("not to root", os.chown, "open/file", 0, 0))
    os.chmod("m", 0)
    as_user(1003, 1003, lambda: say("no access", os.access, "m", os.R_OK))
    say("root may", read, "m")


def attributes():
    write("t", b"x")
    for times in ((0, 0), (1, 999_999_999), (-5 * 10**9, 10**18)):
        say("utime", os.utime, "t", ns=times)
        say("times", lambda: (os.stat("t").st_atime_ns, os.stat("t").st_mtime_ns))
    before = os.stat("t").st_mtime_ns
    write("t", b"later")
    say("a write moves it", lambda: os.stat("t").st_mtime_ns != before)
    say("set", os.setxattr, "t", "user.a", b"one")
    say("create again", os.setxattr, "t", "user.a", b"two", os.XATTR_CREATE)
    say("replace missing", os.setxattr, "t", "user.b", b"two", os.XATTR_REPLACE)
    say("get", os.getxattr, "t", "user.a")
    say("get missing", os.getxattr, "t", "user.b")
    say("list", lambda: [name for name in os.listxattr("t") if name.startswith("user")])
    say("large", os.setxattr, "t", "user.large", b"x" * 1000)
    say("get large", lambda: len(os.getxattr("t", "user.large")))
    say("remove", os.removexattr, "t", "user.a")
    say("remove again", os.removexattr, "t", "user.a")
    say("no such space", os.setxattr, "t", "none.a", b"one")
    os.symlink("t", "tl")
    say("of a link", os.setxattr, "tl", "user.a", b"1", follow_symlinks=False)
    # An ACL: owner rw, user 1001 rw, group r, mask rw, others nothing.
    acl = bytes.fromhex("02000000" "01000600ffffffff" "02000600e9030000" "04000400ffffffff" "10000600ffffffff" "20000000ffffffff")
    say("acl", os.setxattr, "t", "system.posix_acl_access", acl)
    say("facts", facts, "t")
    say("get acl", lambda: os.getxattr("t", "system.posix_acl_access").hex())
    as_user(1001, 1001, lambda: say("let in", read, "t"))
    as_user(1002, 1002, lambda: say("kept out", read, "t"))
    say("chmod moves the mask", os.chmod, "t", 0o640)
    say("get acl", lambda: os.getxattr("t", "system.posix_acl_access").hex())
    os.mkdir("heirs")
    os.chmod("heirs", 0o777)
    say("default acl", os.setxattr, "heirs", "system.posix_acl_default", acl)
    as_user(1005, 1005, lambda: say("heir", write, "heirs/f", b"x"))
    say("facts", facts, "heirs/f")
    say("get acl", lambda: os.getxattr("heirs/f", "system.posix_acl_access").hex())
    say("mkdir heir", os.mkdir, "heirs/d")
    say("facts", facts, "heirs/d")
    say("inherits", lambda: os.getxattr("heirs/d", "system.posix_acl_default").hex())


def bytes_of_files():
    fd = os.open("f", os.O_RDWR | os.O_CREAT, 0o644)
    say("write", os.write, fd, b"0123456789" * 1000)
    say("past the end", os.pwrite, fd, b"end", 100_000)
    say("size", lambda: os.fstat(fd).st_size)
    say("hole", lambda: os.pread(fd, 10, 50_000))
    say("past the end", lambda: os.pread(fd, 10, 200_000))
    say("truncate", os.ftruncate, fd, 5)
    say("and back", os.ftruncate, fd, 12)
    say("zeros", lambda: os.pread(fd, 100, 0))
    say("by path", os.truncate, "f", 7)
    say("size", lambda: os.fstat(fd).st_size)
    say("below zero", os.ftruncate, fd, -1)
    say("a directory", lambda: (os.makedirs("k"), os.truncate("k", 0)))
    say("append", lambda: [write("f", b"+%d" % n, os.O_APPEND) for n in range(3)])
    say("read", read, "f")
    say("trunc", write, "f", b"new", os.O_TRUNC)
    say("read", lambda: os.pread(fd, 100, 0))
    say("sync", os.fsync, fd)
    say("datasync", os.fdatasync, fd)
    say("O_SYNC", write, "f", b"sync", os.O_SYNC)
    say("O_DSYNC", write, "f", b"dsync", os.O_DSYNC)
    say("fallocate", os.posix_fallocate, fd, 0, 10_000)
    say("size", lambda: os.fstat(fd).st_size)
    say("punch", lambda: libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)))
    say("keep size", lambda: libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(1 << 20)))
    say("size", lambda: os.fstat(fd).st_size)
    say("bad offset", lambda: (libc.fallocate(fd, 0, ctypes.c_long(-1), ctypes.c_long(1)), ctypes.get_errno()))
    sparse = os.open("sparse", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(sparse, b"x" * 65536, 1 << 20)
    os.fsync(sparse)
    say("data", os.lseek, sparse, 0, os.SEEK_DATA)
    say("hole", os.lseek, sparse, 1 << 20, os.SEEK_HOLE)
    say("no more", os.lseek, sparse, 2 << 20, os.SEEK_DATA)
    say("copy", os.copy_file_range, sparse, fd, 1000, 1 << 20, 0)
    say("copied", lambda: os.pread(fd, 10, 990))
    say("read-only", lambda: os.write(os.open("f", os.O_RDONLY), b"x"))
    say("write-only", lambda: os.read(os.open("f", os.O_WRONLY), 1))
    direct = say("direct", lambda: os.open("f", os.O_RDWR | os.O_DIRECT) > 0)
    map = mmap.mmap(fd, 8192)
    map[0:5] = b"store"
    map.flush()
    say("stored", lambda: os.pread(fd, 5, 0))
    os.pwrite(fd, b"write", 4096)
    say("seen", lambda: map[4096:4101])
    fcntl.lockf(fd, fcntl.LOCK_EX, 10)
    other = os.open("f", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    third = os.open("f", os.O_RDWR)
    say("flock", fcntl.flock, third, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def blocked():
        say("lockf", fcntl.lockf, os.open("f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 10)

    as_user(0, 0, blocked)
    dir = os.open(".", os.O_RDONLY)
    say("sync of a directory", os.fsync, dir)
    say("statvfs", lambda: (os.statvfs(".").f_namemax, os.statvfs(".").f_bsize, os.statvfs(".").f_blocks > 0))
    many = os.makedirs("many")
    for number in range(3000):
        os.close(os.open("many/%05d" % number, os.O_CREAT | os.O_WRONLY))
    say("many", lambda: len(os.listdir("many")) == len(set(os.listdir("many"))) == 3000)
    say("many with facts", lambda: sum(e.stat().st_size == 0 for e in os.scandir("many")))


for part in (names, renames, modes, attributes, bytes_of_files):
    print("==", part.__name__)
    os.mkdir(part.__name__)
    os.chdir(part.__name__)
    part()
    os.chdir("..")
