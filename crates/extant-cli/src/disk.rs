//! A whole disk around the image that `build` makes: `--gpt` and what belongs to it.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use extant_block::BlockDevice;
use extant_image::disk::{
    Architecture, DiskLayout, Entry, EspError, Parts, Place, Table, plan_esp, write_esp,
};
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::source::{Platform, Scanned, Skipped};
use extant_image::transform::Transform;
use serde_json::{Map, Value, json};

use crate::exit::{Exit, Failure, Result};
use crate::fault::size_option;
use crate::foreign;
use crate::size::parse_bytes;
use crate::text::{escape, human_bytes};

/// Options about a disk.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiskSet {
    /// Make a disk: a GPT with the file system in a root partition, and with --verity its hashes in
    /// another, which systemd and others find by their types
    #[arg(long, conflicts_with_all = ["offset", "partition"], help_heading = "Disk")]
    pub(crate) gpt: bool,
    /// Put an EFI system partition before the root, with the files of a directory
    #[arg(long, value_name = "DIR", requires = "gpt", help_heading = "Disk")]
    esp: Option<PathBuf>,
    /// Size of the EFI system partition; as large as its files need, and at least 36M, if not given
    #[arg(long, value_name = "SIZE", requires = "esp", value_parser = parse_bytes, help_heading = "Disk")]
    esp_size: Option<u64>,
    /// Size of the disk; what the partitions leave is free. As small as it can be if not given
    #[arg(long, value_name = "SIZE", requires = "gpt", value_parser = parse_bytes, help_heading = "Disk")]
    disk_size: Option<u64>,
}

/// The disk that was asked for.
pub(crate) struct Disk {
    architecture: Architecture,
    esp: Option<Esp>,
    /// Bytes, if they were given.
    pub(crate) bytes: Option<u64>,
}

struct Esp {
    scanned: Scanned,
    bytes: u64,
}

/// A disk, laid out.
pub(crate) struct Made {
    pub(crate) layout: DiskLayout,
    table: Option<Table>,
}

impl DiskSet {
    /// Reads what goes on the disk besides the root, for a root of `platform`. `None` if no disk was asked for.
    pub(crate) fn look_at(
        &self,
        platform: &Platform,
        epoch: Option<i64>,
        (threads, sector): (usize, u64),
        skipped: &mut Skipped,
    ) -> Result<Option<Disk>> {
        if !self.gpt {
            return Ok(None);
        }
        let Some(architecture) = Architecture::find(&platform.architecture) else {
            return Err(Failure::usage(format!(
                "--gpt: there is no type of partition for the root of a machine of kind {}",
                escape(platform.architecture.as_bytes())
            ))
            .hint("--platform linux/amd64, linux/arm64 and others say which kind it is"));
        };
        let esp = match &self.esp {
            None => None,
            Some(dir) => {
                let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
                let options = ScanOptions { threads, ..ScanOptions::default() };
                let mut scanned = scan_dir(dir, &options)
                    .map_err(|error| foreign::no_source(error, dir.as_os_str(), "OUT"))?;
                skipped.count += scanned.skipped.count;
                let times = Transform { epoch, ..Transform::default() };
                // Owners stay, so nothing can be without a place.
                let _ = times.apply(&mut scanned.tree);
                let bytes = plan_esp(&scanned.tree, self.esp_size, sector).map_err(failure)?.bytes;
                Some(Esp { scanned, bytes })
            }
        };
        Ok(Some(Disk { architecture, esp, bytes: self.disk_size }))
    }
}

/// Returns what an error of the EFI system partition means here.
fn failure(error: EspError) -> Failure {
    match error {
        EspError::Source(error) => Failure::from(error),
        EspError::TooSmall { needed, .. } => Failure::caused(Exit::NoSpace, "", &error)
            .hint(format!("--esp-size {} would do", size_option(needed))),
        EspError::NoPlace { .. } => Failure::caused(Exit::Input, "", &error),
        _ => Failure::caused(Exit::Io, "", &error),
    }
}

impl Disk {
    /// Places everything: a file system of `root` bytes and a tree of `verity` bytes.
    pub(crate) fn layout(
        &self,
        root: u64,
        verity: Option<u64>,
        room: Option<u64>,
        sector: u64,
    ) -> Result<Made> {
        let parts = Parts { esp: self.esp.as_ref().map(|esp| esp.bytes), root, verity };
        let layout = DiskLayout::of(&parts, self.bytes.or(room), sector).map_err(|error| {
            Failure::caused(Exit::NoSpace, "", &error)
                .hint(format!("--disk-size {} would do", size_option(error.needed_bytes)))
        })?;
        Ok(Made { layout, table: None })
    }

    /// Writes all but the root and its hashes, and the tables last.
    pub(crate) fn finish(
        &self,
        made: &mut Made,
        device: &dyn BlockDevice,
        fs_uuid: &[u8; 16],
        root_hash: Option<&[u8; 32]>,
        is_zeroed: bool,
    ) -> Result<()> {
        let io = |error: extant_block::DeviceError| Failure::from(error);
        if let (Some(esp), Some(place)) = (&self.esp, made.layout.esp) {
            if !is_zeroed {
                device.write_zeroes(place.offset, place.len).map_err(io)?;
            }
            let plan = plan_esp(&esp.scanned.tree, Some(esp.bytes), made.layout.sector)
                .map_err(failure)?;
            write_esp(&plan, &*esp.scanned.contents, device, place, fs_uuid).map_err(failure)?;
        }
        device.flush().map_err(io)?;
        let table = made.layout.table(self.architecture, fs_uuid, root_hash);
        table.write(device).map_err(io)?;
        device.flush().map_err(io)?;
        made.table = Some(table);
        Ok(())
    }
}

impl Made {
    /// Returns what a plan says about it.
    pub(crate) fn text(&self) -> String {
        let part = |name: &str, place: Option<Place>| {
            place.map_or(String::new(), |place| {
                let (len, offset) = (human_bytes(place.len), human_bytes(place.offset));
                format!(", {name} {len} at {offset}")
            })
        };
        let layout = &self.layout;
        format!(
            "     Disk: {}{}{}{}\n",
            human_bytes(layout.bytes),
            part("EFI", layout.esp),
            part("root", Some(layout.root)),
            part("verity", layout.verity)
        )
    }

    pub(crate) fn json(&self) -> Value {
        let layout = &self.layout;
        let mut object = Map::new();
        object.insert("bytes".into(), layout.bytes.into());
        object.insert("sector_bytes".into(), layout.sector.into());
        if let Some(table) = &self.table {
            object.insert("uuid".into(), table.uuid.to_string().into());
            let entry = |(at, entry): (usize, &Entry)| {
                json!({
                    "number": at + 1,
                    "name": entry.name,
                    "type": entry.kind.to_string(),
                    "uuid": entry.uuid.to_string(),
                    "offset": entry.place.offset,
                    "bytes": entry.place.len,
                })
            };
            let list: Vec<Value> = table.entries.iter().enumerate().map(entry).collect();
            object.insert("partitions".into(), list.into());
        }
        Value::Object(object)
    }
}
