//! Keys and policies, asked for as the tools for fscrypt ask. Most of what they pass lies where the
//! kernel does not look, in the memory of the program that waits.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};

/// Prints what each operation answers. Around what is written, bytes are looked at.
const ASKS: &str = "
import ctypes, os, struct, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def ask(path, command, argument):
    room = ctypes.create_string_buffer(argument + b'\\xee' * 16, len(argument) + 16)
    fd = os.open(path, os.O_RDONLY)
    failed = libc.ioctl(fd, ctypes.c_ulong(command), room)
    os.close(fd)
    if failed:
        return ctypes.get_errno()
    assert room.raw.endswith(b'\\xee' * 16), 'written behind the argument'
    return room.raw[:len(argument)]
os.mkdir('dir')
key = bytes(range(64))
added = ask('.', 0xc0506617, struct.pack('I36xI36x', 2, 64) + key)
name = added[8:24]
assert name != bytes(16) and added[80:] == key, added
policy = bytes([2, 1, 4, 3, 0, 0, 0, 0]) + name
assert ask('dir', 0x800c6613, policy) == bytes(policy), 'set'
got = ask('dir', 0xc0096616, struct.pack('Q', 24) + bytes(24))
assert got == struct.pack('Q', 24) + policy, got
assert ask('dir', 0x400c6615, bytes(12)) == 22, 'version 1 only'
assert ask('.', 0x400c6615, bytes(12)) == 61, 'no policy'
salt = ask('.', 0x40106614, bytes(16))
assert salt != bytes(16) and salt == ask('.', 0x40106614, bytes(16)), salt
old = bytes([0, 1, 4, 3]) + b'oldnamed'
os.mkdir('old')
assert ask('old', 0x800c6613, old + bytes(12)) == old + bytes(12), 'set of version 1'
assert ask('old', 0x400c6615, bytes(12)) == old
print(salt.hex())
";

#[test]
fn arguments_that_the_kernel_does_not_pass_are_read_and_written_where_they_are() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        skip!("needs python3");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "8M", &["-t", "ext4", "-O", "encrypt"]));
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let shared = Arc::clone(&device) as extant_block::SharedDevice;
    let fs = MountOptions::new().read_only(false).open_shared(shared).unwrap();
    let ask = |at: &Path| Command::new("python3").arg("-c").arg(ASKS).arg(at).output().unwrap();
    let (served, asked) = with_mount(fs, &at, &Settings::default(), &Heard::new(), ask);
    served.unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let fs = MountOptions::new().open_shared(device).unwrap();
    let stored: String =
        fs.superblock().encrypt_pw_salt.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8(asked.stdout).unwrap().trim_end(), stored, "the salt");
}
