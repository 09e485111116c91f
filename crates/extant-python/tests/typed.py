"""What a type checker sees of the package; not run."""

import extant

with extant.open("disk.img", "r+") as fs:
    size: int = fs.stat("/etc").st_size
    names: list[str] = fs.listdir(b"/etc")
    with fs.open("/file", "wb", 0) as file:
        file.write(b"")
    path: extant.Path = fs / "etc" / "hostname"
    text: str = path.read_text()
built: extant.BuildResult = extant.build("tree", "disk.img", progress=lambda done, total: None)
clean: bool = extant.check("disk.img").clean
wrong: int = fs.label  # type: ignore[assignment]
