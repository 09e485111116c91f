//! A layout of any documents: never a panic, and layers that are found can be opened or are refused.
//!
//! The input is cut at bytes 0xff into index, manifest, configuration, layer and others. `@0` to `@9` in a document stand for
//! digest and size of the part with that number, or nearly all inputs would end at the first digest.
#![no_main]

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};

use extant_oci::{Choice, Digest, Store, Stored, open_docker_archive, open_layout};
use libfuzzer_sys::fuzz_target;

struct Parts(BTreeMap<String, Vec<u8>>);

impl Store for Parts {
    fn name(&self) -> &str {
        "fuzz"
    }

    fn open(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        assert!(!path.starts_with('/') && path.split('/').all(|part| part != ".."), "{path}");
        Ok(self.0.get(path).map(|bytes| Stored {
            size: bytes.len() as u64,
            reader: Box::new(Cursor::new(bytes.as_slice())),
        }))
    }
}

fn parts(data: &[u8]) -> Parts {
    let parts: Vec<&[u8]> = data.split(|&b| b == 0xff).take(10).collect();
    let mut files = BTreeMap::new();
    let mut done: Vec<(String, usize)> = vec![(String::new(), 0); parts.len()];
    // The last part first: documents point to later ones.
    for (at, part) in parts.iter().enumerate().rev() {
        let mut text = part.to_vec();
        for (number, (digest, size)) in done.iter().enumerate().skip(at + 1) {
            let mark = format!("@{number}");
            let with = format!("\"digest\":\"{digest}\",\"size\":{size}");
            let id = format!("#{number}");
            text = replaced(&replaced(&text, mark.as_bytes(), with.as_bytes()), id.as_bytes(), digest.as_bytes());
        }
        let digest = Digest::sha256(&text);
        files.insert(format!("blobs/sha256/{}", digest.hex()), text.clone());
        done[at] = (digest.to_string(), text.len());
        if at == 0 {
            files.insert("index.json".into(), text.clone());
            files.insert("manifest.json".into(), text);
        } else {
            files.insert(format!("{at}"), text);
        }
    }
    files.insert("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    Parts(files)
}

fn replaced(text: &[u8], mark: &[u8], with: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(mark.len()).position(|part| part == mark) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(with);
        rest = &rest[at + mark.len()..];
    }
    out.extend_from_slice(rest);
    out
}

fuzz_target!(|data: &[u8]| {
    let store = parts(data);
    for open in [open_layout, open_docker_archive] {
        let Ok(image) = open(&store, &Choice::default()) else { continue };
        for layer in &image.layers {
            let Ok(mut stream) = layer.open(&store) else { continue };
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
        }
    }
});
