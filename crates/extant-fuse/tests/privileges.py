"""What a change of a file takes from a program with set-id bits.

Prints a line for each case: who changed which file how, what the change said, with whose rights the program ran right
after it, and the mode then. Run by tests/privileges.rs on our mount and on one of the kernel's ext4.

usage: privileges.py DIRECTORY
"""
import ctypes
import errno
import mmap
import os
import struct
import sys

GROUP = 3000
CALLERS = {
    "root": (0, 0, []),
    "other": (1000, 1000, []),
    "member": (1000, GROUP, []),
    "member by another": (1000, 1000, [GROUP]),
}
# With 0777 it has capabilities.
MODES = [0o777, 0o4777, 0o4766, 0o4770, 0o2777, 0o2767, 0o6755, 0o6767]
OWNERS = {"root": 0, "caller": 1000}
FALLOCATE = {"keep size": 1, "grow": 0, "punch": 3, "zero": 0x10, "zero, keep size": 0x11}
CHECK = "/bin/id"
CAPABILITY = "security.capability"
# Version 2, effective: CAP_NET_RAW.
CAPABLE = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)

libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def buffered(path, head):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, head, 0)
    os.close(fd)


def direct(path, head):
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, len(head))
    buffer[:] = head
    os.pwritev(fd, [buffer], 0)
    os.close(fd)


def mapped(path, head):
    fd = os.open(path, os.O_RDWR)
    view = mmap.mmap(fd, len(head))
    view[:] = head
    view.flush()
    view.close()
    os.close(fd)


def copied(path, head):
    source = os.open(path + ".source", os.O_RDONLY)
    fd = os.open(path, os.O_WRONLY)
    os.copy_file_range(source, fd, len(head), 0, 0)
    os.close(fd)
    os.close(source)


def truncated(path, head):
    os.truncate(path, os.stat(path).st_size + 1)


def truncated_open(path, head):
    fd = os.open(path, os.O_WRONLY)
    os.ftruncate(fd, os.fstat(fd).st_size + 1)
    os.close(fd)


def fallocated(mode):
    def run(path, head):
        fd = os.open(path, os.O_WRONLY)
        end = os.fstat(fd).st_size + 4096
        check(libc.fallocate(fd, mode, ctypes.c_long(end), ctypes.c_long(4096)))
        os.close(fd)
    return run


def given(path, head):
    os.chown(path, -1, GROUP)


CHANGES = {
    "write": buffered,
    "direct write": direct,
    "mapped write": mapped,
    "copy": copied,
    "truncate": truncated,
    "ftruncate": truncated_open,
    "chown": given,
    **{"fallocate, " + name: fallocated(mode) for name, mode in FALLOCATE.items()},
}


def as_caller(caller, run, *arguments):
    uid, gid, groups = CALLERS[caller]
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            run(*arguments)
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "ok" if code == 0 else errno.errorcode[code]


def runs_as(path):
    """What it says of its rights when a third person starts it."""
    output, inside = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(inside, 1)
            os.setgroups([])
            os.setresgid(2000, 2000, 2000)
            os.setresuid(2000, 2000, 2000)
            os.execv("./" + path, ["id"])
        except OSError as error:
            os.write(inside, errno.errorcode[error.errno].encode())
        finally:
            os._exit(1)
    os.close(inside)
    with os.fdopen(output, "rb") as said:
        ids = said.read().decode().strip()
    os.waitpid(child, 0)
    return ids


def is_worth_it(owner, mode, caller):
    of_group = mode in (0o2767, 0o6767)
    if owner == "caller":
        return mode in (0o6755, 0o4770, 0o2767)
    return caller != "member by another" or of_group


def main(directory):
    os.chdir(directory)
    os.chmod(".", 0o755)
    program = open(CHECK, "rb").read()
    head = program[:4096]
    number = 0
    for owner, uid in OWNERS.items():
        for mode in MODES:
            for change, run in CHANGES.items():
                for caller in CALLERS:
                    if not is_worth_it(owner, mode, caller):
                        continue
                    number += 1
                    path = "f%d" % number
                    for name in (path, path + ".source") if change == "copy" else (path,):
                        with open(name, "wb") as file:
                            file.write(program)
                    if change == "copy":
                        os.chmod(path + ".source", 0o755)
                    os.chown(path, uid, GROUP)
                    os.chmod(path, mode)
                    if mode == 0o777:
                        os.setxattr(path, CAPABILITY, CAPABLE)
                    os.stat(path)
                    said = as_caller(caller, run, path, head)
                    ids = runs_as(path)
                    now = os.stat(path).st_mode & 0o7777
                    capable = " and capable" if CAPABILITY in os.listxattr(path) else ""
                    print("%s by %s on %o of %s: %s, %o%s, run: %s" % (
                        change, caller, mode, owner, said, now, capable, ids))
                    os.unlink(path)
                    if change == "copy":
                        os.unlink(path + ".source")


main(sys.argv[1])
