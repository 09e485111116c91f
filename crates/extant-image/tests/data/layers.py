"""Makes OCI image layouts of random layers: layers.py DIR FIRST_SEED COUNT

Each layout is DIR/SEED, with the tag "latest". What a layer does is chosen by what the layers below it left, so that
container runtimes take it; see `tests/layers.rs`.
"""

import gzip
import hashlib
import io
import json
import os
import random
import sys
import tarfile

NAMES = [b"a", b"b", b"c", b"dir", b"lib", b"odd\xff\n", b"x" * 120, b"wh.", b".hidden"]


class Layer:
    """One layer being written, and the tree that is there when it is applied."""

    def __init__(self, rng, model, first):
        self.rng, self.model, self.first = rng, model, first
        self.mine = {b""}
        self.out = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.out, mode="w", format=tarfile.GNU_FORMAT)
        self.clock = 1_600_000_000 + rng.randrange(10**6)

    def info(self, path, kind):
        info = tarfile.TarInfo(os.fsdecode(path))
        info.type = kind
        info.mode = self.rng.choice([0o755, 0o644, 0o4755, 0o700, 0o1777])
        info.uid, info.gid = self.rng.choice([(0, 0), (1000, 1000), (70000, 5)])
        info.mtime = self.clock
        self.clock += 1
        return info

    def note(self, path):
        while path:
            self.mine.add(path)
            path = path.rpartition(b"/")[0]

    def put(self, info, data=b"", pax=None):
        if pax:
            info.pax_headers = pax
            header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            self.tar.fileobj.write(header)
            self.tar.fileobj.write(data + bytes(-len(data) % 512))
            self.tar.offset = self.tar.fileobj.tell()
        else:
            info.size = len(data)
            self.tar.addfile(info, io.BytesIO(data))

    def drop(self, path):
        for other in sorted(self.model):
            if other == path or other.startswith(path + b"/"):
                del self.model[other]

    def dirs(self):
        return [b""] + [path for path, kind in self.model.items() if kind == "dir"]

    def place(self):
        """A path whose parent is a directory that is there, or reached through a link to one."""
        parent = self.rng.choice(self.dirs())
        name = self.rng.choice(NAMES)
        links = [path for path, kind in self.model.items() if kind == "link to dir"]
        if links and self.model.get(b"dir") == "dir" and self.rng.random() < 0.2:
            self.through = self.rng.choice(links) + b"/" + name
            return b"dir", b"dir/" + name
        self.through = None
        return parent, (parent + b"/" if parent else b"") + name

    def member(self):
        rng = self.rng
        parent, path = self.place()
        if len(path) > 400:
            return
        kind = rng.choice(["file"] * 6 + ["dir"] * 5 + ["link", "hard", "hard", "char", "fifo", "sparse", "xattr"])
        old = self.model.get(path)
        # The same name twice in one layer, one of them a directory, is no layer that a program makes.
        if path in self.mine and (old == "dir" or kind == "dir") and old != kind:
            return
        if old == "link to dir" and path in self.mine:
            return
        if kind == "hard":
            targets = [p for p, k in self.model.items() if k == "file" and p != path]
            if not targets:
                return
            target = rng.choice(targets)
            if path + b"/" == target[: len(path) + 1]:
                return
            info = self.info(path, tarfile.LNKTYPE)
            info.linkname = os.fsdecode(target)
            new = self.model[target]
        else:
            new = kind if kind in ("dir", "link") else "file"
        shown = self.through or path
        if old is not None and not (old == "dir" and kind == "dir"):
            self.drop(path)
        if kind == "hard":
            self.put(info)
        elif kind == "dir":
            self.put(self.info(shown, tarfile.DIRTYPE))
        elif kind == "link":
            info = self.info(shown, tarfile.SYMTYPE)
            info.linkname = rng.choice(["a", "../../b", "/dir", "/../dir", "nowhere"])
            new = "link to dir" if info.linkname.endswith("/dir") else "link"
            self.put(info)
        elif kind == "char":
            info = self.info(shown, tarfile.CHRTYPE)
            info.devmajor, info.devminor = 1, 3
            self.put(info)
        elif kind == "fifo":
            self.put(self.info(shown, tarfile.FIFOTYPE))
        elif kind == "sparse" and path.isascii():
            at = rng.randrange(1, 2000) * 4096
            body = b"1\n%d\n3\n" % at
            data = body + bytes(512 - len(body)) + b"end"
            info = self.info(b"GNUSparseFile.0/x", tarfile.REGTYPE)
            info.size = len(data)
            self.put(info, data, {
                "GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                "GNU.sparse.name": path.decode(), "GNU.sparse.realsize": str(at + 3)})
        elif kind == "xattr" and path.isascii():
            info = self.info(path, tarfile.REGTYPE)
            info.size = 4
            self.put(info, b"attr", {
                "SCHILY.xattr.user.note": "value %d" % rng.randrange(9),
                "SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20" + "\x00" * 14})
        else:
            self.put(self.info(shown, tarfile.REGTYPE), rng.randbytes(rng.randrange(9000)))
        self.model[path] = new
        self.note(path)

    def whiteout(self):
        rng = self.rng
        if rng.random() < 0.3:
            path = rng.choice(self.dirs())
            mark = (path + b"/" if path else b"") + b".wh..wh..opq"
            self.put(self.info(mark, tarfile.REGTYPE))
            for other in sorted(self.model):
                if (not path or other.startswith(path + b"/")) and other not in self.mine:
                    self.model.pop(other, None)
            return
        if not self.model:
            return
        path = rng.choice(sorted(self.model))
        if rng.random() < 0.1:
            path += b"gone"
        parent, _, name = path.rpartition(b"/")
        self.put(self.info((parent + b"/" if parent else b"") + b".wh." + name, tarfile.REGTYPE))
        if path in self.mine:
            for other in sorted(self.model):
                if other.startswith(path + b"/") and other not in self.mine:
                    self.model.pop(other, None)
        else:
            self.drop(path)

    def write(self):
        if self.first:
            root = self.info(b"./", tarfile.DIRTYPE)
            self.put(root)
        for _ in range(self.rng.randrange(1, 40 if self.first else 25)):
            if not self.first and self.rng.random() < 0.3:
                self.whiteout()
            else:
                self.member()
        self.tar.close()
        return self.out.getvalue()


def make(place, seed):
    rng = random.Random(seed)
    os.makedirs(place + "/blobs/sha256")

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        with open(f"{place}/blobs/sha256/{digest}", "wb") as out:
            out.write(data)
        return {"digest": "sha256:" + digest, "size": len(data)}

    model, layers, diff_ids = {}, [], []
    for number in range(rng.randrange(1, 7)):
        data = Layer(rng, model, number == 0).write()
        diff_ids.append("sha256:" + hashlib.sha256(data).hexdigest())
        packing = rng.choice(["", "+gzip"])
        if packing == "+gzip":
            data = gzip.compress(data, 1, mtime=0)
        layers.append({"mediaType": "application/vnd.oci.image.layer.v1.tar" + packing, **blob(data)})
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": [f"SEED={seed}"]},
              "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                           **blob(json.dumps(config).encode())},
                "layers": layers}
    index = {"schemaVersion": 2, "manifests": [
        {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode()),
         "annotations": {"org.opencontainers.image.ref.name": "latest"}}]}
    with open(place + "/index.json", "w") as out:
        json.dump(index, out)
    with open(place + "/oci-layout", "w") as out:
        json.dump({"imageLayoutVersion": "1.0.0"}, out)


for seed in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
    make(f"{sys.argv[1]}/{seed}", seed)
