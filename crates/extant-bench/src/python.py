"""One round of extant-bench's Python rows: `python3 python.py FILES_IMAGE BIG_IMAGE SOURCE TARGET PASSES CACHE_BYTES`.

Prints a line `row<TAB>target<TAB>seconds or bytes for each second`. The interpreter's start is not part of it.
"""

import sys
import time

import extant

files_image, big_image, source, target, passes, cache_bytes = sys.argv[1:]
passes, cache_bytes = int(passes), int(cache_bytes)
BLOCK = 1 << 20


def tell(row, contender, value):
    print(row, contender, value, sep="\t")


def rate(file, step):
    """The best of all passes over the file, in bytes for each second."""
    best = 0.0
    for _ in range(passes):
        file.seek(0)
        done, start = 0, time.perf_counter()
        while now := step(file):
            done += now
        best = max(best, done / (time.perf_counter() - start))
    return best


with extant.open(big_image, "r+", cache_bytes=cache_bytes) as fs:
    size = fs.getsize("/big")
    buffer = memoryview(bytearray(BLOCK))
    with fs.open("/big", "r+b", buffering=0) as file:

        def write(file):
            return file.write(buffer) if file.tell() < size else 0

        # Two passes that are not counted: the first fills the cache.
        while file.readinto(buffer):
            pass
        tell("read 1 MiB", "python", rate(file, lambda file: file.readinto(buffer)))
        tell("read 1 MiB", "python, read()", rate(file, lambda file: len(file.read(BLOCK))))
        tell("write 1 MiB", "python", rate(file, write))

with extant.open(files_image) as fs:
    start = time.perf_counter()
    count = sum(len(directories) + len(files) for _, directories, files in fs.walk("/"))
    tell("walk", "python", time.perf_counter() - start)

with extant.open(files_image) as fs:
    start = time.perf_counter()
    found = 0
    waiting = ["/"]
    while waiting:
        at = waiting.pop()
        for name, stat in fs.listdir_stat(at):
            found += 1
            if stat.st_mode & 0o170000 == 0o040000:
                waiting.append(f"{at.rstrip('/')}/{name}")
    tell("walk with attributes", "python", time.perf_counter() - start)
if found != count:
    sys.exit(f"{count} entries by walk, {found} by listdir_stat")
print("entries", count, sep="\t")

start = time.perf_counter()
extant.build(source, target, overwrite=True)
tell("build", "python", time.perf_counter() - start)
