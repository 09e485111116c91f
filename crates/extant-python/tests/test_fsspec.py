"""fsspec's own suites of what every implementation must do, and what is ext4's."""

import io
import shutil

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from fsspec.implementations.local import LocalFileSystem

import extant
from extant.fsspec import Ext4FileSystem

MIB = 1 << 20


class Ext4Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        image = tmp_path_factory.mktemp("image") / "disk.img"
        extant.mkfs(image, 64 * MIB)
        fs = Ext4FileSystem(fo=str(image), mode="r+", auto_mkdir=True)
        yield fs
        fs.close()
        assert extant.check(image).clean

    @pytest.fixture
    def fs_path(self):
        return "/suite"

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)


class TestCopy(abstract.AbstractCopyTests, Ext4Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Ext4Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Ext4Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Ext4Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Ext4Fixtures):
    pass


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "disk.img"
    extant.mkfs(path, 32 * MIB)
    with extant.open(path, "r+") as fs:
        fs.makedirs("/etc/deep/er")
        fs.write_text("/etc/fstab", "proc /proc proc\n")
        fs.write_text("/etc/deep/er/file", "x" * 10)
        fs.symlink("fstab", "/etc/link")
    return path


def test_it_is_registered_and_opens_chained_urls(image):
    assert fsspec.get_filesystem_class("ext4") is Ext4FileSystem
    with fsspec.open(f"ext4://etc/fstab::{image}") as file:
        assert file.read() == b"proc /proc proc\n"
    with fsspec.open(f"ext4://etc/fstab::file://{image}", "rt") as file:
        assert file.read() == "proc /proc proc\n"
    memory = fsspec.filesystem("memory")
    memory.pipe("/images/disk.img", image.read_bytes())
    with fsspec.open("ext4://etc/link::memory://images/disk.img") as file:
        assert file.read() == b"proc /proc proc\n"


def test_listings_and_searches(image):
    fs = fsspec.filesystem("ext4", fo=image)
    assert sorted(fs.ls("/etc", detail=False)) == ["/etc/deep", "/etc/fstab", "/etc/link"]
    assert fs.find("/etc") == ["/etc/deep/er/file", "/etc/fstab", "/etc/link"]
    assert fs.glob("/etc/**/file") == ["/etc/deep/er/file"]
    assert fs.du("/etc") == 16 + 16 + 10
    info = fs.info("/etc/link")
    assert info["islink"] and info["destination"] == "fstab" and info["type"] == "file"
    assert fs.cat("/etc/fstab") == b"proc /proc proc\n" and fs.isdir("ext4://etc")
    assert fs.cat_file("/etc/fstab", 5, 10) == b"/proc"
    assert fs.read_block("/etc/fstab", 5, 100) == b"/proc proc\n" and fs.read_block("/etc/fstab", 0, 3, b" ") == b"proc "
    with pytest.raises(FileNotFoundError):
        fs.info("/none")
    with pytest.raises(OSError):
        fs.pipe("/etc/fstab", b"")
    fs.close()


def test_a_copy_onto_itself_loses_nothing(image):
    fs = fsspec.filesystem("ext4", fo=image, mode="r+")
    fs.link("/etc/fstab", "/etc/hard")
    for other in ["/etc/fstab", "ext4://etc/fstab", "/etc/link", "/etc/hard"]:
        with pytest.raises(shutil.SameFileError):
            fs.copy("/etc/fstab", other)
        assert fs.cat("/etc/fstab") == b"proc /proc proc\n"
    fs.mv("/etc/fstab", "/etc/fstab")
    assert fs.cat("/etc/hard") == b"proc /proc proc\n"
    fs.close()


def test_names_with_two_colons_are_names(image):
    fs = fsspec.filesystem("ext4", fo=image, mode="r+")
    fs.pipe("/etc/fstab::old", b"old")
    fs.mkdir("/etc/deep::er")
    assert {"/etc/fstab", "/etc/fstab::old", "/etc/deep::er"} < set(fs.ls("/etc", detail=False))
    assert fs.cat("/etc/fstab") == b"proc /proc proc\n" and fs.cat("/etc/fstab::old") == b"old"
    fs.rm("/etc/fstab::old")
    fs.rm("/etc/deep::er", recursive=True)
    assert sorted(fs.ls("/etc", detail=False)) == ["/etc/deep", "/etc/fstab", "/etc/link"]
    assert fs.cat(f"ext4://etc/fstab::{image}") == b"proc /proc proc\n"
    fs.close()


def test_remote_images_are_for_reading():
    fsspec.filesystem("memory").pipe("/x.img", bytes(MIB))
    with pytest.raises(ValueError):
        Ext4FileSystem(fo="memory://x.img", mode="r+")
    with pytest.raises(OSError):
        Ext4FileSystem(fo=io.BytesIO(bytes(MIB)))
