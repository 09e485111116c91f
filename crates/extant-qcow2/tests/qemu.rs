//! What qemu makes, this crate reads; what this crate writes, qemu finds sound and reads.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use extant_base::Prng;
use extant_block::BlockDevice;
use extant_qcow2::{Format, How, Opened, Qcow2Error, create_over, open, overlay};
use extant_sync::{Clock, SystemClock};
use support::{has, qemu_img, qemu_img_ok, scratch};

const SIZE: u64 = 5 * 1024 * 1024 + 1536;

fn disk(seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let mut bytes = vec![0; SIZE as usize];
    for piece in bytes.chunks_mut(32768) {
        match prng.below(4) {
            0 => {}
            1 => piece.fill(prng.next_u64() as u8),
            _ => piece.fill_with(|| prng.next_u64() as u8 & 0x3f),
        }
    }
    bytes
}

fn read_all(path: &Path, how: &How) -> Vec<u8> {
    let device = open(path, how).unwrap().into_device();
    let mut bytes = vec![0; device.size_bytes() as usize];
    // In pieces that begin and end anywhere.
    for (number, piece) in bytes.chunks_mut(77_777).enumerate() {
        device.read_at(number as u64 * 77_777, piece).unwrap();
    }
    bytes
}

fn write() -> How {
    How { write: true, ..How::default() }
}

#[test]
fn images_of_every_kind_read_as_qemu_wrote_them_and_are_sound_after_writes() {
    if !has("qemu-img") {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    let raw = disk(1);
    fs::write(dir.join("d.raw"), &raw).unwrap();
    let kinds: [&[&str]; 9] = [
        &["-o", "cluster_size=65536"],
        &["-o", "cluster_size=512"],
        &["-o", "cluster_size=2M"],
        &["-o", "compat=0.10"],
        &["-o", "refcount_bits=1"],
        &["-o", "refcount_bits=64,lazy_refcounts=on"],
        &["-c"],
        &["-c", "-o", "compression_type=zstd,cluster_size=4096"],
        &["-o", "preallocation=metadata"],
    ];
    for (number, kind) in kinds.iter().enumerate() {
        let name = format!("k{number}.qcow2");
        let base = ["convert", "-f", "raw", "-O", "qcow2"];
        let arguments = [&base[..], kind, &["d.raw", &name]].concat();
        qemu_img_ok(&arguments, dir);
        let path = dir.join(&name);
        assert!(read_all(&path, &How::default())[..raw.len()] == raw, "{kind:?}");
        let mut model = read_all(&path, &How::default());
        {
            let image = open(&path, &write()).unwrap().into_device();
            let mut prng = Prng::new(number as u64);
            for _ in 0..60 {
                let at = prng.below(SIZE - 1);
                let len = (1 + prng.below(100_000)).min(SIZE - at);
                let range = at as usize..(at + len) as usize;
                match prng.below(6) {
                    0 => {
                        image.write_zeroes(at, len).unwrap();
                        model[range].fill(0);
                    }
                    1 => {
                        image.discard(at, len).unwrap();
                        image.read_at(at, &mut model[range]).unwrap();
                    }
                    _ => {
                        let byte = prng.next_u64() as u8;
                        image.write_at(at, &vec![byte; len as usize]).unwrap();
                        model[range].fill(byte);
                    }
                }
            }
            image.flush().unwrap();
        }
        let checked = qemu_img(&["check", &name], dir);
        assert!(checked.status.success(), "{kind:?}: {checked:?}");
        qemu_img_ok(&["convert", "-f", "qcow2", "-O", "raw", &name, "back.raw"], dir);
        assert!(fs::read(dir.join("back.raw")).unwrap() == model, "{kind:?}");
        assert!(read_all(&path, &How::default()) == model, "{kind:?}");
    }
}

#[test]
fn snapshots_are_listed_and_opened_and_survive_writes() {
    if !has("qemu-img") {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    let raw = disk(2);
    fs::write(dir.join("d.raw"), &raw).unwrap();
    qemu_img_ok(&["convert", "-f", "raw", "-O", "qcow2", "-c", "d.raw", "s.qcow2"], dir);
    qemu_img_ok(&["snapshot", "-c", "before", "s.qcow2"], dir);
    let path = dir.join("s.qcow2");
    {
        let Opened::Qcow2(image) = open(&path, &write()).unwrap() else { panic!("raw") };
        assert_eq!(image.snapshots().len(), 1);
        assert_eq!(image.snapshots()[0].name, "before");
        for at in (0..SIZE - 100).step_by(300_000) {
            image.write_at(at, &[0xee; 100]).unwrap();
        }
        image.discard(1 << 20, 1 << 20).unwrap();
        image.flush().unwrap();
    }
    let checked = qemu_img(&["check", "s.qcow2"], dir);
    assert!(checked.status.success(), "{checked:?}");
    let then = How { snapshot: Some("before".into()), ..How::default() };
    assert!(read_all(&path, &then)[..raw.len()] == raw);
    assert_ne!(read_all(&path, &How::default()), raw);
    let missing = How { snapshot: Some("after".into()), ..How::default() };
    let error = open(&path, &missing).unwrap_err().to_string();
    assert!(error.contains("no snapshot after; it has before"), "{error}");
    let written = How { write: true, ..then };
    assert!(matches!(open(&path, &written), Err(Qcow2Error::Unsupported { .. })));
    // As qemu sees it.
    qemu_img_ok(&["snapshot", "-a", "before", "s.qcow2"], dir);
    qemu_img_ok(&["convert", "-O", "raw", "s.qcow2", "back.raw"], dir);
    assert!(fs::read(dir.join("back.raw")).unwrap()[..raw.len()] == raw);
}

#[test]
fn overlays_are_read_by_qemu_and_committed_and_rebased() {
    if !has("qemu-img") {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    let raw = disk(3);
    fs::write(dir.join("base.raw"), &raw).unwrap();
    qemu_img_ok(&["convert", "-O", "qcow2", "-f", "raw", "-c", "base.raw", "base.qcow2"], dir);
    let mut other = raw.clone();
    other[100_000..200_000].fill(0x11);
    fs::write(dir.join("other.raw"), &other).unwrap();
    for base in ["base.raw", "base.qcow2"] {
        let (over, base) = (dir.join("over.qcow2"), dir.join(base));
        let before = fs::read(&base).unwrap();
        let mut model = read_all(&base, &How::default());
        {
            let image = overlay::open_over(&over, &base, &write()).unwrap().into_device();
            image.write_at(1_000_000, &[0xab; 200_000]).unwrap();
            image.write_zeroes(3_000_000, 500_000).unwrap();
            image.flush().unwrap();
            model[1_000_000..1_200_000].fill(0xab);
            model[3_000_000..3_500_000].fill(0);
        }
        assert!(fs::read(&base).unwrap() == before, "the base is never written");
        let checked = qemu_img(&["check", "over.qcow2"], dir);
        assert!(checked.status.success(), "{checked:?}");
        qemu_img_ok(&["convert", "-O", "raw", "over.qcow2", "back.raw"], dir);
        assert!(fs::read(dir.join("back.raw")).unwrap() == model);
        // Over another base it shows the same disk.
        overlay::rebase(&over, &dir.join("other.raw"), &How::default()).unwrap();
        assert!(read_all(&over, &How::default()) == model);
        qemu_img_ok(&["convert", "-O", "raw", "over.qcow2", "back.raw"], dir);
        assert!(fs::read(dir.join("back.raw")).unwrap() == model);
        let found = overlay::open_over(&over, &base, &write()).unwrap_err();
        assert!(matches!(found, Qcow2Error::OtherBase { .. }), "{found}");
        overlay::rebase(&over, &base, &How::default()).unwrap();
        let checked = qemu_img(&["check", "over.qcow2"], dir);
        assert!(checked.status.success(), "{checked:?}");
        assert!(read_all(&over, &How::default()) == model);
        // Into its base.
        overlay::commit(&over, &How::default()).unwrap();
        assert!(read_all(&base, &How::default()) == model);
        assert!(read_all(&over, &How::default()) == model);
        assert!(fs::metadata(&over).unwrap().len() <= 4 * 65536, "it is empty");
        if base.ends_with("base.qcow2") {
            let checked = qemu_img(&["check", "base.qcow2"], dir);
            assert!(checked.status.success(), "{checked:?}");
        }
        fs::remove_file(&over).unwrap();
    }
}

#[test]
fn a_chain_of_overlays_of_qemu_is_read_and_written() {
    if !has("qemu-img") {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    fs::write(dir.join("a.raw"), disk(4)).unwrap();
    qemu_img_ok(&["create", "-f", "qcow2", "-b", "a.raw", "-F", "raw", "b.qcow2"], dir);
    qemu_img_ok(&["create", "-f", "qcow2", "-b", "b.qcow2", "-F", "qcow2", "c.qcow2", "6M"], dir);
    let path = dir.join("c.qcow2");
    let mut model = disk(4);
    model.resize(6 << 20, 0);
    assert!(read_all(&path, &How::default()) == model);
    {
        let image = open(&path, &write()).unwrap().into_device();
        // A part of a cluster that lies over the end of the base.
        image.write_at(SIZE - 700, &[1; 2000]).unwrap();
        model[SIZE as usize - 700..SIZE as usize + 1300].fill(1);
        // It may be written once, and what it lies over not at all meanwhile.
        assert!(open(&path, &write()).is_err());
        assert!(open(&dir.join("b.qcow2"), &write()).is_err());
        assert!(open(&dir.join("a.raw"), &write()).is_err());
    }
    assert!(read_all(&path, &How::default()) == model);
    qemu_img_ok(&["convert", "-O", "raw", "c.qcow2", "back.raw"], dir);
    assert!(fs::read(dir.join("back.raw")).unwrap() == model);
}

#[test]
fn first_use_of_an_overlay_by_many_makes_one() {
    let dir = scratch();
    let dir = dir.path();
    fs::write(dir.join("base.raw"), disk(5)).unwrap();
    let (over, base) = (&dir.join("over.qcow2"), &dir.join("base.raw"));
    let all = std::sync::Barrier::new(8);
    let got: Vec<_> = extant_sync::threads::workers("first", 8, |_| {
        all.wait();
        let opened = overlay::open_over(over, base, &write());
        all.wait();
        opened.map(drop).map_err(|error| error.to_string())
    })
    .unwrap();
    let (ours, theirs): (Vec<_>, Vec<_>) = got.into_iter().partition(Result::is_ok);
    assert_eq!(ours.len(), 1);
    for error in theirs {
        let error = error.unwrap_err();
        assert!(error.contains("in use"), "{error}");
    }
    let left: Vec<_> = fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_a_guest_could_have_written_is_not_believed() {
    let dir = scratch();
    let dir = dir.path();
    fs::write(dir.join("secret"), vec![0x5e; 1 << 20]).unwrap();
    let disguised = dir.join("disk.img");
    let here = |name: &str| fs::copy(dir.join(name), &disguised).unwrap();
    // A header in a raw image, over a file of the host.
    create_over(&dir.join("evil.qcow2"), 1 << 20, Path::new("secret"), Format::Raw).unwrap();
    here("evil.qcow2");
    for how in [How::default(), write()] {
        let error = open(&disguised, &how).unwrap_err();
        assert!(matches!(error, Qcow2Error::Doubtful { .. }), "{error}");
    }
    // Over nothing it can be read, and not written.
    extant_qcow2::create(&dir.join("plain.qcow2"), 1 << 20).unwrap();
    here("plain.qcow2");
    assert!(matches!(open(&disguised, &How::default()), Ok(Opened::Qcow2(_))));
    assert!(matches!(open(&disguised, &write()), Err(Qcow2Error::Doubtful { .. })));
    for (format, is_raw) in [(Format::Raw, true), (Format::Qcow2, false)] {
        let said = How { format: Some(format), ..write() };
        assert_eq!(matches!(open(&disguised, &said), Ok(Opened::Raw(_))), is_raw);
    }
    // A name that says qcow2, over a file elsewhere.
    let elsewhere = scratch();
    let other = elsewhere.path().join("other");
    fs::write(&other, vec![1; 1 << 20]).unwrap();
    let far = dir.join("far.qcow2");
    create_over(&far, 1 << 20, &other, Format::Raw).unwrap();
    let error = open(&far, &How::default()).unwrap_err().to_string();
    assert!(error.contains("outside of") && error.contains("--backing-dir"), "{error}");
    let allowed = How { backing_dirs: vec![elsewhere.path().to_owned()], ..How::default() };
    assert!(open(&far, &allowed).is_ok());
    // Over itself, through a link.
    let circle = dir.join("circle.qcow2");
    create_over(&circle, 1 << 20, Path::new("ring.qcow2"), Format::Qcow2).unwrap();
    std::os::unix::fs::symlink("circle.qcow2", dir.join("ring.qcow2")).unwrap();
    let error = open(&circle, &How::default()).unwrap_err().to_string();
    assert!(error.contains("in a circle"), "{error}");
    // Over something that is no file.
    let net = dir.join("net.qcow2");
    create_over(&net, 1 << 20, Path::new("nbd://host/x"), Format::Raw).unwrap();
    let error = open(&net, &How::default()).unwrap_err().to_string();
    assert!(error.contains("nbd://host/x, which is not opened because a file says so"), "{error}");
}

/// An overlay named `name` with a cluster of its own, over `base` as its header has it.
fn overlay_with_bytes(dir: &Path, name: &str, base: &Path) -> std::path::PathBuf {
    let over = dir.join(name);
    create_over(&over, 1 << 20, base, Format::Raw).unwrap();
    let allowed = How { backing_dirs: vec![Path::new("/").to_owned()], ..write() };
    let image = open(&over, &allowed).unwrap().into_device();
    image.write_at(0, &[7; 65536]).unwrap();
    image.flush().unwrap();
    over
}

/// Another format of the base in the header of an overlay, of at most three letters: or none.
fn record(over: &Path, format: &[u8]) {
    let mut bytes = fs::read(over).unwrap();
    let at = bytes.windows(4).position(|four| four == [0xe2, 0x79, 0x2a, 0xca]).unwrap();
    match format {
        [] => bytes[at..at + 4].copy_from_slice(&0x7fff_0001u32.to_be_bytes()),
        _ => bytes[at + 8..at + 8 + format.len()].copy_from_slice(format),
    }
    fs::write(over, bytes).unwrap();
}

#[test]
fn a_commit_writes_only_where_the_overlay_may_be_opened() {
    let (dir, far) = (scratch(), scratch());
    let (dir, far) = (dir.path(), far.path());
    let victim = far.join("victim.img");
    fs::write(&victim, vec![1; 1 << 20]).unwrap();
    // What a file names is not written because it says so.
    let over = overlay_with_bytes(dir, "far.qcow2", &victim);
    let error = overlay::commit(&over, &How::default()).unwrap_err().to_string();
    assert!(error.contains("outside of") && error.contains("--backing-dir"), "{error}");
    assert!(fs::read(&victim).unwrap() == [1; 1 << 20]);
    let allowed = How { backing_dirs: vec![far.to_owned()], ..How::default() };
    overlay::commit(&over, &allowed).unwrap();
    assert!(fs::read(&victim).unwrap()[..65536] == [7; 65536]);
    // Nor as raw what is in a format that is not known here, or not recorded.
    let near = dir.join("near.img");
    fs::write(&near, vec![1; 1 << 20]).unwrap();
    for (format, complaint) in [(&b"vdi"[..], "its format is vdi"), (b"", "not recorded")] {
        let over = overlay_with_bytes(dir, &format!("{}.qcow2", format.len()), &near);
        record(&over, format);
        let error = overlay::commit(&over, &How::default()).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
        assert!(fs::read(&near).unwrap() == [1; 1 << 20]);
    }
}

#[test]
fn an_overlay_goes_over_nothing_that_lies_over_it_or_is_written() {
    let dir = scratch();
    let dir = dir.path();
    fs::write(dir.join("base.raw"), vec![1; 1 << 20]).unwrap();
    let low = overlay_with_bytes(dir, "low.qcow2", Path::new("base.raw"));
    let high = dir.join("high.qcow2");
    overlay::make(&high, &low, &How::default()).unwrap();
    for above in [&low, &high] {
        let error = overlay::rebase(&low, above, &How::default()).unwrap_err().to_string();
        assert!(error.contains("over itself") || error.contains("in a circle"), "{error}");
        assert!(read_all(&low, &How::default())[..65536] == [7; 65536]);
    }
    // While another program writes the new base, or what that lies over, what differs cannot be told.
    let other = dir.join("other.qcow2");
    overlay::make(&other, &dir.join("base.raw"), &How::default()).unwrap();
    let top = dir.join("top.qcow2");
    overlay::make(&top, &other, &How::default()).unwrap();
    let mine = overlay_with_bytes(dir, "mine.qcow2", Path::new("base.raw"));
    let writer = open(&other, &write()).unwrap();
    for base in [&other, &top] {
        let error = overlay::rebase(&mine, base, &How::default()).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
    }
    drop(writer);
    // A program that another test starts just now has the file as well, until it runs.
    let mut rebased = overlay::rebase(&mine, &top, &How::default());
    for _ in 0..50 {
        if rebased.is_ok() {
            break;
        }
        SystemClock.sleep(Duration::from_millis(100));
        rebased = overlay::rebase(&mine, &top, &How::default());
    }
    rebased.unwrap();
    assert!(read_all(&mine, &How::default())[..65536] == [7; 65536]);
}

#[test]
fn an_overlay_with_snapshots_stays_over_its_base() {
    if !has("qemu-img") {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    fs::write(dir.join("one.raw"), vec![1; 1 << 20]).unwrap();
    fs::write(dir.join("two.raw"), vec![2; 1 << 20]).unwrap();
    let over = overlay_with_bytes(dir, "over.qcow2", Path::new("one.raw"));
    qemu_img_ok(&["snapshot", "-c", "before", "over.qcow2"], dir);
    let error = overlay::rebase(&over, &dir.join("two.raw"), &How::default()).unwrap_err();
    assert!(error.to_string().contains("holds snapshots"), "{error}");
    let before = How { snapshot: Some("before".to_owned()), ..How::default() };
    assert!(read_all(&over, &before)[65536..] == [1; (1 << 20) - 65536]);
}

/// A disk of 2 MiB with one partition at 1 MiB.
fn partitioned() -> Vec<u8> {
    let mut bytes = vec![1; 2 << 20];
    bytes[446..510].fill(0);
    bytes[450] = 0x83;
    bytes[454..458].copy_from_slice(&2048u32.to_le_bytes());
    bytes[458..462].copy_from_slice(&2048u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

#[test]
fn a_base_that_somebody_changed_is_refused_until_it_is_taken_as_it_is() {
    let dir = scratch();
    let dir = dir.path();
    let (base, over) = (dir.join("base.raw"), dir.join("over.qcow2"));
    fs::write(&base, partitioned()).unwrap();
    overlay::make(&over, &base, &How::default()).unwrap();
    let image = open(&over, &write()).unwrap().into_device();
    image.write_at(700_000, &[7; 65536]).unwrap();
    image.flush().unwrap();
    drop(image);
    // A superblock of the disk, one of the partition, and another size.
    for (at, len) in [(1500, 0), ((1 << 20) + 1500, 0), (0, 512)] {
        let mut bytes = fs::read(&base).unwrap();
        bytes[at] ^= 0xff;
        bytes.resize(bytes.len() + len, 1);
        fs::write(&base, &bytes).unwrap();
        let refused = [
            open(&over, &How::default()).map(drop),
            overlay::open_over(&over, &base, &write()).map(drop),
            overlay::commit(&over, &How::default()).map(drop),
            overlay::rebase(&over, &base, &How::default()).map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(matches!(error, Qcow2Error::BaseChanged { .. }), "{error}");
        }
        assert!(fs::read(&base).unwrap() == bytes);
        overlay::rebase_as_is(&over, &base, &How::default()).unwrap();
        bytes.truncate(2 << 20);
        bytes[700_000..765_536].fill(7);
        assert!(read_all(&over, &How::default()) == bytes);
    }
    // An overlay over that is told, too.
    let top = dir.join("top.qcow2");
    overlay::make(&top, &over, &How::default()).unwrap();
    let image = open(&over, &write()).unwrap().into_device();
    image.write_at(1024, &[9; 1024]).unwrap();
    image.flush().unwrap();
    drop(image);
    let error = open(&top, &How::default()).map(drop).unwrap_err();
    assert!(matches!(error, Qcow2Error::BaseChanged { .. }), "{error}");
}

#[test]
fn a_commit_that_was_cut_off_is_done_again() {
    let dir = scratch();
    let dir = dir.path();
    let (base, over) = (dir.join("base.raw"), dir.join("over.qcow2"));
    fs::write(&base, vec![1; 1 << 20]).unwrap();
    overlay::make(&over, &base, &How::default()).unwrap();
    let image = open(&over, &write()).unwrap().into_device();
    image.write_at(0, &[7; 65536]).unwrap();
    image.flush().unwrap();
    drop(image);
    // No name is left for the empty overlay, which is made when the base has everything.
    let taken = |number| dir.join(format!(".over.qcow2.extant-{}-{number}", std::process::id()));
    (0..100).for_each(|number| fs::write(taken(number), "").unwrap());
    overlay::commit(&over, &How::default()).unwrap_err();
    (0..100).for_each(|number| fs::remove_file(taken(number)).unwrap());
    let mut wanted = vec![1; 1 << 20];
    wanted[..65536].fill(7);
    assert!(fs::read(&base).unwrap() == wanted);
    assert!(read_all(&over, &How::default()) == wanted);
    overlay::commit(&over, &How::default()).unwrap();
    assert!(read_all(&over, &How::default()) == wanted);
    // The empty one knows its base.
    fs::write(&base, vec![2; 1 << 20]).unwrap();
    open(&over, &How::default()).map(drop).unwrap_err();
}
