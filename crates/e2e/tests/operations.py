"""Random file operations from a seed, the same on every run: all ways to write, cut, move and remove files.

Arguments: directory, seed, number of operations, and optionally `acked`: then only operations that are each durable by
themselves are done, and `ack N` is printed after each. Otherwise a digest of reads is printed, to be compared.
"""
import ctypes, hashlib, mmap, os, random, sys

os.chdir(sys.argv[1])
pick = random.Random(int(sys.argv[2]))
count = int(sys.argv[3])
acked = len(sys.argv) > 4
names = ["f%d" % n for n in range(6)]
digest = hashlib.sha256()
extents = 300_000
libc = ctypes.CDLL(None)


def data():
    size = pick.choice([1, 7, 64, 511, 512, 4095, 4096, 4097, 20_000, 70_000])
    return pick.randbytes(pick.randint(1, size))


def exists(name):
    # Unlike os.path.exists, which takes a disk that fails for a file that is not there.
    try:
        os.stat(name)
    except FileNotFoundError:
        return False
    return True


def opened(name, flags=os.O_RDWR):
    return os.open(name, flags | os.O_CREAT, 0o600)


def at_offset(name):
    fd, bytes_, at = opened(name), data(), pick.randrange(extents)
    os.pwrite(fd, bytes_, at)
    return fd


def at_cursor(name):
    fd, bytes_, at = opened(name), data(), pick.randrange(extents)
    os.lseek(fd, at, os.SEEK_SET)
    os.write(fd, bytes_)
    return fd


def appended(name):
    fd, bytes_ = opened(name, os.O_WRONLY | os.O_APPEND), data()
    os.write(fd, bytes_)
    return fd


def gathered(name):
    fd, parts, at = opened(name), [data() for _ in range(3)], pick.randrange(extents)
    os.pwritev(fd, parts, at)
    return fd


def truncated(name):
    fd, size = opened(name), pick.randrange(extents)
    os.ftruncate(fd, size)
    return fd


def by_path(name):
    size = pick.randrange(extents)
    os.close(opened(name))
    os.truncate(name, size)


def renamed(name):
    other = pick.choice(names)
    if exists(name):
        os.rename(name, other)


def removed(name):
    if exists(name):
        os.unlink(name)


def rewritten(name):
    bytes_ = data()
    fd = opened(name, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, bytes_)
    return fd


def duplicated(name):
    one, two = data(), data()
    fd = opened(name)
    copy = os.dup(fd)
    os.write(fd, one)
    os.write(copy, two)
    os.close(copy)
    return fd


def buffered(name):
    bytes_, more = data(), data()
    with open(name, "ab") as file:
        file.write(bytes_)
        file.flush()
        file.write(more)


def allocated(name):
    fd, at, size = opened(name), pick.randrange(extents), pick.randint(1, 50_000)
    os.posix_fallocate(fd, at, size)
    return fd


def copied(name):
    other, size = pick.choice(names), pick.randint(1, 40_000)
    if other == name:
        return None
    fd, source = opened(name), opened(other)
    os.copy_file_range(source, fd, size)
    os.close(source)
    return fd


def sent(name):
    other, size = pick.choice(names), pick.randint(1, 40_000)
    if other == name:
        return None
    fd, source = opened(name), opened(other)
    os.sendfile(fd, source, 0, size)
    os.close(source)
    return fd


def linked(name):
    other = name + ".link"
    if exists(name) and not exists(other):
        os.link(name, other)
        os.unlink(name)
        os.rename(other, name)


def mapped(name):
    fd, at, size = opened(name), pick.randrange(extents), pick.randint(1, 30_000)
    bytes_ = pick.randbytes(size)
    if os.fstat(fd).st_size < at + size:
        os.ftruncate(fd, at + size)
    with mmap.mmap(fd, at + size) as memory:
        memory[at:at + size] = bytes_
        if pick.random() < 0.5:
            memory.flush()
    return fd


def synchronous(name):
    fd, bytes_, at = opened(name, os.O_WRONLY | os.O_DSYNC), data(), pick.randrange(extents)
    os.pwrite(fd, bytes_, at)
    return fd


def punched(name):
    fd, at, size = opened(name), pick.randrange(extents), pick.randint(1, 30_000)
    keep_size, punch_hole = 1, 2
    libc.fallocate(fd, keep_size | punch_hole, ctypes.c_long(at), ctypes.c_long(size))
    return fd


def overlapping(name):
    one, two, at = opened(name), opened(name), pick.randrange(extents)
    os.pwrite(one, data(), at)
    os.pwrite(two, data(), max(0, at - 100))
    digest.update(os.pread(one, 5000, max(0, at - 200)))
    os.close(one)
    return two


def forked(name):
    bytes_ = data()
    fd = opened(name, os.O_WRONLY | os.O_APPEND)
    child = os.fork()
    if child == 0:
        os.write(fd, bytes_)
        os._exit(0)
    os.waitpid(child, 0)
    return fd


single = [at_offset, at_offset, at_cursor, appended, appended, gathered, truncated, renamed, removed]
# A file that was cut to nothing and then written is two operations: only where no crash comes
# between.
every = single + [by_path, rewritten, duplicated, buffered, allocated, copied, sent, linked, forked]
every += [mapped, synchronous, punched, overlapping]

directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
for number in range(1, count + 1):
    operation = pick.choice(single if acked else every)
    name = pick.choice(names)
    fd = operation(name)
    if acked:
        if fd is not None:
            os.fsync(fd)
            os.close(fd)
        # Names are made durable by the directory, as for any program.
        os.fsync(directory)
        os.write(1, b"ack %d\n" % number)
        continue
    if fd is not None:
        if pick.random() < 0.3:
            os.fsync(fd)
        os.close(fd)
    if pick.random() < 0.2 and exists(name):
        with open(name, "rb") as file:
            digest.update(file.read())
        digest.update(b"%d" % os.stat(name).st_size)

if not acked:
    print(digest.hexdigest())
