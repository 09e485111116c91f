//! Overlays over images that are no files of this host.

use std::path::Path;
use std::sync::Arc;

use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_qcow2::{Elsewhere, Format, How, Qcow2Error, open, open_alone, overlay};

const SIZE: u64 = 3 << 20;
const ADDRESS: &str = "https://images.example/debian.img";

fn base(version: &str) -> (Arc<MemoryDevice>, Elsewhere) {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8).collect();
    device.write_at(0, &bytes).unwrap();
    let elsewhere = Elsewhere {
        address: ADDRESS.into(),
        device: Arc::clone(&device) as SharedDevice,
        format: Format::Raw,
        version: version.into(),
    };
    (device, elsewhere)
}

fn over(base: &Elsewhere, write: bool) -> How {
    How { write, elsewhere: Some(base.clone()), ..How::default() }
}

fn read(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_overlay_is_opened_over_the_version_of_its_base_that_it_was_made_over() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.qcow2");
    let (device, first) = base("3145728 bytes, tag \"a\"");
    let before = read(&*device);
    {
        let image = overlay::open_over_elsewhere(&file, &over(&first, true)).unwrap().into_device();
        image.write_at(1000, &[0xee; 70_000]).unwrap();
        image.flush().unwrap();
    }
    assert!(read(&*device) == before, "the base was written");
    let mut wanted = before.clone();
    wanted[1000..71_000].fill(0xee);
    let image = overlay::open_over_elsewhere(&file, &over(&first, false)).unwrap().into_device();
    assert!(read(&*image) == wanted);
    let facts = open_alone(&file).unwrap().facts().unwrap();
    assert_eq!(facts.backing.as_deref(), Some(ADDRESS));
    assert_eq!(facts.backing_version.as_deref(), Some("3145728 bytes, tag \"a\""));
    for write in [false, true] {
        let (_, second) = base("3145728 bytes, tag \"b\"");
        let error = overlay::open_over_elsewhere(&file, &over(&second, write)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Qcow2Error::BaseChanged { .. }), "{text}");
        assert!(text.contains("tag \"a\"") && text.contains("tag \"b\""), "{text}");
    }
    // Its own name says whom to ask, and nobody is asked for that.
    let error = open(&file, &How::default()).unwrap_err();
    assert!(matches!(error, Qcow2Error::Elsewhere { .. }), "{error}");
    let mut other = first.clone();
    other.address = "https://images.example/other.img".into();
    let error = overlay::open_over_elsewhere(&file, &over(&other, false)).unwrap_err();
    assert!(matches!(error, Qcow2Error::OtherBase { .. }), "{error}");
}

#[test]
fn an_overlay_goes_to_an_address_and_comes_from_it_and_is_committed_where_that_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let (local, file) = (dir.path().join("base.img"), dir.path().join("o.qcow2"));
    let (device, elsewhere) = base("3145728 bytes");
    let mut different = read(&*device);
    different[2_000_000..2_200_000].fill(0x11);
    std::fs::write(&local, &different).unwrap();
    overlay::make(&file, &local, &How::default()).unwrap();
    let shows = |how: &How, wanted: &[u8]| {
        let image = open(&file, how).unwrap().into_device();
        assert!(read(&*image) == wanted);
    };
    shows(&How::default(), &different);
    let moved = overlay::rebase_elsewhere(&file, &elsewhere, &How::default()).unwrap();
    assert!(moved.bytes >= 200_000 && moved.bytes < 400_000, "{moved:?}");
    shows(&over(&elsewhere, false), &different);
    // From there on it is bound to that version.
    let (_, changed) = base("3145728 bytes, tag \"new\"");
    let error = open(&file, &over(&changed, false)).unwrap_err();
    assert!(matches!(error, Qcow2Error::BaseChanged { .. }), "{error}");
    overlay::rebase(&file, &local, &over(&elsewhere, false)).unwrap();
    shows(&How::default(), &different);
    let version = open_alone(&file).unwrap().facts().unwrap().backing_version.unwrap();
    assert!(version.starts_with("3145728 bytes, beginning with"), "{version}");
    overlay::rebase_elsewhere(&file, &elsewhere, &How::default()).unwrap();
    let error = overlay::commit(&file, &How::default()).unwrap_err();
    assert!(matches!(error, Qcow2Error::Elsewhere { .. }), "{error}");
    overlay::commit(&file, &over(&elsewhere, false)).unwrap();
    assert!(read(&*device) == different, "what was committed is not below");
    shows(&over(&elsewhere, false), &different);
    let facts = open_alone(&file).unwrap().facts().unwrap();
    assert_eq!((facts.own_clusters, facts.backing_version.as_deref()), (0, Some("3145728 bytes")));
}

#[test]
fn what_a_header_has_no_room_for_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.qcow2");
    let (_, plain) = base("v");
    let long = Elsewhere { version: "v".repeat(201), ..plain.clone() };
    let far = Elsewhere { address: format!("https://{}", "a".repeat(1016)), ..plain.clone() };
    let near = Elsewhere { address: "base.img".into(), ..plain.clone() };
    for wrong in [long, far, near] {
        let error = overlay::make_elsewhere(&file, &wrong).unwrap_err();
        assert!(matches!(error, Qcow2Error::Unsupported { .. }), "{error}");
        assert!(!Path::new(&file).exists());
    }
    let longest = Elsewhere {
        version: "v".repeat(200),
        address: format!("https://{}", "a".repeat(1015)),
        ..plain
    };
    overlay::make_elsewhere(&file, &longest).unwrap();
    overlay::open_over_elsewhere(&file, &over(&longest, true)).unwrap();
}
