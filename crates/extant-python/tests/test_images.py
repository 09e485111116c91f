"""Building, making and checking images."""

import contextlib
import errno
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading

import pytest

import extant

MIB = 1 << 20


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hostname").write_text("web1\n")
    for n in range(8):
        (root / f"big{n}").write_bytes(os.urandom(4 * MIB))
    return root


def test_a_directory_becomes_an_image_and_progress_is_told(tree, tmp_path):
    told = []
    built = extant.build(
        tree, tmp_path / "a.img", free_bytes=8 * MIB, owner=(0, 0), label="x", progress=lambda *seen: told.append(seen)
    )
    assert built.size == (tmp_path / "a.img").stat().st_size and built.skipped == 0 and built.lost == []
    assert told and told[-1][0] >= 32 * MIB and all(done <= total for done, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    report = extant.check(tmp_path / "a.img")
    assert report.clean and report.directories >= 2
    with extant.open(tmp_path / "a.img") as fs:
        assert fs.read_text("/etc/hostname") == "web1\n" and fs.uuid == built.uuid
        assert fs.read_bytes("/big3") == (tree / "big3").read_bytes()


def test_an_exception_in_progress_cancels_and_leaves_what_was_there(tree, tmp_path):
    target = tmp_path / "a.img"
    with pytest.raises(ZeroDivisionError):
        extant.build(tree, target, progress=lambda done, total: 1 // 0)
    assert not target.exists() and os.listdir(tmp_path) == ["root"]
    extant.mkfs(target, 16 * MIB)
    before = target.read_bytes()
    with pytest.raises(FileExistsError):
        extant.build(tree, target)
    with pytest.raises(ZeroDivisionError):
        extant.build(tree, target, overwrite=True, progress=lambda done, total: 1 // 0)
    assert target.read_bytes() == before


def test_an_error_of_a_build_has_the_file_that_it_is_about(tree, tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        extant.build(tmp_path / "none", tmp_path / "a.img")
    assert raised.value.filename == str(tmp_path / "none")
    with pytest.raises(FileNotFoundError) as raised:
        extant.build(tmp_path / "n\u00f6ne", tmp_path / "a.img")
    assert raised.value.filename == str(tmp_path / "n\u00f6ne")
    with pytest.raises(FileNotFoundError) as raised:
        extant.build(tree, tmp_path / "none" / "a.img")
    assert raised.value.filename == str(tmp_path / "none" / "a.img")
    extant.mkfs(tmp_path / "a.img", 16 * MIB)
    with pytest.raises(FileExistsError) as raised:
        extant.build(tree, tmp_path / "a.img")
    assert raised.value.filename == str(tmp_path / "a.img")
    with pytest.raises(OSError) as raised:
        extant.build(tree, tmp_path / "b.img", size=8 * MIB)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "b.img"))


def test_ctrl_c_ends_a_build_that_is_still_reading_its_source(tmp_path):
    # A packed archive of one member of 4 GiB comes through a pipe; an image is begun when all of it was read.
    pieces, piece = 64, gzip.compress(bytes(64 * MIB), 1)
    member = tarfile.TarInfo("zeros")
    member.size = pieces * 64 * MIB
    os.mkfifo(tmp_path / "archive")
    sent, told = [], []

    def send():
        with contextlib.suppress(BrokenPipeError), open(tmp_path / "archive", "wb", 0) as pipe:
            pipe.write(gzip.compress(member.tobuf(tarfile.GNU_FORMAT)))
            for number in range(pieces):
                sent.append(number)
                pipe.write(piece)
            pipe.write(gzip.compress(bytes(10240)))

    def interrupted(done, total):
        told.append(total)
        if len(told) == 3:
            signal.raise_signal(signal.SIGINT)

    # Who is started in the background may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            extant.build(tmp_path / "archive", tmp_path / "a.img", tar=True, progress=interrupted)
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert set(told) == {0} and len(sent) < pieces
    assert os.listdir(tmp_path) == ["archive"]


def test_equal_sources_make_equal_bytes_also_from_an_archive(tree, tmp_path):
    images = [tmp_path / name for name in ("a.img", "b.img")]
    for threads, image in enumerate(images, 1):
        extant.build(tree, image, epoch=1_700_000_000, threads=threads)
    assert images[0].read_bytes() == images[1].read_bytes()
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tree, ".")
    extant.build(tmp_path / "t.tar", tmp_path / "t.img")
    with extant.open(tmp_path / "t.img") as fs:
        assert fs.read_text("/etc/hostname") == "web1\n"


def test_what_makes_no_sense_is_refused(tree, tmp_path):
    for options in ({"size": 1, "free_bytes": 1}, {"features": "^nonsense"}, {"label": "x" * 17}):
        with pytest.raises(ValueError):
            extant.build(tree, tmp_path / "a.img", **options)
    with pytest.raises(OSError) as error:
        extant.build(tree, tmp_path / "a.img", size=8 * MIB)
    assert error.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError):
        extant.build(tmp_path / "none", tmp_path / "a.img")
    with pytest.raises(FileNotFoundError):
        extant.check(tmp_path / "none")
    # As the built-in open has it: no file of the host can have such a name.
    for call in (
        lambda: extant.open("a\0b"),
        lambda: extant.check("a\0b"),
        lambda: extant.mkfs("a\0b", 8 * MIB),
        lambda: extant.build("a\0b", tmp_path / "a.img"),
        lambda: extant.build(tree, b"a\0b"),
    ):
        with pytest.raises(ValueError, match="embedded null byte"):
            call()
    (tmp_path / "empty").write_bytes(bytes(MIB))
    with pytest.raises(OSError):
        extant.check(tmp_path / "empty")


def test_damage_is_named(tmp_path):
    image = tmp_path / "a.img"
    extant.mkfs(image, 32 * MIB)
    with open(image, "r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    report = extant.check(image)
    assert not report.clean and all(problem.code and problem.message for problem in report.problems)


def test_a_frozen_mount_can_be_copied_and_goes_on_afterwards(tmp_path):
    image, copy = tmp_path / "a.img", tmp_path / "copy.img"
    extant.mkfs(image, 16 * MIB)
    with extant.open(image, "r+") as fs:
        fs.write_text("/a", "before")
        done = threading.Event()

        def change():
            fs.write_text("/a", "after")
            done.set()

        with fs.frozen() as still:
            assert still is fs and fs.read_text("/a") == "before"
            with pytest.raises(OSError) as caught, fs.frozen():
                pass
            assert caught.value.errno == errno.EBUSY
            writer = threading.Thread(target=change)
            writer.start()
            shutil.copyfile(image, copy)
            assert not done.wait(0.1)
        writer.join(20)
        assert done.is_set() and fs.read_text("/a") == "after"
        with pytest.raises(ZeroDivisionError), fs.frozen():
            1 // 0
        fs.write_text("/a", "it goes on")
        freezing = fs.frozen()
        freezing.__enter__()
    assert fs.closed  # closing ends it
    assert extant.check(copy).clean
    with extant.open(copy) as fs:
        assert fs.read_text("/a") == "before"
    with extant.open(image) as fs, fs.frozen():
        assert fs.read_text("/a") == "it goes on"


CRASH = """
import extant, os, signal, sys
fs = extant.open(sys.argv[1], "r+")
fs.write_text("/a", "synced")
file = fs.open("/gone", "wb", 0)
fs.unlink("/gone")
fs.sync()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_mounting_waits_for_is_told_and_can_be_cancelled(tmp_path):
    image = tmp_path / "a.img"
    extant.mkfs(image, 16 * MIB)
    told = []
    extant.open(image, "r+", progress=lambda *seen: told.append(seen)).close()
    assert told == []
    crashed = subprocess.run([sys.executable, "-c", CRASH, image])
    assert crashed.returncode == -signal.SIGKILL
    with pytest.raises(ZeroDivisionError):
        extant.open(image, "r+", progress=lambda stage, done, total: 1 // 0)
    with extant.open(image, "r+", progress=lambda *seen: told.append(seen)) as fs:
        assert fs.read_text("/a") == "synced"
    assert {"replaying", "orphans"} <= {stage for stage, _, _ in told}
    assert all(0 <= done <= total for _, done, total in told)
    assert extant.check(image).clean


def test_a_disk_that_fails_is_no_damage(tmp_path):
    image, damaged = tmp_path / "a.img", tmp_path / "damaged.img"
    # Its bitmaps are all over the disk.
    features = "^flex_bg,^metadata_csum,^uninit_bg,^has_journal,^resize_inode"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-b", "1024", "-O", features, image, "64M"], check=True)
    assert extant.check(image).clean
    contents = bytearray(image.read_bytes())
    contents[1024 + 0x18] = 99  # the block size
    damaged.write_bytes(contents)
    with pytest.raises(OSError) as caught:
        extant.check(damaged)
    assert caught.value.errno == errno.EUCLEAN and caught.value.filename == str(damaged)
    loop = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True)
    if loop.returncode != 0:
        pytest.skip("needs root and loop devices")
    device = loop.stdout.strip()
    try:
        # What is behind the end of the file is a disk's bad sectors.
        os.truncate(image, 20 * MIB)
        with pytest.raises(OSError) as caught:
            extant.check(device)
        assert caught.value.errno == errno.EIO and caught.value.filename == device
    finally:
        subprocess.run(["losetup", "-d", device])


def test_a_journal_that_is_elsewhere_is_no_damage(tmp_path):
    image, journal = tmp_path / "a.img", tmp_path / "journal.img"
    subprocess.run(["mke2fs", "-q", "-O", "journal_dev", "-b", "4096", journal, "8M"], check=True)
    loop = subprocess.run(["losetup", "-f", "--show", journal], capture_output=True, text=True)
    if loop.returncode != 0:
        pytest.skip("needs root and loop devices")
    device = loop.stdout.strip()
    try:
        make = ["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-J", f"device={device}", image, "16M"]
        subprocess.run(make, check=True)
        # As after a crash.
        subprocess.run(["debugfs", "-w", "-R", "feature needs_recovery", image], check=True, capture_output=True)
    finally:
        subprocess.run(["losetup", "-d", device])
    with pytest.raises(OSError) as caught:
        extant.check(image)
    assert caught.value.errno == errno.EINVAL and "journal" in str(caught.value)
