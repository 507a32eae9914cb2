"""Moves cursors in ways of which Holdfast hears late, writes at them, and waits to be killed.

cursors.py DIRECTORY
"""

import os
import signal
import sys

place = sys.argv[1]


def write(fd, letter):
    assert os.write(fd, letter.encode() * 100) == 100


# Left to the kernel until it has a name.
fd = os.open(place, os.O_TMPFILE | os.O_WRONLY, 0o644)
os.lseek(fd, 0, os.SEEK_SET)
write(fd, "a")
# With the number of a directory Python makes the call that follows a link.
root = os.open("/", os.O_RDONLY)
os.link(f"/proc/self/fd/{fd}", f"{place}/named", src_dir_fd=root, follow_symlinks=True)
write(fd, "b")
os.fsync(fd)
write(fd, "c")

# By two numbers.
fd = os.open(f"{place}/twice", os.O_CREAT | os.O_WRONLY, 0o644)
write(fd, "a")
os.fsync(fd)
other = os.dup2(fd, 300)
for letter in "bcd":
    write(other, letter)
    write(fd, letter.upper())

# The kernel moves the cursor.
fd = os.open(f"{place}/filled", os.O_CREAT | os.O_WRONLY, 0o644)
write(fd, "a")
os.fsync(fd)
write(fd, "b")
source = os.open(f"{place}/named", os.O_RDONLY)
assert os.sendfile(fd, source, 0, 100) == 100
write(fd, "c")

print("written", flush=True)
signal.pause()
