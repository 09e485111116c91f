"""Writers and readers of one file in every way at once: whoever reads after a write has ended sees it, or a later one.

Each block of the file belongs to one writer, holds the number of its last write, and that number is published when
the write has ended. Readers take the published number first, then the block. At the end all ways of reading agree.

usage: coherence.py DIRECTORY SECONDS
"""
import ctypes
import mmap
import os
import platform
import struct
import sys
import time

BLOCK = 4096
EACH = 24
WRITERS = ["asynchronous", "direct", "buffered", "copied", "mapped"]
BLOCKS = EACH * len(WRITERS)
DEPTH = 8
PWRITE = 1
NUMBERS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}

libc = ctypes.CDLL(None, use_errno=True)


def system_call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call %d" % number)
    return result


class Control(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16), ("priority", ctypes.c_int16), ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64), ("length", ctypes.c_uint64), ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("result_fd", ctypes.c_uint32),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("control", ctypes.c_uint64), ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    ]


def page(number):
    return struct.pack("<Q", number) * (BLOCK // 8)


def oldest(block):
    """The older of the numbers at both ends: a block may be read while it is written."""
    return min(struct.unpack_from("<Q", block, 0)[0], struct.unpack_from("<Q", block, BLOCK - 8)[0])


def publish(published, block, number):
    struct.pack_into("<Q", published, block * 8, number)


def blocks_of(writer):
    first = WRITERS.index(writer) * EACH
    return range(first, first + EACH)


def asynchronous(path, published, end):
    setup, submit, events = NUMBERS[platform.machine()]
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    context = ctypes.c_ulong(0)
    system_call(setup, ctypes.c_uint(DEPTH), ctypes.byref(context))
    memory = mmap.mmap(-1, DEPTH * BLOCK)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    slots = {}
    number, free, turn = 0, list(range(DEPTH)), 0
    mine = list(blocks_of("asynchronous"))
    controls = [Control() for _ in range(DEPTH)]
    while time.monotonic() < end or slots:
        while free and time.monotonic() < end:
            block = mine[turn % len(mine)]
            turn += 1
            if block in (taken for taken, _ in slots.values()):
                continue
            slot, number = free.pop(), number + 1
            memory[slot * BLOCK:(slot + 1) * BLOCK] = page(number)
            controls[slot] = Control(
                data=slot, opcode=PWRITE, fd=fd, buffer=address + slot * BLOCK, length=BLOCK,
                offset=block * BLOCK)
            slots[slot] = (block, number)
            list_of = (ctypes.c_void_p * 1)(ctypes.addressof(controls[slot]))
            assert system_call(submit, context, ctypes.c_long(1), list_of) == 1
        done = (Event * DEPTH)()
        count = system_call(events, context, ctypes.c_long(1), ctypes.c_long(DEPTH), done, None)
        for event in done[:count]:
            assert event.result == BLOCK, event.result
            block, written = slots.pop(event.data)
            publish(published, block, written)
            free.append(event.data)
    return number


def one_by_one(writer, write):
    def run(path, published, end):
        number = 0
        state = {}
        while time.monotonic() < end:
            for block in blocks_of(writer):
                number += 1
                write(path, state, block, number)
                publish(published, block, number)
        return number
    return run


def direct(path, state, block, number):
    if not state:
        state["fd"] = os.open(path, os.O_WRONLY | os.O_DIRECT)
        state["memory"] = mmap.mmap(-1, BLOCK)
    state["memory"][:] = page(number)
    assert os.pwritev(state["fd"], [state["memory"]], block * BLOCK) == BLOCK


def buffered(path, state, block, number):
    if not state:
        state["fd"] = os.open(path, os.O_WRONLY)
    assert os.pwrite(state["fd"], page(number), block * BLOCK) == BLOCK


def copied(path, state, block, number):
    if not state:
        state["from"] = os.open(path + ".source", os.O_RDWR | os.O_CREAT, 0o644)
        state["fd"] = os.open(path, os.O_WRONLY)
    os.pwrite(state["from"], page(number), 0)
    assert os.copy_file_range(state["from"], state["fd"], BLOCK, 0, block * BLOCK) == BLOCK


def mapped(path, state, block, number):
    if not state:
        fd = os.open(path, os.O_RDWR)
        state["view"] = mmap.mmap(fd, BLOCKS * BLOCK)
    state["view"][block * BLOCK:(block + 1) * BLOCK] = page(number)


RUN = {
    "asynchronous": asynchronous,
    "direct": one_by_one("direct", direct),
    "buffered": one_by_one("buffered", buffered),
    "copied": one_by_one("copied", copied),
    "mapped": one_by_one("mapped", mapped),
}


def readers_of(path):
    plain = os.open(path, os.O_RDONLY)
    past = os.open(path, os.O_RDONLY | os.O_DIRECT)
    view = mmap.mmap(plain, BLOCKS * BLOCK, prot=mmap.PROT_READ)
    memory = mmap.mmap(-1, BLOCK)

    def read_past(block):
        assert os.preadv(past, [memory], block * BLOCK) == BLOCK
        return memory[:]
    return {
        "read": lambda block: os.pread(plain, BLOCK, block * BLOCK),
        "map": lambda block: view[block * BLOCK:(block + 1) * BLOCK],
        "direct read": read_past,
    }


def read_all(path, published, end, wanted):
    readers = readers_of(path)
    rounds, stale = 0, {}
    while time.monotonic() < end:
        for block in range(BLOCKS):
            for way in wanted:
                least = struct.unpack_from("<Q", published, block * 8)[0]
                if oldest(readers[way](block)) < least:
                    case = (WRITERS[block // EACH], way)
                    stale[case] = stale.get(case, 0) + 1
        rounds += 1
    for (writer, way), count in sorted(stale.items()):
        print("stale: %s after %s write: %d times" % (way, writer, count))
    assert rounds > 0
    return len(stale)


def start(run, *arguments):
    child = os.fork()
    if child:
        return child
    code = 2
    try:
        code = 1 if run(*arguments) else 0
        sys.stdout.flush()
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)


def main(directory, seconds):
    path = os.path.join(directory, "file")
    with open(path, "wb") as file:
        file.write(bytes(BLOCKS * BLOCK))
    published = mmap.mmap(-1, BLOCKS * 8)
    end = time.monotonic() + seconds
    writers = [start(RUN[writer], path, published, end) for writer in WRITERS]
    readers = [start(read_all, path, published, end, [way]) for way in ("read", "map")]
    readers.append(start(read_all, path, published, end, ["read", "direct read"]))
    wrong = 0
    for writer, child in zip(WRITERS, writers):
        # These say with 1 that they have written.
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 1:
            print("the %s writer ended with %d" % (writer, code))
            wrong += 1
    for child in readers:
        wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    ways = readers_of(path)
    for block in range(BLOCKS):
        least = struct.unpack_from("<Q", published, block * 8)[0]
        seen = {way: oldest(read(block)) for way, read in ways.items()}
        if set(seen.values()) != {least}:
            print("at the end: block %d of %s: %s, %d written" % (
                block, WRITERS[block // EACH], seen, least))
            wrong += 1
    print("%d writes" % sum(
        struct.unpack_from("<Q", published, writer * EACH * 8)[0] for writer in range(len(WRITERS))))
    sys.exit(1 if wrong else 0)


main(sys.argv[1], float(sys.argv[2]))
