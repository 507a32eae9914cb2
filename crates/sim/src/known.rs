//! Images whose recovery is known already.
//!
//! Many crash points leave the same image: two beside each other between which nothing durable
//! changed, an image that keeps all pending stores and one behind their fence, a disk without
//! anything unsynced however much of it is left. Recovery is a pure function of NVM, disk and
//! superblock, so what it makes of an image need be worked out once: the tree of files it leaves,
//! whether a second recovery leaves the same, and whether it calls anything damaged or keeps
//! anything back. All of that is noted under a hash of the image, and an image that comes up again
//! is judged by it. **Judged, not passed over**: the oracle compares the tree with what *this*
//! crash point's history promised, so a promise that is broken is found whoever recovered the image
//! first. Whatever does not pass that way is recovered once more as if nothing were known, and
//! fails as it always did.
//!
//! Only images are noted on which everything went well twice. Whether an image is crashed again
//! inside recovery, or serves programs afterwards, is drawn when it comes up first: every image
//! that there is has the same chance of it, however many crash points leave it. The hash has 128
//! bits of everything recovery can see: the words of the media that differ from zero, and of the
//! disk every name with its inode, bytes and times, the numbers that new inodes would get, and the
//! clock. What it leaves out are names for one thing that recovery never learns (the index of an
//! inode in the simulator's table).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use crate::model::Tree;

/// Images kept in mind, which is some hundred megabytes at most; then it is begun anew.
const IMAGES_MAX: usize = 1 << 20;
/// Trees kept in mind, of a few hundred bytes each.
const TREES_MAX: usize = 1 << 16;

/// A hash of 128 bits. Not against an adversary: those who choose the images are we.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(u64, u64);

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Digest {
    /// Takes in a number, behind all others.
    pub fn add(&mut self, number: u64) {
        self.0 = mix(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        self.1 = mix(self.1.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(number ^ 0x5851_f42d_4c95_7f2d));
    }

    /// Takes in bytes, and how many.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    /// Puts another word in the place of one: of words at numbered places the order in which they
    /// came does not matter, and zeros count for nothing.
    pub fn replace(&mut self, place: u64, old: u64, new: u64) {
        let part = |word: u64| {
            let low = mix(mix(place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed) ^ word);
            (low, mix(low ^ word.rotate_left(29) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93)))
        };
        for (word, sign) in [(old, u64::MAX), (new, 1)] {
            if word != 0 {
                let (low, high) = part(word);
                self.0 = self.0.wrapping_add(low.wrapping_mul(sign));
                self.1 = self.1.wrapping_add(high.wrapping_mul(sign));
            }
        }
    }

    /// Both halves.
    pub fn halves(self) -> [u64; 2] {
        [self.0, self.1]
    }
}

/// Digests are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }
}

type Table<V> = HashMap<Digest, V, BuildHasherDefault<AsItIs>>;

/// What recovery makes of an image in which it finds nothing damaged.
#[derive(Clone)]
pub struct Fate {
    /// The files it leaves.
    pub found: Rc<Tree>,
    /// It keeps a file back for a person to decide.
    pub keeps_back: bool,
    /// A second recovery was made after it, and left the same files.
    pub twice: bool,
}

/// The fates of images.
#[derive(Default)]
pub struct Known {
    fates: Table<Fate>,
    trees: Table<Rc<Tree>>,
}

impl Known {
    /// What is known of an image.
    pub fn get(&self, image: Digest) -> Option<&Fate> {
        self.fates.get(&image)
    }

    /// Notes what became of an image.
    pub fn note(&mut self, image: Digest, found: &Tree, keeps_back: bool, twice: bool) {
        if self.fates.len() >= IMAGES_MAX {
            self.fates.clear();
        }
        if self.trees.len() >= TREES_MAX {
            self.trees.clear();
        }
        let mut digest = Digest::default();
        for (name, bytes) in found {
            digest.add_bytes(name);
            digest.add_bytes(bytes);
        }
        let found = Rc::clone(self.trees.entry(digest).or_insert_with(|| Rc::new(found.clone())));
        let fate = self.fates.entry(image).or_insert(Fate { found, keeps_back, twice });
        fate.twice |= twice;
    }
}
