"""Random reads, writes, truncations, holes, appends, mappings and reopens of one file against a
model in memory. Arguments: the file, a seed, how many operations."""

import mmap
import os
import random
import sys

path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MOST = 256 << 10
chance = random.Random(seed)
model = bytearray()
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
done = []


def must_be(found, wanted, what):
    if bytes(found) != bytes(wanted):
        at = next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
        sys.exit(f"seed {seed}: {what} differs at {at} ({len(found)} and {len(wanted)} bytes) after {done[-8:]}")


def put(at, bytes):
    if len(model) < at + len(bytes):
        model.extend(b"\0" * (at + len(bytes) - len(model)))
    model[at : at + len(bytes)] = bytes


for number in range(count):
    at, length = chance.randrange(MOST), chance.choice((1, 100, 4096, 20_000, 65_536))
    if chance.random() < 0.3:
        at &= ~4095
    bytes_new = chance.randbytes(min(length, MOST - at))
    what = chance.choice(("write", "write", "read", "read", "cut", "append", "store", "load", "punch", "sync", "open", "other"))
    done.append((what, at, len(bytes_new)))
    if what == "write":
        assert os.pwrite(fd, bytes_new, at) == len(bytes_new)
        put(at, bytes_new)
    elif what == "read":
        must_be(os.pread(fd, length, at), model[at : at + length], "a read")
    elif what == "cut":
        os.ftruncate(fd, at)
        del model[at:]
        model.extend(b"\0" * (at - len(model)))
    elif what == "append":
        if len(model) + len(bytes_new) <= MOST:
            other = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(other, bytes_new)
            os.close(other)
            put(len(model), bytes_new)
    elif what in ("store", "load") and model:
        with mmap.mmap(fd, len(model)) as view:
            end = min(at + length, len(model))
            if what == "load":
                must_be(view[at:end], model[at:end], "a load")
            elif at < end:
                view[at:end] = bytes_new[: end - at]
                model[at:end] = bytes_new[: end - at]
                if chance.random() < 0.5:
                    view.flush()
    elif what == "punch" and at < len(model):
        import ctypes

        size = min(length, len(model) - at)
        assert ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(size)) == 0
        model[at : at + size] = bytes(size)
    elif what == "sync":
        os.fsync(fd)
    elif what == "open":
        os.close(fd)
        fd = os.open(path, os.O_RDWR)
    elif what == "other":
        other = os.open(path, os.O_RDWR)
        must_be(os.pread(other, length, at), model[at : at + length], "another's read")
        os.close(other)
    assert os.fstat(fd).st_size == len(model), f"seed {seed}: size after {done[-8:]}"
must_be(os.pread(fd, MOST, 0), model, "the whole")
os.fsync(fd)
