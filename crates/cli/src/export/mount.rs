//! The page about `mount.holdfast`: what fstab and mount(8) say, and what comes of it. Its options
//! are those of `holdfast mount`, which has a page of its own.

use super::roff::{heading, item, paragraph, verbatim};

/// The page.
pub fn page() -> String {
    let mut page = format!(".TH MOUNT.HOLDFAST 8 \"\" \"holdfast {}\" Holdfast\n", env!("CARGO_PKG_VERSION"));
    heading(&mut page, "NAME");
    paragraph(&mut page, "mount.holdfast - serve a directory by holdfast, for mount(8) and fstab(5)");
    heading(&mut page, "SYNOPSIS");
    paragraph(&mut page, "mount -t holdfast [-o OPTIONS] DIR MOUNTPOINT");
    heading(&mut page, "DESCRIPTION");
    for text in DESCRIPTION {
        paragraph(&mut page, text);
    }
    heading(&mut page, "OPTIONS");
    for (option, what) in OPTIONS {
        item(&mut page, option, what);
    }
    heading(&mut page, "EXIT STATUS");
    item(&mut page, "0", "It is mounted.");
    item(&mut page, "1", "The command line or an option is wrong.");
    item(&mut page, "32", "It could not be mounted: the message says why, and nothing was changed.");
    heading(&mut page, "FILES");
    item(&mut page, "/etc/fstab", "What is mounted at boot, by mount -a and by mount MOUNTPOINT.");
    heading(&mut page, "EXAMPLES");
    verbatim(
        &mut page,
        "/srv/data /srv/data holdfast defaults,pool=/mnt/pmem/srv.pool 0 0\n\
         /srv/data /mnt/fast holdfast noauto,volatile,size=1G,age-max=200ms 0 0\n\n\
         mount -t holdfast -o pool=/mnt/pmem/srv.pool /srv/data /srv/data\numount /srv/data",
    );
    heading(&mut page, "SEE ALSO");
    paragraph(
        &mut page,
        "holdfast-mount(1), holdfast.toml(5), fstab(5), mount(8), umount(8), fusermount3(1)",
    );
    page
}

const DESCRIPTION: [&str; 4] = [
    "mount(8) starts mount.holdfast for what is of type holdfast. It starts `holdfast mount` in the background \
     and returns once DIR is served at MOUNTPOINT. If both are one directory, the mount lies over it, so that \
     nobody reaches the files past it.",
    "umount(8) and fusermount3 -u end it. They return as soon as nobody uses the mount; then the keeper brings \
     everything to the disk and ends. Until then the pool holds what the disk has not, and the file system of \
     DIR is busy: who wants to wait for it runs `holdfast drain` before.",
    "What is said after it is mounted, such as that a server died, goes to the system's log (/dev/log) as \
     holdfast.",
    "In the table of mounts the type is fuse.holdfast: `findmnt -t fuse.holdfast` lists what is mounted, and \
     `umount -a -t fuse.holdfast` ends all of it.",
];

const OPTIONS: [(&str, &str); 4] = [
    (
        "pool=PATH, volatile, size=SIZE, durability=WHEN, age-max=TIME, ...",
        "Any option of holdfast-mount(1) but --at, --user and --quiet, without its dashes. What they do not say \
         is as the configuration has it (holdfast.toml(5)). A value with a comma stands in double quotes with \
         its name: \"exclude=/srv/data/a,b\".",
    ),
    (
        "ro, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime",
        "As for every file system. What the file system of DIR does not allow is not allowed here either.",
    ),
    (
        "defaults, auto, noauto, nofail, _netdev, user, users, owner, group, x-...",
        "They are mount(8)'s and the service manager's own.",
    ),
    ("remount", "Refused: unmount it, and mount it again."),
];
