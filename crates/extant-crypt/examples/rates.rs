//! How fast the ciphers of contents are on one core, in MiB/s, and how long a name takes:
//!
//! ```text
//! cargo run --release -p extant-crypt --example rates
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use extant_crypt::{
    ContentsCipher, ContentsMode, Context, MasterKey, NamesCipher, NamesMode, Place, Policy,
};

const BLOCK: usize = 4096;
const PLACE: Place = Place { ino: 12, uuid: [3; 16], is_stable: true, block_log2: 12 };

#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// The best of several rounds: what else runs on the machine only makes it slower.
fn best(mut work: impl FnMut()) -> Duration {
    let round = |work: &mut dyn FnMut()| {
        let start = now();
        work();
        start.elapsed()
    };
    (0..15).map(|_| round(&mut work)).min().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = MasterKey::new(&std::array::from_fn::<u8, 64, _>(|n| n as u8))?;
    let usual = Policy::new(key.identifier());
    for (contents, names) in [
        (ContentsMode::Aes256Xts, NamesMode::Aes256Cts),
        (ContentsMode::Aes128CbcEssiv, NamesMode::Aes128Cts),
        (ContentsMode::Adiantum, NamesMode::Adiantum),
        (ContentsMode::Aes256Xts, NamesMode::Aes256Hctr2),
    ] {
        let policy = Policy { contents, names, ..usual };
        let context = Context { policy, nonce: [7; 16] };
        let cipher = ContentsCipher::new(&key, &context, &PLACE)?;
        let mut bytes = vec![1; 256 * BLOCK];
        let rate = |time: Duration| bytes_per_second(256 * BLOCK, time) / f64::from(1 << 20);
        let encrypted = rate(best(|| cipher.encrypt(0, black_box(&mut bytes))));
        let decrypted = rate(best(|| cipher.decrypt(0, black_box(&mut bytes))));
        println!(
            "{:18} contents of 4 KiB: encrypt {encrypted:6.0} MiB/s, decrypt {decrypted:6.0} MiB/s",
            contents.name()
        );
        let cipher = NamesCipher::new(&key, &context, &PLACE)?;
        let stored = cipher.encrypt(b"a name of some length.txt", 255)?;
        let time = best(|| {
            for _ in 0..1000 {
                black_box(cipher.decrypt(black_box(&stored)));
            }
        });
        println!("{:18} a name of 32 bytes: {} ns", names.name(), time.as_nanos() / 1000);
    }
    Ok(())
}

fn bytes_per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64()
}
