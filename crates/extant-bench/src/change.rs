//! Changing images: `extant tune` and `extant resize` against tune2fs and resize2fs, alone and with the e2fsck that those
//! ask for first. `extant` checks by itself.

use anyhow::Result;

use crate::report::{Series, add};
use crate::run::{find, run};

/// One change, by both. `IMG` stands for the image.
struct Change {
    row: &'static str,
    extant: &'static [&'static str],
    other: &'static [&'static str],
    /// What is done to the image before, not measured.
    before: &'static [&'static str],
}

const CHANGES: [Change; 6] = [
    Change {
        row: "^metadata_csum",
        extant: &["tune", "-O", "^metadata_csum", "IMG"],
        other: &["tune2fs", "-O", "^metadata_csum", "IMG"],
        before: &[],
    },
    Change {
        row: "metadata_csum",
        extant: &["tune", "-O", "metadata_csum", "IMG"],
        other: &["tune2fs", "-O", "metadata_csum", "IMG"],
        before: &["tune2fs", "-O", "^metadata_csum", "IMG"],
    },
    Change {
        row: "another UUID, in all checksums",
        extant: &["tune", "-U", "random", "IMG"],
        other: &["tune2fs", "-U", "random", "IMG"],
        before: &["tune2fs", "-O", "^metadata_csum_seed", "IMG"],
    },
    Change {
        row: "^64bit",
        extant: &["tune", "-O", "^64bit", "IMG"],
        other: &["resize2fs", "-s", "IMG"],
        before: &[],
    },
    Change {
        row: "to 1 GiB",
        extant: &["resize", "IMG", "1G"],
        other: &["resize2fs", "IMG", "1G"],
        before: &[],
    },
    Change {
        row: "from 1 GiB to 512 MiB",
        extant: &["resize", "IMG", "512M"],
        other: &["resize2fs", "IMG", "512M"],
        before: &["resize2fs", "IMG", "1G"],
    },
];

/// Does each change once, on copies of `image`, and adds how long it took.
///
/// # Errors
///
/// When a change fails.
pub fn measure(extant: &str, image: &str, all: &mut Vec<Series>) -> Result<()> {
    let copy = format!("{image}-copy");
    for change in &CHANGES {
        let row = format!("change: {}", change.row);
        let with_image = |args: &[&'static str]| -> Vec<String> {
            args.iter().map(|arg| arg.replace("IMG", &copy)).collect()
        };
        let start = |program: &str, args: &[String]| -> Result<f64> {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            Ok(run(program, &args)?.seconds)
        };
        let others = |args: &'static [&'static str]| -> Result<Option<f64>> {
            let [program, rest @ ..] = args else { return Ok(Some(0.0)) };
            let Some(program) = find(program) else { return Ok(None) };
            let args = with_image(rest);
            if !program.ends_with("e2fsck") {
                return start(&program, &args).map(Some);
            }
            // Its exit code 1 says that it changed something.
            let call = r#""$0" "$@" || [ $? = 1 ]"#.to_owned();
            let args: Vec<String> =
                ["-c".to_owned(), call, program].into_iter().chain(args).collect();
            start("sh", &args).map(Some)
        };
        std::fs::copy(image, &copy)?;
        if others(change.before)?.is_none() {
            println!("{} is not installed: {} is left out", change.other[0], change.row);
            continue;
        }
        let seconds = start(extant, &with_image(change.extant))?;
        add(all, &row, "extant", "s", seconds);
        std::fs::copy(image, &copy)?;
        others(change.before)?;
        let checked = others(&["e2fsck", "-fp", "IMG"])?;
        if let (Some(checked), Some(seconds)) = (checked, others(change.other)?) {
            add(all, &row, change.other[0], "s", seconds);
            add(all, &row, &format!("e2fsck -fp and {}", change.other[0]), "s", checked + seconds);
        }
        std::fs::remove_file(&copy)?;
    }
    Ok(())
}
