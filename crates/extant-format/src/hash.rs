//! The hashes of names in indexed directories.
//!
//! # Shape
//!
//! A name hashes to a *major* value, which orders the index, and a *minor* value, which only
//! orders names of equal major value within a `readdir`. Bit 0 of a major value is always 0: the
//! index uses it as a mark ("the leaf before this one ends with the same hash").
//!
//! Three functions are on disk as `hash_version` 0, 1, 2 (legacy, half-MD4, TEA). Each takes the
//! bytes of a name as signed or as unsigned; which one is a flag of the superblock (`s_flags`,
//! set by whoever made the file system, after the `char` of its processor). In memory the kernel
//! writes 3, 4, 5 for the unsigned ones, and so does [`HashVersion`]; on disk these never occur in
//! an index. Version 6 is SipHash-2-4 with a secret key, for directories that are encrypted and
//! ignore case; there the hash is also stored in each entry, because whoever has no key could not
//! compute it.
//!
//! Signed and unsigned differ only for names with a byte of 0x80 or more.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/directory.rst`, "Hash Tree Directories", and
//! `super.rst`, fields `s_hash_seed`, `s_def_hash_version`, `s_flags`. half-MD4 is rounds of MD4
//! (RFC 1320) over eight words; TEA is Wheeler and Needham's cipher as a compression function.

use core::hash::Hasher;
use core::ops::{BitAnd, BitOr, BitXor};

use siphasher::sip::SipHasher24;
use wide::u32x8;

/// Which function, and how it takes bytes of 0x80 and more.
///
/// The discriminants are the kernel's `DX_HASH_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum HashVersion {
    /// The first one; for very old file systems.
    Legacy = 0,
    /// The default.
    HalfMd4 = 1,
    /// TEA.
    Tea = 2,
    /// [`HashVersion::Legacy`] with unsigned bytes.
    LegacyUnsigned = 3,
    /// [`HashVersion::HalfMd4`] with unsigned bytes.
    HalfMd4Unsigned = 4,
    /// [`HashVersion::Tea`] with unsigned bytes.
    TeaUnsigned = 5,
    /// SipHash-2-4 with the directory's key.
    SipHash = 6,
}

impl HashVersion {
    /// Every version.
    pub const ALL: [HashVersion; 7] = [
        HashVersion::Legacy,
        HashVersion::HalfMd4,
        HashVersion::Tea,
        HashVersion::LegacyUnsigned,
        HashVersion::HalfMd4Unsigned,
        HashVersion::TeaUnsigned,
        HashVersion::SipHash,
    ];

    /// The version with the kernel's number `raw`; `None` above 6.
    #[must_use]
    pub fn from_raw(raw: u8) -> Option<HashVersion> {
        Self::ALL.get(usize::from(raw)).copied()
    }

    /// The version of an index whose root says `raw`, on a file system whose superblock says
    /// `unsigned`. `None` unless `raw` is 0, 1, 2 or 6: nothing else may be on disk.
    #[must_use]
    pub fn from_disk(raw: u8, unsigned: bool) -> Option<HashVersion> {
        match (raw, unsigned) {
            (0, false) => Some(HashVersion::Legacy),
            (1, false) => Some(HashVersion::HalfMd4),
            (2, false) => Some(HashVersion::Tea),
            (0, true) => Some(HashVersion::LegacyUnsigned),
            (1, true) => Some(HashVersion::HalfMd4Unsigned),
            (2, true) => Some(HashVersion::TeaUnsigned),
            (6, _) => Some(HashVersion::SipHash),
            _ => None,
        }
    }

    /// Returns what the root of an index says: 0, 1, 2 or 6.
    #[must_use]
    pub fn on_disk(self) -> u8 {
        match self {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => 0,
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => 1,
            HashVersion::Tea | HashVersion::TeaUnsigned => 2,
            HashVersion::SipHash => 6,
        }
    }

    /// Returns whether bytes of names count as unsigned; the superblock's flags must say the same.
    #[must_use]
    pub fn is_unsigned(self) -> bool {
        matches!(self, Self::LegacyUnsigned | Self::HalfMd4Unsigned | Self::TeaUnsigned)
    }
}

/// `s_hash_seed` of the superblock: what the half-MD4 and TEA functions start from.
///
/// All zero means "none", and stands for the constants of MD4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HashSeed([u32; 4]);

impl HashSeed {
    /// The constants that stand in for an all-zero seed.
    const DEFAULT: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

    /// From the 16 bytes of `s_hash_seed`. The four words are little-endian.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> HashSeed {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        HashSeed(words)
    }

    /// From the four words of `s_hash_seed`.
    #[must_use]
    pub fn from_words(words: [u32; 4]) -> HashSeed {
        HashSeed(words)
    }

    /// Returns what the functions start from.
    fn start(self) -> [u32; 4] {
        if self.0 == [0; 4] { Self::DEFAULT } else { self.0 }
    }
}

/// The hash of a name. Orders as the index does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NameHash {
    /// Orders the index. Even, and never 0xFFFF_FFFE.
    pub major: u32,
    /// Orders names of equal major hash.
    pub minor: u32,
}

impl NameHash {
    /// 0x7fff_ffff is the position "end of directory" of `readdir`; a name that would hash to it
    /// moves one down.
    const END: u32 = 0x7fff_ffff << 1;

    fn new(major: u32, minor: u32) -> NameHash {
        let major = match major & !1 {
            Self::END => Self::END.wrapping_sub(2),
            even => even,
        };
        NameHash { major, minor }
    }

    /// Returns the hash of a name of which SipHash-2-4 made `word`.
    #[must_use]
    pub fn of_siphash(word: u64) -> NameHash {
        let [a, b, c, d, e, f, g, h] = word.to_be_bytes();
        NameHash::new(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
    }
}

/// Hashes a name with one of the six functions that need no key.
///
/// `name` is the bytes as stored or, in a directory that ignores case, as folded. `None` for
/// [`HashVersion::SipHash`]: see [`siphash`].
///
/// ```
/// use extant_format::hash::{HashSeed, HashVersion, name_hash};
/// let hash = name_hash(HashVersion::HalfMd4, &HashSeed::default(), b"lost+found").unwrap();
/// assert_eq!(hash.major & 1, 0);
/// ```
#[must_use]
pub fn name_hash(version: HashVersion, seed: &HashSeed, name: &[u8]) -> Option<NameHash> {
    Some(match version {
        HashVersion::Legacy => legacy(name, signed),
        HashVersion::LegacyUnsigned => legacy(name, unsigned),
        HashVersion::HalfMd4 => half_md4(name, seed, signed),
        HashVersion::HalfMd4Unsigned => half_md4(name, seed, unsigned),
        HashVersion::Tea => tea(name, seed, signed),
        HashVersion::TeaUnsigned => tea(name, seed, unsigned),
        HashVersion::SipHash => return None,
    })
}

/// Names that [`name_hashes`] hashes at once.
pub const NAMES_AT_ONCE: usize = 8;

/// Hashes several names as [`name_hash`] does each: in a quarter of the time where the function is half-MD4 and no
/// name is longer than 32 bytes.
///
/// ```
/// use extant_format::hash::{HashSeed, HashVersion, name_hash, name_hashes};
/// let names = [b"a".as_slice(), b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
/// let hashes = name_hashes(HashVersion::HalfMd4, &HashSeed::default(), &names).unwrap();
/// assert_eq!(Some(hashes[2]), name_hash(HashVersion::HalfMd4, &HashSeed::default(), b"c"));
/// ```
#[must_use]
pub fn name_hashes(
    version: HashVersion,
    seed: &HashSeed,
    names: &[&[u8]; NAMES_AT_ONCE],
) -> Option<[NameHash; NAMES_AT_ONCE]> {
    let are_short = names.iter().all(|name| (1..=32).contains(&name.len()));
    match version {
        HashVersion::HalfMd4 if are_short => Some(half_md4_of_short(names, seed, signed)),
        HashVersion::HalfMd4Unsigned if are_short => Some(half_md4_of_short(names, seed, unsigned)),
        _ => {
            let mut hashes = [NameHash::default(); NAMES_AT_ONCE];
            for (hash, name) in hashes.iter_mut().zip(names) {
                *hash = name_hash(version, seed, name)?;
            }
            Some(hashes)
        }
    }
}

/// Hashes a folded, unencrypted name with a directory's secret 16-byte key.
#[must_use]
pub fn siphash(key: &[u8; 16], folded: &[u8]) -> NameHash {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(folded);
    NameHash::of_siphash(hasher.finish())
}

/// A byte as a C `signed char`, widened to 32 bits.
fn signed(byte: u8) -> u32 {
    i32::from(i8::from_ne_bytes([byte])).cast_unsigned()
}

/// A byte as a C `unsigned char`, widened to 32 bits.
fn unsigned(byte: u8) -> u32 {
    u32::from(byte)
}

/// A two-term recurrence, one step per byte.
fn legacy(name: &[u8], widen: impl Fn(u8) -> u32) -> NameHash {
    let (mut last, mut before) = (0x12a3_fe2du32, 0x37ab_e8f9u32);
    for byte in name {
        let mut next = before.wrapping_add(last ^ widen(*byte).wrapping_mul(7_152_373));
        if next >> 31 == 1 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        before = last;
        last = next;
    }
    NameHash::new(last << 1, 0)
}

/// The next `N` words of input from what is left of a name.
///
/// Bytes go in from the top: a word is the four bytes as a big-endian number. What the name does
/// not fill is padding made of the number of bytes left, also above the bytes of the last word.
/// Addition and not OR, so that a negative `char` borrows from the bytes above it, as it does in
/// the original.
fn words<const N: usize>(rest: &[u8], widen: &impl Fn(u8) -> u32) -> [u32; N] {
    // A name of at most 255 bytes; longer input keeps only the bits that matter.
    let len = crate::le::narrow(rest.len());
    let pad = len | (len << 8);
    let pad = pad | (pad << 16);
    let mut out = [pad; N];
    let (whole, last) = rest.as_chunks::<4>();
    let mut words = out.iter_mut();
    for (bytes, word) in whole.iter().zip(&mut words) {
        let together = u32::from_be_bytes(*bytes);
        if together & 0x8080_8080 == 0 {
            // Signed or unsigned is the same.
            *word = together;
            continue;
        }
        let [a, b, c, d] = *bytes;
        let high = (widen(a) << 24).wrapping_add(widen(b) << 16);
        *word = high.wrapping_add(widen(c) << 8).wrapping_add(widen(d));
    }
    if let (Some(word), false) = (words.next(), last.is_empty()) {
        for byte in last {
            *word = (*word << 8).wrapping_add(widen(*byte));
        }
    }
    out
}

fn half_md4(name: &[u8], seed: &HashSeed, widen: impl Fn(u8) -> u32) -> NameHash {
    let mut state = seed.start();
    for at in (0..name.len()).step_by(32) {
        state = md4_rounds(state, words(name.get(at..).unwrap_or(&[]), &widen));
    }
    let [_, major, minor, _] = state;
    NameHash::new(major, minor)
}

/// [`half_md4`] of names of 1 to 32 bytes each.
fn half_md4_of_short(
    names: &[&[u8]; NAMES_AT_ONCE],
    seed: &HashSeed,
    widen: impl Fn(u8) -> u32,
) -> [NameHash; NAMES_AT_ONCE] {
    let mut input = [[0; NAMES_AT_ONCE]; 8];
    for (lane, name) in names.iter().enumerate() {
        for (words, word) in input.iter_mut().zip(words::<8>(name, &widen)) {
            if let Some(slot) = words.get_mut(lane) {
                *slot = word;
            }
        }
    }
    let state = md4_rounds(seed.start().map(u32x8::splat), input.map(u32x8::new));
    let [_, majors, minors, _] = state.map(u32x8::to_array);
    let mut hashes = [NameHash::default(); NAMES_AT_ONCE];
    for ((hash, major), minor) in hashes.iter_mut().zip(majors).zip(minors) {
        *hash = NameHash::new(major, minor);
    }
    hashes
}

/// A word of one name, or of each of several that are hashed side by side: every step waits for the one before, and a
/// processor has the width and the time for several.
trait Words: Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> {
    /// Makes each of them `word`.
    fn all(word: u32) -> Self;
    /// Adds modulo 2^32.
    fn plus(self, other: Self) -> Self;
    /// Turns left by so many bits.
    fn turned<const BITS: u32>(self) -> Self;
}

impl Words for u32 {
    fn all(word: u32) -> u32 {
        word
    }

    fn plus(self, other: u32) -> u32 {
        self.wrapping_add(other)
    }

    fn turned<const BITS: u32>(self) -> u32 {
        self.rotate_left(BITS)
    }
}

impl Words for u32x8 {
    fn all(word: u32) -> u32x8 {
        u32x8::splat(word)
    }

    // The sum of each lane, which has no carry out of it.
    #[expect(clippy::arithmetic_side_effects, reason = "lanes wrap, as the trait says")]
    fn plus(self, other: u32x8) -> u32x8 {
        self + other
    }

    #[expect(clippy::arithmetic_side_effects, reason = "both counts are less than 32")]
    fn turned<const BITS: u32>(self) -> u32x8 {
        (self << BITS) | (self >> (32 - BITS))
    }
}

/// Mixes one word into one of four registers, which change places then.
fn md4_step<const TURN: u32, W: Words>(
    [a, b, c, d]: [W; 4],
    mix: impl Fn(W, W, W) -> W,
    word: W,
    constant: u32,
) -> [W; 4] {
    let sum = a.plus(mix(b, c, d)).plus(word).plus(W::all(constant));
    [d, sum.turned::<TURN>(), b, c]
}

/// The three rounds, of eight steps each instead of MD4's sixteen. The sum of `state` and what they make of it.
fn md4_rounds<W: Words>(state: [W; 4], input: [W; 8]) -> [W; 4] {
    /// sqrt(2) and sqrt(3), as in MD4.
    const ROUND_2: u32 = 0x5a82_7999;
    const ROUND_3: u32 = 0x6ed9_eba1;
    let [i0, i1, i2, i3, i4, i5, i6, i7] = input;
    // Selection, majority and parity of the three registers that are not mixed into.
    let f = |x: W, y: W, z: W| z ^ (x & (y ^ z));
    let g = |x: W, y: W, z: W| (x & y) | ((x ^ y) & z);
    let h = |x: W, y: W, z: W| x ^ y ^ z;
    let mut s = state;
    for [w0, w1, w2, w3] in [[i0, i1, i2, i3], [i4, i5, i6, i7]] {
        s = md4_step::<3, W>(s, f, w0, 0);
        s = md4_step::<7, W>(s, f, w1, 0);
        s = md4_step::<11, W>(s, f, w2, 0);
        s = md4_step::<19, W>(s, f, w3, 0);
    }
    for [w0, w1, w2, w3] in [[i1, i3, i5, i7], [i0, i2, i4, i6]] {
        s = md4_step::<3, W>(s, g, w0, ROUND_2);
        s = md4_step::<5, W>(s, g, w1, ROUND_2);
        s = md4_step::<9, W>(s, g, w2, ROUND_2);
        s = md4_step::<13, W>(s, g, w3, ROUND_2);
    }
    for [w0, w1, w2, w3] in [[i3, i7, i2, i6], [i1, i5, i0, i4]] {
        s = md4_step::<3, W>(s, h, w0, ROUND_3);
        s = md4_step::<9, W>(s, h, w1, ROUND_3);
        s = md4_step::<11, W>(s, h, w2, ROUND_3);
        s = md4_step::<15, W>(s, h, w3, ROUND_3);
    }
    let mut sums = state;
    for (sum, part) in sums.iter_mut().zip(s) {
        *sum = sum.plus(part);
    }
    sums
}

fn tea(name: &[u8], seed: &HashSeed, widen: impl Fn(u8) -> u32) -> NameHash {
    let [mut major, mut minor, _, _] = seed.start();
    for at in (0..name.len()).step_by(16) {
        let key = words::<4>(name.get(at..).unwrap_or(&[]), &widen);
        let (x, y) = tea_encrypt(major, minor, key);
        major = major.wrapping_add(x);
        minor = minor.wrapping_add(y);
    }
    NameHash::new(major, minor)
}

/// Sixteen cycles of the cipher over the pair `x`, `y`.
fn tea_encrypt(mut x: u32, mut y: u32, [k0, k1, k2, k3]: [u32; 4]) -> (u32, u32) {
    const GOLDEN: u32 = 0x9e37_79b9;
    let half = |of: u32, sum: u32, left: u32, right: u32| {
        (of << 4).wrapping_add(left) ^ of.wrapping_add(sum) ^ (of >> 5).wrapping_add(right)
    };
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(GOLDEN);
        x = x.wrapping_add(half(y, sum, k0, k1));
        y = y.wrapping_add(half(x, sum, k2, k3));
    }
    (x, y)
}

#[cfg(test)]
mod tests;
