"""A mounted file system and its files, as a program uses them."""

import copy
import errno
import gc
import io
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest

import extant

MIB = 1 << 20


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "disk.img"
    extant.mkfs(path, 96 * MIB, label="python")
    yield path
    assert extant.check(path).clean
    if shutil.which("e2fsck"):
        done = subprocess.run(["e2fsck", "-fn", path], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def fs(image):
    with extant.open(image, "r+") as fs:
        yield fs


def test_text_and_bytes_are_written_and_read_back(image):
    with extant.open(image, "r+") as fs:
        assert fs.write_text("/note", "grün\n") == 5
        with fs.open("/note", "a", encoding="utf-8") as file:
            file.write("more\n")
        with fs.open("note") as file:
            assert file.read() == "grün\nmore\n"
            assert list(fs.open("/note")) == ["grün\n", "more\n"]
        with fs.open("/bin", "wb") as file:
            file.write(b"x" * 100_000)
            file.seek(5)
            file.write(b"y")
        assert fs.getsize("/bin") == 100_000
        with pytest.raises(FileExistsError):
            fs.open("/bin", "x")
    with extant.open(image) as fs:
        assert fs.label == "python"
        assert fs.read_bytes("/bin")[4:7] == b"xyx"
        with pytest.raises(OSError) as error:
            fs.write_bytes("/bin", b"")
        assert error.value.errno == errno.EROFS


def test_a_mount_is_not_pickled_or_copied_and_says_what_to_do_instead(fs):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        for what in (fs, fs / "etc"):
            with pytest.raises(TypeError, match=r"neither pickled nor copied.*extant\.open"):
                attempt({"in": what} if attempt is not copy.copy else fs)
    with fs.open("/raw", "w+b", 0) as raw, pytest.raises(TypeError):
        pickle.dumps(raw)
    assert not fs.closed and fs.listdir("/") is not None


def test_raw_files_are_those_of_io(fs):
    with fs.open("/raw", "w+b", 0) as raw:
        assert isinstance(raw, io.RawIOBase) and raw.seekable()
        assert raw.write(bytearray(b"0123456789")) == 10
        assert raw.tell() == 10
        assert raw.seek(-4, os.SEEK_END) == 6
        into = bytearray(8)
        assert raw.readinto(into) == 4 and into[:4] == b"6789"
        assert raw.readinto(memoryview(into)[:0]) == 0
        assert raw.pread(3, 2) == b"234"
        assert raw.pwrite(memoryview(b"ab"), 0) == 2
        assert raw.truncate(5) == 5
        raw.seek(0)
        assert raw.readall() == b"ab234"
        raw.fsync()
        raw.fdatasync()
        import array

        numbers = array.array("I", [1, 2, 3])
        assert raw.pwrite(numbers, 0) == 12
        back = array.array("I", [0, 0, 0])
        assert raw.pread_into(back, 0) == 12 and back == numbers
        with pytest.raises((ValueError, BufferError, TypeError)):
            raw.readinto(b"read-only")
        with pytest.raises(BufferError):
            raw.write(memoryview(b"abcdef")[::2])
        with pytest.raises(OSError):
            raw.seek(-1)
    with pytest.raises(ValueError):
        raw.read()
    raw.close()
    with fs.open("/raw", "rb", 0) as raw, pytest.raises(io.UnsupportedOperation):
        raw.write(b"x")
    with fs.open("/raw", "wb", 0) as raw, pytest.raises(io.UnsupportedOperation):
        raw.read(1)


@pytest.mark.parametrize("mode", ["", "rw", "rbt", "z", "r++", "bb"])
def test_modes_that_make_no_sense_are_refused(fs, mode):
    with pytest.raises(ValueError):
        fs.open("/x", mode)


def test_tarfile_zipfile_and_shutil_work(fs, tmp_path):
    for n in range(20):
        (tmp_path / f"f{n}").write_bytes(os.urandom(5000 + n))
    with fs.open("/a.tar.gz", "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
        for n in range(20):
            tar.add(tmp_path / f"f{n}", f"f{n}")
    with fs.open("/a.tar.gz", "rb") as file, tarfile.open(fileobj=file) as tar:
        assert len(tar.getnames()) == 20
        assert tar.extractfile("f7").read() == (tmp_path / "f7").read_bytes()
    with fs.open("/a.zip", "w+b") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside", b"z" * 10_000)
    with fs.open("/a.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None and archive.read("inside") == b"z" * 10_000
    with open(tmp_path / "f3", "rb") as source, fs.open("/copy", "wb") as target:
        shutil.copyfileobj(source, target)
    assert fs.read_bytes("/copy") == (tmp_path / "f3").read_bytes()


def test_each_attribute_is_at_its_place(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"x" * 10_000)
    os.link(source / "file", source / "again")
    os.symlink("file", source / "link")
    names = ["file", "link", "."]
    if os.geteuid() == 0:
        os.mknod(source / "device", 0o600 | stat.S_IFCHR, os.makedev(0x123, 0x45678))
        os.chown(source / "file", 70_001, 70_002)
        names.append("device")
    os.utime(source / "file", ns=(1_600_000_000_000_000_001, 1_500_000_000_123_456_789))
    image = tmp_path / "image"
    extant.build(source, image)
    with extant.open(image, "r+") as fs:
        many = dict(fs.listdir_stat("/"))
        for name in names:
            ours, host = fs.lstat(f"/{name}"), os.lstat(source / name)
            for field in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_mtime", "st_mtime_ns", "st_rdev"):
                if (name, field) != (".", "st_nlink"):
                    assert getattr(ours, field) == getattr(host, field), (name, field)
            assert ours[8] == host[8] and len(ours) == 10
            assert ours.st_blksize == 4096 and ours.st_ino > 0 and ours.st_dev == 0
            assert name == "." or many[name] == ours
        found = fs.stat("/link")
        assert (found.st_size, found.st_blocks) == (10_000, 24)
        # Later than 64 bits have nanoseconds for.
        late = 10**19 + 7
        fs.utime("/file", ns=(late, late))
        found = fs.stat("/file")
        assert (found.st_atime_ns, found.st_mtime_ns, found[7], found[8]) == (late, late, 10**10, 10**10)
        assert found.st_atime == found.st_mtime == 1e10


def test_names_and_attributes(fs):
    fs.makedirs("/a/b/c")
    fs.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("/a/b/c")
    fs.write_bytes("/a/file", b"1")
    fs.symlink("file", "/a/link")
    fs.link("/a/file", "/a/b/hard")
    assert fs.readlink("/a/link") == "file" and fs.realpath("/a/b/../link") == "/a/file"
    assert fs.islink("/a/link") and fs.isfile("/a/link") and not fs.isdir("/a/link")
    assert sorted(fs.listdir("/a")) == ["b", "file", "link"]
    kinds = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in fs.scandir("/a")}
    assert kinds == {"b": (True, False, False), "file": (False, True, False), "link": (False, True, True)}
    assert [(top, sorted(d), sorted(f)) for top, d, f in fs.walk("/a")] == [
        ("/a", ["b"], ["file", "link"]),
        ("/a/b", ["c"], ["hard"]),
        ("/a/b/c", [], []),
    ]
    found = fs.stat("/a/file")
    assert isinstance(found, os.stat_result) and stat.S_ISREG(found.st_mode) and found.st_nlink == 2
    fs.chmod("/a/file", 0o751)
    fs.chown("/a/file", 1000, -1)
    fs.utime("/a/file", ns=(1_500_000_000_123_456_789, -5))
    found = fs.stat("/a/link")
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o751, 1000, 0)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_500_000_000_123_456_789, -5)
    assert stat.S_ISLNK(fs.lstat("/a/link").st_mode)
    fs.setxattr("/a/file", "user.x", b"value")
    assert fs.listxattr("/a/file") == ["user.x"] and fs.getxattr("/a/file", "user.x") == b"value"
    fs.removexattr("/a/file", b"user.x")
    for attempt in (lambda: fs.rmdir("/"), lambda: fs.rename("/", "/b"), lambda: fs.rename("/a", "/")):
        with pytest.raises(OSError) as error:
            attempt()
        assert error.value.errno == errno.EBUSY
    fs.rename("/a/file", "/a/moved")
    with pytest.raises(FileExistsError):
        fs.rename_new("/a/moved", "/a/link")
    fs.unlink("/a/link")
    with pytest.raises(OSError) as error:
        fs.rmdir("/a")
    assert error.value.errno == errno.ENOTEMPTY
    fs.rmtree("/a")
    assert not fs.exists("/a")
    fs.write_bytes(b"/caf\xe9", b"latin")
    assert os.fsencode([name for name in fs.listdir() if name.startswith("caf")][0]) == b"caf\xe9"
    space = fs.statvfs()
    assert space.f_bavail <= space.f_bfree <= space.f_blocks


def test_errors_are_those_of_os(fs):
    with pytest.raises(FileNotFoundError) as error:
        fs.open("/none/such")
    assert error.value.filename == "/none/such" and error.value.errno == errno.ENOENT
    with pytest.raises(IsADirectoryError):
        fs.open("/")
    fs.write_bytes("/file", b"")
    with pytest.raises(NotADirectoryError):
        fs.listdir("/file")
    with pytest.raises(OSError) as error:
        fs.open("/" + "n" * 256, "w")
    assert error.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError) as error:
        with fs.open("/full", "wb", 0) as raw:
            for _ in range(200):
                raw.write(bytes(MIB))
    assert error.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError):
        extant.open("/none/such.img")
    with pytest.raises(ValueError):
        extant.open("/none/such.img", "w")


def test_paths_are_like_those_of_pathlib(fs):
    base = fs / "srv" / "www"
    base.mkdir(parents=True)
    page = base / "index.html"
    assert page.write_text("hello") == 5 and page.read_text() == "hello"
    assert (page.name, page.suffix, page.parent) == ("index.html", ".html", base)
    assert str(page) == "/srv/www/index.html" 
    assert page.with_stem("new").name == "new.html" and not page.is_fifo() and not (base / "none").is_socket()
    base.mkdir(exist_ok=True)
    (fs / "/").mkdir(exist_ok=True)
    (base / "link").symlink_to("index.html")
    assert (base / "link").resolve() == page and (base / "link").samefile(page)
    assert sorted(path.name for path in base.iterdir()) == ["index.html", "link"]
    assert [str(path) for path in fs.path("/srv").rglob("*.html")] == ["/srv/www/index.html"]
    assert page.with_suffix(".txt").exists() is False
    page.rename(base / "moved").unlink()
    (base / "new").touch()
    with pytest.raises(FileExistsError):
        (base / "new").touch(exist_ok=False)
    (base / "none").unlink(missing_ok=True)
    (base / "loop").symlink_to("loop")
    assert "loop" in [path.name for path in fs.path("/").rglob("*")] and not (base / "loop").exists()
    assert fs.exists(page.parent) and fs.isdir(fs.scandir("/srv")[0])


def test_a_path_of_an_image_is_none_of_the_host(fs, image, tmp_path):
    for inside in [fs / "file", fs.scandir("/")[0]]:
        with pytest.raises(TypeError):
            os.fspath(inside)
    with pytest.raises(TypeError):
        shutil.rmtree(fs / "none-such")
    with pytest.raises((TypeError, AttributeError)):
        shutil.copytree(tmp_path, fs / "copy")
    other_image = tmp_path / "other.img"
    extant.mkfs(other_image, 8 << 20)
    with extant.open(other_image) as other:
        with pytest.raises(ValueError, match="another file system"):
            fs.exists(other / "lost+found")


def test_errors_about_two_names_have_both(fs):
    fs.mkdir("/dir")
    for call in [fs.rename, fs.rename_new, fs.link]:
        with pytest.raises(FileNotFoundError) as failure:
            call("/none", "/dir/new")
        assert (failure.value.filename, failure.value.filename2) == ("/none", "/dir/new")
    with pytest.raises(FileNotFoundError) as failure:
        fs.stat(b"/caf\xe9")
    assert os.fsencode(failure.value.filename) == b"/caf\xe9"


def test_positions_are_those_of_files(fs):
    with fs.open("/file", "w+b", 0) as raw:
        for offset, whence in [(-1, 0), (1 << 63, 0), (1 << 70, 0), (0, 77)]:
            with pytest.raises(OSError) as failure:
                raw.seek(offset, whence)
            assert failure.value.errno == errno.EINVAL
        assert raw.tell() == 0


def contents(image):
    with extant.open(image) as fs:
        return {name: fs.read_bytes("/" + name) for name in fs.listdir() if fs.isfile("/" + name)}


def test_a_position_that_is_no_whole_number_is_refused(fs):
    fs.write_bytes("/f", b"0123456789")
    with fs.open("/f", "rb", 0) as file, open(os.devnull, "rb", 0) as other:
        for one in (file, other):
            with pytest.raises(TypeError):
                one.seek(1.5)
        assert file.tell() == 0 and file.read(2) == b"01"


def test_what_open_files_hold_back_is_stored_when_the_mount_ends(image):
    with extant.open(image, "r+") as fs:
        text, binary, raw = fs.open("/text", "w"), fs.open("/binary", "wb"), fs.open("/raw", "wb", 0)
        text.write("text")
        binary.write(b"binary")
        raw.write(b"raw")
    assert text.closed and binary.closed and raw.closed
    with pytest.raises(ValueError):
        text.write("more")
    text.close()
    assert contents(image) == {"text": b"text", "binary": b"binary", "raw": b"raw"}


def test_an_interrupt_while_the_mount_ends_loses_nothing_of_other_files(image, monkeypatch):
    write = extant.RawFile.write

    def interrupted(self, buffer):
        if self.name == "/interrupted":
            raise KeyboardInterrupt
        return write(self, buffer)

    fs = extant.open(image, "r+")
    files = [fs.open(name, "wb") for name in ["/one", "/interrupted", "/other"]]
    for file in files:
        file.write(b"kept")
    monkeypatch.setattr(extant.RawFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fs.close()
    assert fs.closed
    assert contents(image) == {"one": b"kept", "interrupted": b"", "other": b"kept"}


def test_a_mount_lasts_as_long_as_its_open_files(image):
    file = extant.open(image, "r+").open("/file", "wb")
    gc.collect()
    file.write(b"1")
    file.flush()
    file.write(b"2")
    file.close()
    del file
    gc.collect()
    assert contents(image) == {"file": b"12"}


def test_files_that_are_open_when_python_ends_are_stored(image):
    program = f"import extant; fs = extant.open({str(image)!r}, 'r+'); file = fs.open('/kept', 'w'); file.write('kept')"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert contents(image) == {"kept": b"kept"}


def test_a_file_in_use_without_a_name_leaves_a_clean_image(image):
    with extant.open(image, "r+") as fs:
        file = fs.open("/file", "w+b")
        file.write(b"x" * 100_000)
        file.flush()
        fs.unlink("/file")
    assert extant.check(image).problems == []
    del file


def test_a_fork_neither_writes_nor_unmounts(image):
    program = f"""if True:
        import errno, extant, os, sys
        fs = extant.open({str(image)!r}, "r+")
        fs.write_text("/before", "before")
        buffered = fs.open("/buffered", "w")
        buffered.write("once")
        process = os.fork()
        if process == 0:
            for call in [lambda: fs.write_text("/child", "child"), fs.sync, lambda: fs.listdir("/"), buffered.flush]:
                try:
                    call()
                except OSError as error:
                    assert error.errno == errno.EBADF and "fork" in str(error), error
                else:
                    os._exit(1)
            fs.close()
            sys.exit(0)  # With everything that Python does at its end.
        assert os.waitpid(process, 0)[1] == 0
        fs.write_text("/after", "after")
        buffered.close()
        fs.close()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "panicked" not in done.stderr, done.stderr
    assert contents(image) == {"before": b"before", "buffered": b"once", "after": b"after"}
    assert extant.check(image).clean


def test_a_fork_reads_what_was_mounted_for_reading(image):
    with extant.open(image, "r+") as fs:
        fs.write_bytes("/file", b"x" * 300_000)
    with extant.open(image) as fs:
        process = os.fork()
        if process == 0:
            os._exit(0 if fs.read_bytes("/file") == b"x" * 300_000 else 1)
        assert os.waitpid(process, 0)[1] == 0



def test_threads_of_a_fork_use_images_of_their_own(tmp_path):
    program = f"""if True:
        import extant, os, sys, threading
        at = {str(tmp_path)!r}
        mounts = []
        for number in range(12):
            # Idle threads of this process, which its forks do not have.
            extant.mkfs(f"{{at}}/{{number}}.img", 32 << 20)
            mounts.append(extant.open(f"{{at}}/{{number}}.img", "r+"))
            mounts[-1].write_bytes("/file", b"x" * 3_000_000)
            mounts[-1].sync()

        def work(fs, number):
            for _ in range(6):
                fs.write_bytes(f"/{{number}}", b"y" * 700_000)
                fs.sync()

        def generation(depth):
            process = os.fork()
            if process:
                return os.waitpid(process, 0)[1]
            failed = True
            try:
                image = f"{{at}}/fork-{{os.getpid()}}.img"
                extant.mkfs(image, 32 << 20)
                with extant.open(image, "r+") as fs:
                    threads = [threading.Thread(target=work, args=(fs, number)) for number in range(6)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    failed = bool(depth < 3 and generation(depth + 1))
                assert extant.check(image).clean
            finally:
                os._exit(1 if failed else 0)

        for _ in range(6):
            assert generation(0) == 0
        for mount in mounts:
            mount.close()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "panicked" not in done.stderr, done.stderr


def test_threads_share_a_mount_and_the_interpreter_goes_on(fs):
    failures = []

    def work(number):
        try:
            block = bytes([number]) * 65536
            for turn in range(20):
                with fs.open(f"/t{number}", "w+b", 0) as raw:
                    assert raw.write(block) == len(block)
                    assert raw.pread(len(block), 0) == block
                if turn % 5 == 0:
                    fs.sync()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_mount_that_nobody_closed_is_unmounted_when_python_ends(image):
    program = f"import extant; fs = extant.open({str(image)!r}, 'r+'); fs.write_text('/kept', 'kept')"
    subprocess.run([sys.executable, "-c", program], check=True)
    with extant.open(image) as fs:
        assert fs.read_text("/kept") == "kept"


def test_after_the_end_everything_says_so(image):
    fs = extant.open(image, "r+")
    file = fs.open("/file", "wb", 0)
    file.write(b"1")
    fs.close()
    fs.close()
    assert fs.closed
    for act in (lambda: fs.listdir("/"), fs.sync, lambda: fs.open("/x", "w")):
        with pytest.raises(OSError):
            act()
    file.close()


def test_an_image_in_a_file_object_is_read(image):
    with extant.open(image, "r+") as fs:
        fs.write_bytes("/data", b"d" * 3 * MIB)
    with open(image, "rb") as file, extant.open(file) as fs:
        assert fs.read_bytes("/data") == b"d" * 3 * MIB
    with open(image, "rb") as file, pytest.raises(ValueError):
        extant.open(file, "r+")

    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise RuntimeError("the network is down")

    with pytest.raises(OSError, match="network is down"):
        extant.open(Broken(bytes(MIB)))

    class Refusing(io.BytesIO):
        refusal = None

        def read(self, size=-1):
            if self.refusal is not None:
                raise self.refusal
            return super().read(size)

    file = Refusing(image.read_bytes())
    with extant.open(file) as fs:
        file.refusal = TimeoutError(errno.ETIMEDOUT, "the server is slow")
        with pytest.raises(OSError, match="server is slow") as failed:
            fs.read_bytes("/data")
        assert failed.value.__cause__ is file.refusal
        for file.refusal in [KeyboardInterrupt(), SystemExit(3)]:
            # No program takes these for a fault of the image.
            with pytest.raises(type(file.refusal)) as ended:
                fs.read_bytes("/data")
            assert ended.value is file.refusal
        file.refusal = None
        assert fs.read_bytes("/data") == b"d" * 3 * MIB

    class Liar(io.BytesIO):
        def read(self, size=-1):
            return super().read(size) + b"more than was asked for"

    with pytest.raises(OSError):
        extant.open(Liar(image.read_bytes()[: 4 * MIB]))


def test_keys_come_and_go(tmp_path):
    path = tmp_path / "disk.img"
    extant.mkfs(path, 32 * MIB, features="encrypt")
    secret = bytes(range(64))
    with extant.open(path, "r+") as fs:
        name = fs.add_key(secret)
        assert len(name) == 32 and fs.add_key(secret) == name
        fs.mkdir("/private")
        fs.encrypt("/private", name)
        fs.write_text("/private/letter", "dear reader")
        assert fs.remove_key(name) and not fs.remove_key(name)
        shown = fs.listdir("/private")
        assert len(shown) == 1 and shown != ["letter"]
        with pytest.raises(OSError) as refused:
            fs.write_text("/private/new", "x")
        assert refused.value.errno == errno.ENOKEY
        for wrong in ["", "xy", name + "00"]:
            with pytest.raises(ValueError):
                fs.remove_key(wrong)
        with pytest.raises(ValueError):
            fs.add_key(b"short")
    with extant.open(path) as fs:
        fs.add_key(secret)
        assert fs.read_text("/private/letter") == "dear reader"
    assert extant.check(path).clean
