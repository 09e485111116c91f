//! Published vectors of wide-block ciphers, and what all of these have in common.

/// One message, both ways.
pub(crate) struct Vector {
    pub(crate) key: [u8; 32],
    pub(crate) tweak: [u8; 32],
    pub(crate) plain: Vec<u8>,
    pub(crate) cipher: Vec<u8>,
}

/// Reads a table: a word in a line of its own, then its bytes as hex digits in lines that begin with a space.
pub(crate) fn read(text: &str) -> Vec<Vector> {
    let mut fields: Vec<(&str, Vec<u8>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => fields.push((line, Vec::new())),
            Some(digits) => {
                let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                fields.last_mut().unwrap().1.extend((0..digits.len()).step_by(2).map(byte));
            }
        }
    }
    let vector = |fields: &[(&str, Vec<u8>)]| {
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["key", "tweak", "plain", "cipher"]);
        Vector {
            key: fields[0].1[..].try_into().unwrap(),
            tweak: fields[1].1[..].try_into().unwrap(),
            plain: fields[2].1.clone(),
            cipher: fields[3].1.clone(),
        }
    };
    fields.chunks(4).map(vector).collect()
}

/// Nothing of the message is left where it was: not even eight bytes in a row.
pub(crate) fn assert_scattered(cipher: &[u8], plain: &[u8]) {
    assert_eq!(cipher.len(), plain.len());
    let is_left = cipher.windows(8).zip(plain.windows(8)).any(|(one, other)| one == other);
    assert!(!is_left, "{} bytes", plain.len());
}

/// A bit of the message or of the tweak changes the beginning, the middle and the end.
pub(crate) fn assert_wide(encrypt: impl Fn(&[u8; 32], &mut [u8])) {
    for len in [32, 45, 4096] {
        let encrypted = |tweak: [u8; 32], flipped: Option<usize>| {
            let mut message = vec![0x5a; len];
            if let Some(bit) = flipped {
                message[bit / 8] ^= 1 << (bit % 8);
            }
            encrypt(&tweak, &mut message);
            message
        };
        let known = encrypted([0; 32], None);
        let mut others: Vec<Vec<u8>> = [0, 77, 8 * len / 2 + 3, 8 * len - 130, 8 * len - 1]
            .map(|bit| encrypted([0; 32], Some(bit)))
            .to_vec();
        others.extend((0..32).map(|byte| {
            let mut tweak = [0; 32];
            tweak[byte] = 1;
            encrypted(tweak, None)
        }));
        for (which, other) in others.iter().enumerate() {
            for (one, other) in
                known.chunks(16).zip(other.chunks(16)).filter(|(one, _)| one.len() > 8)
            {
                assert_ne!(one, other, "{len} bytes, change {which}");
            }
        }
    }
}
