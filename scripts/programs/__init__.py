"""Real programs on a mounted image: what `scripts/real-programs` runs.

- `processes`: starting, waiting for and ending processes; what is mounted below a directory.
- `mounts`: an image and the ways of mounting it; ending a server in the middle.
- `witness`: a process that makes files durable and says so outside of the mount.
- `trees`: trees to copy, and what two trees differ in.
- `case`: what a program may use, and the two ways of running one.
- `git`, `cargo`, `sqlite`, `postgres`, `archives`, `fio`, `stress`: the programs.
"""
