//! `extant-bench build | mkfs | check | read | namespace | io | io-memory | async | alloc | pieces | age | direct | crypt | python | mount | remote | page`: see
//! `make bench-build` and so on.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use extant_bench::direct::Below;
use extant_bench::report::{Series, report};
use extant_bench::run::{find, peak_mib, run, run_with_memory};
use extant_bench::{
    age, alloc, build, counts, crypt, direct, io, mount, namespace, pieces, read, remote, ring,
    stop,
};

/// What takes arguments; the others take variables of the environment, which `make help` lists.
const WITH_ARGUMENTS: [&str; 5] = ["read-one", "io-one", "io-memory", "counts-one", "mount-one"];

fn main() -> Result<()> {
    let command = std::env::args().nth(1);
    if let Some(command) = command.as_deref().filter(|command| !WITH_ARGUMENTS.contains(command))
        && let Some(argument) = std::env::args().nth(2)
    {
        // It would run for minutes otherwise.
        bail!("extant-bench {command} takes no arguments ({argument}): see make help");
    }
    match command.as_deref() {
        Some("build") => build(),
        Some("mkfs") => mkfs(),
        Some("read") => read(),
        Some("read-one") => read_one(),
        Some("namespace") => namespace(),
        Some("namespace-one") => namespace_one(),
        Some("io") => io(),
        Some("io-one") => io_one(),
        Some("io-memory") => io_memory(),
        Some("async") => rings(),
        Some("alloc") => alloc(),
        Some("alloc-one") => alloc_one(),
        Some("check") => check(),
        Some("pieces") => grow(),
        Some("age") => age(),
        Some("direct") => direct(),
        Some("crypt") => crypt(),
        Some("python") => python(),
        Some("counts") => {
            println!("{}", counts::ROWS.join("\n"));
            Ok(())
        }
        Some("counts-one") => counts_one(),
        Some("mount") => mount(),
        Some("remote") => remote(),
        Some("mount-one") => mount_one(),
        Some("page") => {
            let to = variable("PAGE_DIR", "bench/report");
            extant_bench::page::write(&extant_bench::report::directory(), Path::new(&to))
        }
        _ => bail!(
            "usage: extant-bench build | mkfs | check | read | namespace | io | io-memory | async | alloc | pieces | age | direct | crypt | python | mount | remote | page"
        ),
    }
}

/// One row of `scripts/counts`, so many times: `counts-one ROW TURNS`.
fn counts_one() -> Result<()> {
    let mut arguments = std::env::args().skip(2);
    let row = arguments.next().context("counts-one ROW TURNS")?;
    let turns = arguments.next().context("counts-one ROW TURNS")?.parse()?;
    counts::run(&row, turns)
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn runs() -> Result<u32> {
    variable("RUNS", "5").parse().context("RUNS is a number")
}

fn extant() -> Result<String> {
    let path = variable("EXTANT", "target/release/extant");
    find(&path).with_context(|| format!("{path} is missing: make build"))
}

/// A directory in memory, so that the disk is not what is measured.
fn memory_dir() -> Result<tempfile::TempDir> {
    let base = variable("BENCH_DIR", "/dev/shm");
    tempfile::tempdir_in(&base).with_context(|| format!("cannot make a directory in {base}"))
}

/// Question: how long does an image of a real tree take, against other tools, and against what nobody can do without?
///
/// Sketch: copying moves each byte twice and creates files one by one; an image needs the reads and large
/// writes. So it lies between the time of the reads alone and of both alone one after the other, and a layout
/// at the time of unpacking. The source is read once before, so all find it in memory.
fn build() -> Result<()> {
    let dir = memory_dir()?;
    let plan = build::Plan {
        extant: extant()?,
        source: variable("SOURCE", "/usr/share"),
        dir: dir.path().to_owned(),
        rounds: runs()?,
    };
    report("build", "extant", &build::measure(&plan)?)
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// Question: what do time and memory of making an empty file system of 16 TiB depend on?
///
/// Sketch: 131,072 groups of 64 bytes of descriptor are 8 MiB, times the backups. Goal: under 1 s
/// and 100 MiB.
fn mkfs() -> Result<()> {
    let dir = memory_dir()?;
    let image = dir.path().join("image").to_string_lossy().into_owned();
    let size = variable("SIZE", "16T");
    let mut contenders = vec![("extant", extant()?, vec!["mkfs", &image, &size, "-q"])];
    match find("mke2fs") {
        Some(path) => {
            let lazy = "lazy_itable_init=1,lazy_journal_init=1";
            let args = vec!["-q", "-F", "-t", "ext4", "-E", lazy, &image, &size];
            contenders.push(("mke2fs", path, args));
        }
        None => println!("mke2fs is not installed: left out"),
    }
    let mut all = Vec::new();
    for (row, unit) in [("time", "s"), ("memory", "MiB")] {
        for (target, ..) in &contenders {
            let (row, target) = (row.to_owned(), (*target).to_owned());
            all.push(Series { row, target, unit, values: Vec::new() });
        }
    }
    for _ in 0..runs()? {
        for (index, (_, program, args)) in contenders.iter().enumerate() {
            all[index].values.push(run(program, args)?.seconds);
            remove(Path::new(&image))?;
            all[contenders.len() + index].values.extend(peak_mib(program, args)?);
            remove(Path::new(&image))?;
        }
    }
    all.retain(|series| !series.values.is_empty());
    report("mkfs", "extant", &all)
}

/// Question: what does it cost that an image lies in a qcow2 file, behind an NBD server or in a store far away, and under
/// many overlays?
///
/// Sketch: a qcow2 disk is one more look-up in a table in memory; NBD is two copies and two wake-ups for many
/// requests; of a store, the requests that wait for each other count, at 20 ms each: the superblock, the
/// descriptors, a directory and its files are some ten of them. Goals: qcow2 within a tenth of raw, a listing below
/// 20 ms, NBD nine tenths of fio's engine, `/etc` of 2 GiB below 3 % and a second, everything at four fifths of
/// parallel ranges, 200 mounts within 1 GiB.
fn remote() -> Result<()> {
    let dir = memory_dir()?;
    let number = |name: &str, default: &str| -> Result<u64> {
        variable(name, default).parse().with_context(|| format!("{name} is a number"))
    };
    let known = ["qcow2", "nbd", "store", "overlays"];
    let parts: Vec<String> = variable("PARTS", "").split(',').map(str::to_owned).collect();
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if let Some(unknown) = parts.iter().find(|part| !known.contains(&part.as_str())) {
        bail!("PARTS: {unknown} is none of {}", known.join(", "));
    }
    let plan = remote::Plan {
        extant: extant()?,
        rounds: runs()?,
        source: variable("SOURCE", "/etc"),
        store_mib: number("STORE_MIB", "2048")?,
        mounts: u32::try_from(number("MOUNTS", "200")?)?,
        parts,
    };
    report("remote", "extant", &remote::measure(&plan, dir.path())?)
}

/// Question: what does the same cost through the Python package?
///
/// Sketch: one call is below a microsecond, a block of 1 MiB a hundred: within a few percent. An entry is a tuple and a
/// string more: as long again as its decoding. A build is one call.
/// Goals: four fifths of the library's rate, twice its walk, 1.05 of the command's build.
fn python() -> Result<()> {
    let dir = memory_dir()?;
    let plan = extant_bench::python::Plan {
        extant: extant()?,
        python: variable("PYTHON", "target/venv/bench/bin/python"),
        source: variable("SOURCE", "/usr/share/doc"),
        rounds: runs()?,
        files: variable("FILES", "55000").parse().context("FILES is a number")?,
    };
    report("python", "extant", &extant_bench::python::measure(&plan, dir.path())?)
}

/// Question: how long does checking an image take, and in how much memory, against e2fsck?
///
/// Sketch: the tables of inodes are read as a whole, 256 bytes for each, and each inode has one checksum, some
/// comparisons and one name: below 1 µs. Goals: five times e2fsck with many files, three times with large
/// ones, and no more memory.
fn check() -> Result<()> {
    let dir = memory_dir()?;
    let files: Vec<u32> = variable("FILES", "55000,1000000")
        .split(',')
        .map(|count| count.parse().context("FILES is two numbers"))
        .collect::<Result<_>>()?;
    let plan = extant_bench::check::Plan {
        extant: extant()?,
        rounds: runs()?,
        files: files.try_into().ok().context("FILES is two numbers")?,
        size: variable("SIZE", "16T"),
    };
    report("check", "extant", &extant_bench::check::measure(&plan, dir.path())?)
}

/// Question: what does reading through the library cost, against the system's own calls on the
/// same image file?
///
/// Sketch: a read of 1 MiB is one map lookup, already cached, and one `pread`: within a few
/// percent of it. A walk decodes each inode once and reads each block of the inode table once, in
/// memory bounded by the cache. Opening reads a few blocks, whatever the size of the file system.
fn read() -> Result<()> {
    let dir = memory_dir()?;
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (tar, image, empty) = (at("tar"), at("image"), at("empty"));
    let extant = extant()?;
    let entries: u32 = variable("ENTRIES", "1000000").parse().context("ENTRIES is a number")?;
    read::write_tar(Path::new(&tar), entries)?;
    run(&extant, &["build", &image, "--from", &tar, "-q"])?;
    remove(Path::new(&tar))?;
    run(&extant, &["mkfs", &empty, "16T", "-q"])?;
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut all = Vec::new();
    for _ in 0..runs()? {
        let (big, listed) = (Path::new(&image), u64::from(entries));
        for (row, unit, target, value) in read::measure(big, listed)? {
            add(&mut all, row, target, unit, value);
        }
        // Memory is a process's: each of these runs in its own.
        for (row, what, image) in
            [("list", "list", &image), ("walk", "walk", &image), ("open 16 TiB", "open", &empty)]
        {
            let measured = run_with_memory(&program, &["read-one", what, image])?;
            add(&mut all, &format!("{row}: process"), "extant", "s", measured.seconds);
            if let Some(peak) = measured.peak_mib {
                add(&mut all, &format!("{row}: memory"), "extant", "MiB", peak);
            }
        }
    }
    report("read", "extant", &all)
}

fn add(all: &mut Vec<Series>, row: &str, target: &str, unit: &'static str, value: f64) {
    match all.iter_mut().find(|series| series.row == row && series.target == target) {
        Some(series) => series.values.push(value),
        None => all.push(Series {
            row: row.to_owned(),
            target: target.to_owned(),
            unit,
            values: vec![value],
        }),
    }
}

/// One measurement of [`read`] in a process of its own: `list IMAGE`, `walk IMAGE`, `open IMAGE`.
fn read_one() -> Result<()> {
    let mut args = std::env::args().skip(2);
    let (Some(what), Some(image)) = (args.next(), args.next()) else {
        bail!("usage: extant-bench read-one list|walk|open IMAGE");
    };
    read::one(&what, Path::new(&image))
}

/// Question: what does a change of the name space cost in process, against the kernel's ext4?
///
/// Sketch: a system call, the VFS and jbd2's buffer accounting go; what is left is a directory
/// block, an inode and a bit, encoded once per commit. Goals: a third of the kernel's time without
/// fsync, no more than it with.
fn namespace() -> Result<()> {
    let dir = memory_dir()?;
    let divide = variable("DIVIDE", "1").parse().context("DIVIDE is a number")?;
    let mut all: Vec<Series> = Vec::new();
    let mut counters: Vec<(String, [f64; 3])> = Vec::new();
    for round in 1..=runs()? {
        println!("round {round}");
        for sample in namespace::round(dir.path(), divide)? {
            let same =
                |series: &&mut Series| series.row == sample.row && series.target == sample.target;
            match all.iter_mut().find(same) {
                Some(series) => series.values.push(sample.micros),
                None => all.push(Series {
                    row: sample.row.clone(),
                    target: sample.target.into(),
                    unit: "us/op",
                    values: vec![sample.micros],
                }),
            }
            if let Some(of) = sample.counters
                && !counters.iter().any(|(row, _)| *row == sample.row)
            {
                counters.push((sample.row, of));
            }
        }
    }
    report("namespace", "extant", &all)?;
    println!("\nextant per operation: commits, inodes encoded, bytes journaled");
    for (row, [commits, encoded, bytes]) in counters {
        println!("{row:<40} {commits:>10.5} {encoded:>10.5} {bytes:>10.1}");
    }
    Ok(())
}

/// One kind of work by extant alone, for a profiler: `WORK=create+unlink THREADS=1
/// OPS=10000`.
fn namespace_one() -> Result<()> {
    let dir = memory_dir()?;
    let threads = variable("THREADS", "1").parse().context("THREADS is a number")?;
    let operations = variable("OPS", "0").parse().context("OPS is a number")?;
    let work = variable("WORK", "create+unlink");
    let micros = namespace::only(dir.path(), &work, operations, threads)?;
    println!("{micros:.3} us per operation");
    Ok(())
}

/// A number of bytes: `512M`, `1G`, `4096`.
fn bytes(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => bail!("{text} is not a size such as 512M"),
    };
    let number: u64 = digits.parse().with_context(|| format!("{text} is not a size"))?;
    number.checked_mul(1 << shift).with_context(|| format!("{text} is too large"))
}

/// Words between commas.
fn list(name: &str) -> Vec<String> {
    let all = variable(name, "");
    all.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

fn io_settings(rounds: &str) -> Result<io::Settings> {
    let rounds: u32 = variable("ROUNDS", rounds).parse().context("ROUNDS is a number")?;
    Ok(io::Settings {
        rounds,
        metamix_rounds: rounds.min(3),
        file_bytes: bytes(&variable("SIZE", "512M"))?,
        seconds: variable("SECONDS_EACH", "3").parse().context("SECONDS_EACH is a number")?,
        rows: list("ROWS"),
        targets: list("TARGETS"),
        features: variable("FEATURES", ""),
    })
}

/// Question: what do reading and writing cost through the page cache, against the kernel's ext4 and
/// XFS and against copying alone?
///
/// Sketch: of a cached call of 4 KiB the copy is a fifth, the rest is the system call and the
/// kernel's work per page; of 1 MiB the copy is nearly all. Goals: four times ext4 where
/// everything is cached, 85 % of a copy with large blocks, nowhere less than ext4; eight times ext4
/// and XFS where many small files are written with gaps and synced. With `FEATURES=fast_commit` the
/// ext4 images have that feature: the logs of four writers shall be 1.5 times as fast.
fn io() -> Result<()> {
    stop::listen()?;
    io::io(memory_dir()?.path(), &io_settings("5")?)
}

/// Question: what does encryption cost a file that is read and written?
///
/// Sketch: the cache has plaintext, so what is cached costs nothing more. Cold reads and writeback take the cipher's time
/// and that of a copy; on two processors read-ahead and writeback do the cipher's part beside the program's. Goals: cached
/// reads as plain ones; 70 % of what the cipher alone does, for each processor.
fn crypt() -> Result<()> {
    stop::listen()?;
    let settings = crypt::Settings {
        rounds: variable("ROUNDS", "5").parse().context("ROUNDS is a number")?,
        file_bytes: bytes(&variable("SIZE", "256M"))?,
        rows: list("ROWS"),
    };
    crypt::run(memory_dir()?.path(), &settings)
}

/// Question: what does a ring cost, where nothing has to be waited for?
///
/// Sketch: an attempt asks what the call that waits asks, tries locks instead of taking them, and adds a few atomic
/// counters. Goals: 95 % of the call that waits, and 99.9 % done by the submitter's thread.
fn rings() -> Result<()> {
    stop::listen()?;
    let rounds = variable("ROUNDS", "5").parse().context("ROUNDS is a number")?;
    let rows = variable("ROWS", "");
    let settings = ring::Settings {
        rounds,
        file_bytes: bytes(&variable("SIZE", "256M"))?,
        rows: rows.split(',').filter(|row| !row.is_empty()).map(str::to_owned).collect(),
    };
    ring::run(memory_dir()?.path(), &settings)
}

/// One row for a profiler: `io-one "read memory 4K"`, `io-one "metamix 8"`; extant alone unless
/// `TARGETS=ext4,xfs` says else.
fn io_one() -> Result<()> {
    let row = std::env::args().nth(2).context("usage: extant-bench io-one ROW")?;
    stop::listen()?;
    let mut settings = io_settings("1")?;
    if settings.targets.is_empty() {
        settings.targets.push("extant".into());
    }
    io::one(memory_dir()?.path(), &settings, &row)
}

fn alloc_settings(rounds: &str) -> Result<alloc::Settings> {
    let workers = variable("WORKERS", "1,2,4,8,16,64");
    let workers =
        workers.split(',').map(|count| count.trim().parse().context("WORKERS are numbers"));
    Ok(alloc::Settings {
        rounds: variable("ROUNDS", rounds).parse().context("ROUNDS is a number")?,
        workers: workers.collect::<Result<_>>()?,
        seconds: variable("SECONDS_EACH", "2").parse().context("SECONDS_EACH is a number")?,
        calls: variable("CALLS", "0").parse().context("CALLS is a number")?,
        image_bytes: bytes(&variable("SIZE", "256G"))?,
        targets: list("TARGETS"),
    })
}

/// Question: what does giving a file 8 KiB more cost, and how much do those who do it at once get in
/// each other's way?
///
/// Sketch: a bit scan, an extent that gets longer and an inode that changes, all in memory, are half a
/// microsecond; what is written for them is written once per commit. Goals: four times the kernel's ext4
/// with any number of workers, and with several never less than 1.8 times one.
fn alloc() -> Result<()> {
    stop::listen()?;
    alloc::run(memory_dir()?.path(), &alloc_settings("3")?)
}

/// The same of extant alone, for a profiler: `WORKERS=1 CALLS=100000` ends after so many calls of each worker.
fn alloc_one() -> Result<()> {
    stop::listen()?;
    let mut settings = alloc_settings("1")?;
    if settings.targets.is_empty() {
        settings.targets.push("extant".into());
    }
    alloc::run(memory_dir()?.path(), &settings)
}

/// Question: in how many pieces do files lie that grow side by side, and what does keeping them apart cost?
///
/// Sketch: room that is left behind the end of each file grows with it, up to 16 MiB, so a file has as many
/// pieces as it doubles three times, and then 64 per GiB. Goals: 600 per GiB by space alone, with both ways to search,
/// and 200 with an fsync for each 256 KiB, where the kernel's ext4 has twice as many.
fn grow() -> Result<()> {
    stop::listen()?;
    let rows = list("ROWS");
    let is_wanted =
        |row: &pieces::Row| rows.is_empty() || rows.iter().any(|name| name == row.name());
    pieces::run(
        memory_dir()?.path(),
        &pieces::Settings {
            rounds: variable("ROUNDS", "3").parse().context("ROUNDS is a number")?,
            rows: pieces::Row::ALL.into_iter().filter(is_wanted).collect(),
            workers: variable("WORKERS", "64").parse().context("WORKERS is a number")?,
            append_bytes: bytes(&variable("APPEND_BYTES", "128M"))?,
            synced_bytes: bytes(&variable("SYNCED_BYTES", "16M"))?,
            image_bytes: bytes(&variable("SIZE", "200G"))?,
            targets: list("TARGETS"),
        },
    )
}

/// Question: how do a file system and its files look after a long time at nearly full, and what does writing
/// cost then?
///
/// Sketch: what is removed at random leaves holes of the sizes of files; whoever writes next fits into them or is
/// cut in pieces. Goal: no more pieces than the kernel's ext4 after the same operations, and no slower.
fn age() -> Result<()> {
    stop::listen()?;
    let number = |name: &str, default: &str| -> Result<u64> {
        variable(name, default).parse().with_context(|| format!("{name} is a number"))
    };
    age::run(
        memory_dir()?.path(),
        &age::Settings {
            rounds: u32::try_from(number("ROUNDS", "3")?)?,
            full: number("FULL", "90")?,
            times: number("TIMES", "3")?,
            image_bytes: bytes(&variable("SIZE", "2G"))?,
            seed: number("SEED", "1")?,
            targets: list("TARGETS"),
        },
    )
}

/// Question: what does a file system cost over the device, one request at a time and 64 at once?
///
/// Sketch: over data extant does what the device does, and between the two a look at the map and one at the cache,
/// well below a microsecond; the device takes several. Goal: 98 % of the raw file's rate, and not less than
/// the kernel's ext4. A loop device costs ext4 another trip through the kernel, which is the kernel's price for
/// an image.
fn direct() -> Result<()> {
    stop::listen()?;
    let memory = variable("BENCH_DIR", "/dev/shm");
    let disk = variable("BENCH_DISK", "/var/tmp");
    let seconds = variable("SECONDS_EACH", "1").parse().context("SECONDS_EACH is a number")?;
    direct::direct(&direct::Settings {
        rounds: variable("ROUNDS", "3").parse().context("ROUNDS is a number")?,
        file_bytes: bytes(&variable("SIZE", "2G"))?.next_multiple_of(1 << 20),
        time: Duration::try_from_secs_f64(seconds).context("SECONDS_EACH is too much")?,
        places: vec![
            ("memory".to_owned(), memory.into(), Below::Loop),
            ("disk".to_owned(), disk.into(), Below::File),
        ],
        rows: variable("ROWS", "")
            .split(';')
            .filter(|row| !row.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

/// Question: does the cache keep its budget?
///
/// Sketch: contents are in the arena alone, state per block is bits; all else is metadata, which
/// has a budget of its own. Goal: the budget and 64 MiB after ten minutes with four times the data.
fn io_memory() -> Result<()> {
    let mut args = std::env::args().skip(2);
    let minutes: f64 = match (args.next().as_deref(), args.next()) {
        (None, _) => 10.0,
        (Some("--minutes"), Some(minutes)) => minutes.parse().context("minutes are a number")?,
        _ => bail!("usage: extant-bench io-memory [--minutes N]"),
    };
    let length = Duration::try_from_secs_f64(minutes * 60.0).context("minutes are not negative")?;
    stop::listen()?;
    let cache_bytes = bytes(&variable("CACHE", "256M"))?;
    let dir = memory_dir()?;
    let image = dir.path().join("memory.img");
    // Twice the data: what is removed while it is written back still has its place.
    let size = 2 * io::memory::DATA_PER_CACHE * cache_bytes;
    std::fs::File::create(&image)?.set_len(size)?;
    io::kernel::make_ext4(&image)?;
    let outcome = io::memory::run(&image, cache_bytes, length, 4)?;
    io::kernel::check_ext4(&image)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let limit = cache_bytes + io::memory::BESIDES;
    let verdict = if outcome.peak_bytes <= limit { "met" } else { "MISSED" };
    println!(
        "{minutes} minutes, {} operations, {:.0} MiB moved: peak {:.1} MiB, \
         bar {:.0} + {:.0} MiB: {verdict}",
        outcome.operations,
        mib(outcome.bytes),
        mib(outcome.peak_bytes),
        mib(cache_bytes),
        mib(io::memory::BESIDES),
    );
    let series = |target: &str, value| Series {
        row: "mixed".into(),
        target: target.into(),
        unit: "MiB",
        values: vec![value],
    };
    let all = [series("extant", mib(outcome.peak_bytes)), series("bar", mib(limit))];
    extant_bench::report::write("io-memory", &all)
}

fn mount_settings(rounds: &str) -> Result<mount::Settings> {
    let seconds: f64 = variable("SECONDS_EACH", "2").parse().context("SECONDS_EACH is a number")?;
    Ok(mount::Settings {
        rounds: variable("ROUNDS", rounds).parse().context("ROUNDS is a number")?,
        file_bytes: bytes(&variable("SIZE", "512M"))?,
        tree_files: variable("FILES", "55000").parse().context("FILES is a number")?,
        length: Duration::try_from_secs_f64(seconds).context("SECONDS_EACH is not negative")?,
        rows: list("ROWS"),
        targets: list("TARGETS"),
    })
}

/// Question: what does a program pay on a mount of extant, against the kernel's ext4 on a loop
/// device and fuse2fs?
///
/// Sketch: what the kernel has cached costs the same, since its cache is the same one; what it has
/// not costs a turn to the server, 5 to 10 us, so large requests and what needs no turn decide.
/// Goals: 0.9 times ext4 for buffered reads and writes, as fast as it for direct ones, where the
/// loop device also pays a turn; unpacking 0.3 times ext4 and 4 times fuse2fs; walking half of ext4.
fn mount() -> Result<()> {
    stop::listen()?;
    mount::mount(memory_dir()?.path(), &mount_settings("5")?)
}

/// One session for a profiler: `mount-one "write 1M"`, `mount-one tree`; extant alone unless
/// `TARGETS=ext4,fuse2fs` says else.
fn mount_one() -> Result<()> {
    let session = std::env::args().nth(2).context("usage: extant-bench mount-one SESSION")?;
    stop::listen()?;
    let mut settings = mount_settings("1")?;
    if settings.targets.is_empty() {
        settings.targets.push("extant".into());
    }
    mount::one(memory_dir()?.path(), &settings, &session)
}
