//! The page about pools, for whoever operates one: what is in it, how large it is, how to look, and
//! what becomes of it when the program is upgraded. The numbers are those of the format's own code.

use holdfast_pool::{Layout, POOL_BYTES_MIN, SEGMENT_BYTES, SLOT_BYTES, VERSION, Zone};

use super::roff::{heading, item, paragraph, verbatim};
use crate::sizes::{human_bytes, human_count};

/// Sizes in the table.
const SIZES: [u64; 5] = [16 << 20, 256 << 20, 1 << 30, 4 << 30, 64 << 30];

/// The page.
pub fn page() -> String {
    let mut page = format!(".TH HOLDFAST-POOL 5 \"\" \"holdfast {}\" Holdfast\n", env!("CARGO_PKG_VERSION"));
    heading(&mut page, "NAME");
    paragraph(&mut page, "holdfast-pool - the pool of Holdfast, and its format");
    description(&mut page);
    contents(&mut page);
    sizes(&mut page);
    looking(&mut page);
    versions(&mut page);
    heading(&mut page, "NOTES");
    for text in NOTES {
        paragraph(&mut page, text);
    }
    heading(&mut page, "FILES");
    item(&mut page, "/dev/daxX.Y", "A DAX device: the pool has all of it.");
    item(&mut page, "a file on a file system mounted with -o dax", "A pool as large as the file.");
    item(
        &mut page,
        "/dev/shm/holdfast-UID.pool",
        "The volatile pool of a run that names none. It survives the end of every process, but no power cut.",
    );
    heading(&mut page, "EXAMPLES");
    verbatim(
        &mut page,
        "holdfast format --pool /mnt/pmem/db.pool --size 4G\nholdfast status --pool /mnt/pmem/db.pool\n\
         holdfast recover --pool /mnt/pmem/db.pool --dry-run\nhexdump -C -n 128 /mnt/pmem/db.pool",
    );
    heading(&mut page, "SEE ALSO");
    paragraph(
        &mut page,
        "holdfast(1), holdfast-format(1), holdfast-status(1), holdfast-recover(1), holdfast-install(1), \
         holdfast-remove(1), holdfast.toml(5)",
    );
    page
}

fn description(page: &mut String) {
    heading(page, "DESCRIPTION");
    for text in [
        "A pool is the non-volatile memory that one keeper owns, for the programs of one user. It is a log: what \
         programs write lies there until the files on the disk have it, and no longer. A pool that was closed \
         cleanly holds nothing that the files do not have.",
        "It belongs to the files that it was used with. Its slots name them by the identity of their file system \
         and by handle, so that a pool is of no use on another machine unless the disks are there, too; and it \
         must not be copied, moved or restored from a backup while it holds records. A backup of the files needs \
         no pool: `holdfast drain` first.",
        "All numbers are little-endian. Nothing in a pool is encrypted: what it holds are bytes of the files, so \
         that it needs the protection that they have. A pool's file has mode 0600.",
    ] {
        paragraph(page, text);
    }
}

fn contents(page: &mut String) {
    heading(page, "CONTENTS");
    let layout = Layout::new(POOL_BYTES_MIN).expect("the least size is a size");
    let at = |zone| human_bytes(layout.offset(zone));
    item(
        page,
        "superblock (first 4,096 bytes)",
        "Magic \"HOLDFAST\", version of the format, the pool's UUID, its size, and where the rest begins, with a \
         checksum. A copy lies in the next page; one that is damaged is mended from the other.",
    );
    item(
        page,
        &format!("words (at {})", at(Zone::Words)),
        "When an owner was last at work, whether the pool was closed cleanly, the owner's process, and the path \
         of its socket.",
    );
    item(
        page,
        &format!("slots (at {}, {} each)", at(Zone::Slots), human_bytes(SLOT_BYTES)),
        "A row for each file that the log knows: what it is, its name, up to which record the disk has it, and \
         what recovery is to do with it.",
    );
    item(
        page,
        "frames",
        "Where in a spill file (--spill) the log goes on, if it does. The spill file belongs to the pool: what it \
         holds is lost without it.",
    );
    item(
        page,
        &format!("segments ({} each)", human_bytes(SEGMENT_BYTES)),
        "The log. Each record is one write, truncation, punch or cancel of one file, with a checksum of its bytes \
         and its place. It is there whole, or it is not there.",
    );
}

fn sizes(page: &mut String) {
    heading(page, "SIZES");
    paragraph(
        page,
        &format!(
            "A pool has at least {}; its size alone says how much it has of everything. It cannot grow or shrink: \
             `holdfast remove`, and then `holdfast format` or `holdfast install` with another size.",
            human_bytes(POOL_BYTES_MIN)
        ),
    );
    let mut table = format!("{:>10} {:>16} {:>10} {:>10}", "size", "files at a time", "segments", "frames");
    for bytes in SIZES {
        let layout = Layout::new(bytes).expect("a size");
        table += &format!(
            "\n{:>10} {:>16} {:>10} {:>10}",
            human_bytes(bytes),
            human_count(layout.slot_count.into()),
            human_count(layout.segment_count.into()),
            human_count(layout.frame_count.into())
        );
    }
    verbatim(page, &table);
    paragraph(
        page,
        "What matters is how much is written while the disk is behind, which is a second's worth, or a few. Each \
         program thread that writes has a segment of its own, and each record takes 64 bytes beside its own. A \
         pool that is full makes writers wait for the disk; `holdfast status` and `holdfast top` count that. Files \
         beyond the number of slots are left to the kernel.",
    );
}

fn looking(page: &mut String) {
    heading(page, "HOW TO LOOK");
    for (command, what) in [
        (
            "holdfast status --pool PATH",
            "What its keeper does; or, if none runs, what is in it and whether it has to be recovered. It changes \
             nothing.",
        ),
        (
            "holdfast recover --pool PATH --dry-run",
            "What recovery would do, file by file, and each record that is damaged. It changes nothing.",
        ),
        ("holdfast files --pool PATH", "The files that a keeper knows."),
        (
            "holdfast recover --pool PATH --export DIR",
            "Writes what was set aside to files in DIR, without touching the files that it belongs to.",
        ),
        (
            "hexdump -C -n 128 PATH",
            "The superblock: the magic, and at byte 8 the version. Only read while a keeper runs.",
        ),
    ] {
        item(page, command, what);
    }
}

fn versions(page: &mut String) {
    heading(page, "VERSIONS AND UPGRADES");
    for text in [
        &format!(
            "This program makes and reads version {VERSION} of the format, and no other. `holdfast --version` says \
             which."
        ),
        "A pool of another version is refused, whatever is in it, and is not changed. So that no upgrade meets \
         one: stop the services, bring everything to the disk with `holdfast remove --close-only --pool PATH`, \
         upgrade, and make the pool anew with `holdfast format --pool PATH --force` (a pool that was closed \
         cleanly holds nothing).",
        "If the new program is there already, the version that made the pool recovers it: install that once more, \
         run `holdfast recover --pool PATH`, and upgrade then. Do not format a pool that holds records: \
         acknowledged writes would be lost.",
        "Programs, keeper and library of one installation belong together: a library that speaks another \
         version of their protocol is not let in.",
    ] {
        paragraph(page, text);
    }
}

const NOTES: [&str; 3] = [
    "After a crash recover a pool before anybody opens the files (holdfast-recover.service does it at boot). A \
     file that was changed meanwhile is set aside, and waits for a decision: see holdfast-recover(1).",
    "Media that rot are found by checksums: a file of which a record is damaged is set aside, and named; others \
     are recovered.",
    "The format is specified byte by byte in docs/format.md of the sources.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_tells_what_the_code_does() {
        let page = page();
        for told in [
            &format!("version {VERSION} of the format"),
            ".SH \"VERSIONS AND UPGRADES\"",
            "256.0 MiB            2,048",
            "at 4.0 KiB",
            "segments (2.0 MiB each)",
        ] {
            assert!(page.contains(&told.replace('-', "\\-")), "{told}\n{page}");
        }
    }
}
