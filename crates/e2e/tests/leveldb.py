"""LevelDB under load, and its judge.

`load DIR SEED` puts keys 1, 2, 3, ..., each with a synchronous write and told, `ack NUMBER`, and closes and reopens the database every few
keys: each time it writes a new MANIFEST, moves CURRENT to it and removes what is obsolete. `judge DIR SEED COUNT` opens it with all checks
on and wants keys 1 to COUNT, and none in part.
"""
import os, plyvel, random, sys

what, directory, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])


def value(number):
    return (b"%d of %d " % (number, seed) * 60)[: 50 + number * 7919 % 500]


def load():
    pick, number = random.Random(seed), 0
    while True:
        db = plyvel.DB(directory, create_if_missing=True, write_buffer_size=64 << 10, max_file_size=1 << 20)
        for _ in range(pick.randint(1, 40)):
            number += 1
            db.put(b"%08d" % number, value(number), sync=True)
            os.write(1, b"ack %d\n" % number)
        db.close()


def judge(count):
    db = plyvel.DB(directory, create_if_missing=True, paranoid_checks=True)
    found = 0
    for key, held in db.iterator(verify_checksums=True, fill_cache=False):
        found += 1
        assert key == b"%08d" % found, "key %d is missing of %d; %s comes next" % (found, count, key)
        assert held == value(found), "key %d of %d holds something else" % (found, count)
    assert count <= found <= count + 1, "%d keys were acknowledged, %d are there" % (count, found)


load() if what == "load" else judge(int(sys.argv[4]))
