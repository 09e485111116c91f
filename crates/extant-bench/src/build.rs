//! Building images: against other tools, and against what nobody can do without.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use extant_sync::{Clock, SystemClock, threads};

use crate::report::{Series, add};
use crate::run::{find, run};

/// Bytes read and written at once.
const CHUNK: usize = 1 << 20;

/// What is measured, and where.
pub struct Plan {
    /// The command.
    pub extant: String,
    /// The tree to be built.
    pub source: String,
    /// A directory for what is made, in memory.
    pub dir: PathBuf,
    /// How many rounds.
    pub rounds: u32,
}

/// One tool: its name in the table, and the command with its arguments.
struct Contender {
    row: &'static str,
    target: &'static str,
    command: Vec<String>,
    makes: Vec<PathBuf>,
}

/// Measures all rows, round by round.
///
/// # Errors
///
/// When a tool that is installed fails.
pub fn measure(plan: &Plan) -> Result<Vec<Series>> {
    let at = |name: &str| plan.dir.join(name).to_string_lossy().into_owned();
    let (extant, source) = (&plan.extant, &plan.source);
    let summary = std::process::Command::new(extant)
        .args(["build", &at("plan"), "--from", source, "--plan", "--json"])
        .output()?;
    let summary: serde_json::Value = serde_json::from_slice(&summary.stdout)
        .with_context(|| String::from_utf8_lossy(&summary.stderr).into_owned())?;
    let number = |key: &str| summary.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let (bytes, files) = (number("size_bytes"), number("files"));
    let used = number("used_blocks") * number("block_bytes");
    println!("{source}: {files} files, {} MiB of data", number("data_bytes") >> 20);
    // mke2fs does not compute a size: give it room, also for its own inode count.
    let size = format!("{}M", ((bytes + bytes / 2) >> 20) + 64);
    let inodes = (files + files / 10 + 1000).to_string();
    let mke2fs = |from: &str, to: &str| {
        let fixed = ["mke2fs", "-q", "-F", "-t", "ext4", "-N", &inodes, "-d", from, to, &size];
        fixed.map(str::to_owned).to_vec()
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();

    let tar = at("source.tar");
    run("tar", &["--numeric-owner", "-cf", &tar, "-C", source, "."])?;
    let mut list = Vec::new();
    let mut push = |row, target, command: Vec<String>, makes: &[&str]| {
        let program = command.first().map_or("", String::as_str);
        if find(program).is_none() {
            println!("{program} is not installed: {target} is left out");
            return;
        }
        let makes = makes.iter().map(|name| plan.dir.join(name)).collect();
        list.push(Contender { row, target, command, makes });
    };
    push("build", "extant", words(&[extant, "build", &at("a"), "--from", source, "-q"]), &["a"]);
    push("build", "cp -a", words(&["cp", "-a", source, &at("cp")]), &["cp"]);
    let untar = format!("mkdir {0} && tar -xf {tar} -C {0}", at("tar"));
    push("build", "tar -x", words(&["sh", "-c", &untar]), &["tar"]);
    push("build", "mkfs.erofs", words(&["mkfs.erofs", &at("erofs"), source]), &["erofs"]);
    push("build", "mke2fs", mke2fs(source, &at("mke2fs")), &["mke2fs"]);
    let blocks = (bytes / 1024 * 2).to_string();
    let gen_args = ["genext2fs", "-d", source, "-b", &blocks, "-N", &inodes, &at("gen")];
    push("build", "genext2fs", words(&gen_args), &["gen"]);

    let layout = at("oci");
    if find("umoci").is_some() {
        let image = format!("{layout}:t");
        run("umoci", &["init", "--layout", &layout])?;
        run("umoci", &["new", "--image", &image])?;
        run("umoci", &["raw", "add-layer", "--image", &image, &tar])?;
        let from = format!("oci:{layout}:t");
        push("oci", "extant", words(&[extant, "build", &at("b"), "--from", &from, "-q"]), &["b"]);
        let unpacked = at("unpacked");
        let chain = format!(
            "umoci raw unpack --image {image} {unpacked} && {}",
            mke2fs(&unpacked, &at("m")).join(" ")
        );
        push("oci", "umoci, mke2fs", words(&["sh", "-c", &chain]), &["unpacked", "m"]);
    } else {
        println!("umoci is not installed: layouts are left out");
    }

    let paths = files_of(Path::new(source))?;
    read_all(&paths)?;
    let mut all = Vec::new();
    for round in 1..=plan.rounds {
        for one in &list {
            let (program, args) = one.command.split_first().context("no command")?;
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let seconds = run(program, &args)?.seconds;
            println!("run {round}: {:<6} {:<14} {seconds:>9.3} s", one.row, one.target);
            add(&mut all, one.row, one.target, "s", seconds);
            for made in &one.makes {
                remove(made)?;
            }
        }
        // What nobody can do without, each alone: reading all files, writing as many bytes, unpacking.
        add(&mut all, "build", "reads alone", "s", timed(|| read_all(&paths))?);
        let target = plan.dir.join("written");
        add(&mut all, "build", "writes alone", "s", timed(|| write_all(&target, used))?);
        remove(&target)?;
        if Path::new(&layout).exists() {
            let blobs = Path::new(&layout).join("blobs/sha256");
            add(&mut all, "oci", "unpacking alone", "s", timed(|| unpack_all(&blobs))?);
        }
    }
    Ok(all)
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
        .with_context(|| format!("cannot remove {}", path.display()))
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let clock = SystemClock;
    let start = clock.monotonic();
    work()?;
    Ok(clock.monotonic().saturating_sub(start).as_secs_f64())
}

fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let (mut todo, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

/// Opens and reads every file, with a thread for each processor. Their names are known.
fn read_all(paths: &[PathBuf]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |_| -> std::io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut file = File::open(path)?;
            while file.read(&mut buffer)? > 0 {}
        }
        Ok(())
    };
    for result in threads::workers("read", threads::available(), work)? {
        result?;
    }
    Ok(())
}

/// Writes `bytes` to a new file, with a thread for each processor.
fn write_all(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes)?;
    let next = AtomicUsize::new(0);
    let work = |_| -> std::io::Result<()> {
        let buffer = vec![0xa5; CHUNK];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed) as u64 * CHUNK as u64;
            if at >= bytes {
                return Ok(());
            }
            let count = (bytes - at).min(CHUNK as u64) as usize;
            file.write_all_at(&buffer[..count], at)?;
        }
    };
    for result in threads::workers("write", threads::available(), work)? {
        result?;
    }
    (&file).flush()?;
    Ok(())
}

/// Unpacks every blob that is packed with gzip, by the decoder that extant has, into nothing.
fn unpack_all(blobs: &Path) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut unpacked = 0u64;
    for entry in std::fs::read_dir(blobs)? {
        let file = std::io::BufReader::with_capacity(CHUNK, File::open(entry?.path())?);
        let mut stream = flate2::bufread::GzDecoder::new(file);
        if stream.header().is_none() {
            continue;
        }
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                count => unpacked += count as u64,
            }
        }
    }
    ensure!(unpacked > 0, "no layer is packed with gzip");
    Ok(())
}
