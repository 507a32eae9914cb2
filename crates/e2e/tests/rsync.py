"""Copies a tree that changes between the copies with `rsync --fsync`.

Arguments: the source, in memory, the target, and how many files. Round N writes version N of all files at the source, dated N seconds
after the year 2001's second billion, and tells `ack N` once rsync has returned.
"""
import os, subprocess, sys

source, target, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
number = 0
while True:
    number += 1
    for file in range(files):
        path = "%s/%d/file-%d" % (source, file % 2, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        line = b"version %08d of file %d\n" % (number, file)
        with open(path, "wb") as out:
            out.write(line * (1 + (number * 37 + file * 101) % 400))
        os.utime(path, (1_000_000_000 + number,) * 2)
    subprocess.run(["rsync", "-a", "-I", "--fsync", source + "/", target], check=True)
    os.write(1, b"ack %d\n" % number)
