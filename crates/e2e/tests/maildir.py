"""Mail delivery as mail servers do it: write a file in tmp/, sync it, rename it to a free name in new/, sync that directory.

Arguments: directory, seed, deliveries of each deliverer, deliverers, and whether a message gets its name by a link instead. Each delivery is told, `ack sent NAME`, once the sync
of the directory returned. A reader moves messages on from new/ to cur/, as mail readers do, and syncs both directories now and
then: `ack seen NAME`. Message NAME follows from seed and NAME.
"""
import os, random, sys

os.chdir(sys.argv[1])
seed, deliveries, deliverers, links = map(int, sys.argv[2:6])


def message(name):
    line = "message %s of %d\n" % (name, seed)
    length = 1 + sum(map(ord, name)) * 7919 % 12_000
    return (line * (length // len(line) + 1)).encode()[:length]


def tell(what, names):
    for name in names:
        os.write(1, ("ack %s %s\n" % (what, name)).encode())


def deliver(who):
    new = os.open("new", os.O_RDONLY | os.O_DIRECTORY)
    for number in range(deliveries):
        name = "%d.%d" % (who, number)
        fd = os.open("tmp/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        text = message(name)
        # Long ones in two pieces, as they come from the network.
        os.write(fd, text[:5000])
        if text[5000:]:
            os.write(fd, text[5000:])
        os.fsync(fd)
        os.close(fd)
        if links:
            os.link("tmp/" + name, "new/" + name)
            os.fsync(new)
            os.unlink("tmp/" + name)
        else:
            os.rename("tmp/" + name, "new/" + name)
            os.fsync(new)
        tell("sent", [name])


def read():
    pick = random.Random(seed)
    new, cur = (os.open(name, os.O_RDONLY | os.O_DIRECTORY) for name in ("new", "cur"))
    moved = []
    while os.getppid() == parent:
        names = os.listdir("new")
        for name in pick.sample(names, min(len(names), 3)):
            with open("new/" + name, "rb") as file:
                if file.read() != message(name):
                    tell("torn", [name])
            os.rename("new/" + name, "cur/" + name + ":2,S")
            moved.append(name)
        if len(moved) > 4:
            os.fsync(cur)
            os.fsync(new)
            tell("seen", moved)
            moved = []


parent = os.getpid()
children = []
for who in range(deliverers):
    child = os.fork()
    if child == 0:
        deliver(who)
        os._exit(0)
    children.append(child)
if deliverers > 1:
    child = os.fork()
    if child == 0:
        read()
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
# The reader sees that its parent is gone.
