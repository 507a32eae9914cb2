"""Calls below a directory whose server is killed meanwhile: none may fail, and what each of them has
done must be there, once. Prints a line for each round; ends when told to by a file "stop".

    mount_kills.py DIRECTORY WORKER
"""

import os
import sys

directory, worker = sys.argv[1:]
os.chdir(directory)
NAME = f"w{worker}-"


def line(number):
    return b"%09d\n" % number


def must(holds, what):
    if not holds:
        sys.exit(f"worker {worker}: {what}")


data = os.open(NAME + "data", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
appended = os.open(NAME + "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
gone = os.open(NAME + "gone", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
os.unlink(NAME + "gone")

number = 0
while not os.path.exists("stop"):
    for fd in (data, gone):
        must(os.pwrite(fd, line(number), number * 10) == 10, "a short write")
    os.fsync(data)
    must(os.write(appended, line(number)) == 10, "a short append")
    made, moved, linked = (f"{NAME}{kind}-{number}" for kind in ("made", "moved", "linked"))
    os.mkdir(moved)
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, line(number))
    os.fsync(fd)
    os.close(fd)
    os.rename(made, moved + "/file")
    os.link(moved + "/file", linked)
    os.symlink(linked, made)
    must(os.stat(made).st_nlink == 2, "the wrong number of links")
    os.setxattr(linked, "user.of", line(number), os.XATTR_CREATE)
    os.removexattr(linked, "user.of")
    os.unlink(made)
    os.unlink(linked)
    if number % 4:
        os.unlink(moved + "/file")
        os.rmdir(moved)
    number += 1
    print("ack", number, flush=True)

whole = b"".join(line(n) for n in range(number))
for fd, what in ((data, "data"), (gone, "data without a name")):
    must(os.pread(fd, len(whole) + 1, 0) == whole, f"{what} is not what was written")
with open(NAME + "appended", "rb") as file:
    must(file.read() == whole, "what was appended is not there once")
left = sorted(name for name in os.listdir(".") if name.startswith(NAME + "m"))
must(left == sorted(f"{NAME}moved-{n}" for n in range(0, number, 4)), "other names than were made")
for n in range(0, number, 4):
    with open(f"{NAME}moved-{n}/file", "rb") as file:
        must(file.read() == line(n), "a file that was moved is not what was written")
print("well", number, flush=True)
