//! `ramfold ctl`: a disk or a mount that runs is asked, or told to do something.
//!
//! The command sends one line to the control socket of a server and prints what comes back. What the words mean is
//! known there. Whatever has a control socket is asked in this way.

use crate::failure::Failure;
use crate::output;
use ramfold_budget::control::request::Named;
use ramfold_budget::control::{AskError, Refusal, Reply, ask};
use ramfold_disk::attributes::request::Attribute;
use std::io::{self, ErrorKind, Read};
use std::process::ExitCode;

/// The columns of attributes that are a line of numbers.
const COLUMNS: &[(Attribute, &[&str])] = &[
    (
        Attribute::MmStat,
        &[
            "orig_data_size",
            "compr_data_size",
            "mem_used_total",
            "mem_limit",
            "mem_used_max",
            "same_pages",
            "pages_compacted",
            "huge_pages",
            "huge_pages_since",
        ],
    ),
    (Attribute::IoStat, &["failed_reads", "failed_writes", "invalid_io", "notify_free"]),
    (Attribute::BdStat, &["bd_count", "bd_reads", "bd_writes"]),
    (Attribute::FreshStat, &["fresh_bytes", "fresh_limit", "settled_pages"]),
];

/// Reads or writes an attribute of a disk or a mount that runs; a disk's by zram's names and in zram's formats.
///
/// Of a disk are read: backing_dev, bd_stat, block_state, debug_stat, fresh_stat, initstate, io_stat, mm_stat. Read
/// and written: algorithm_params, comp_algorithm, compressed_writeback, disksize (after a reset), fresh_enabled,
/// mem_limit, recomp_algorithm, shrinker_enabled, writeback_batch_size, writeback_limit, writeback_limit_enable.
/// Written: compact, idle, mem_used_max, recompress, reset, writeback. Of a mount are read: stat, directories
/// (those with a limit of their own: limit, bytes, path). Read and written: compressor, max_compression_ratio,
/// memlimit (written also: DIRECTORY SIZE, or DIRECTORY none), shrinker_enabled. Written: compact. Of a server of
/// several disks (disk --config) is read: disks (name, bytes, URI). Written: hot_add, with the options of ramfold
/// disk as words (size=1G unix=PATH persist), which tells the new disk's name; hot_remove, with the name of a disk
/// that has no clients. Exit status: 0, 2 for wrong usage or a value that cannot be read, 125 if the server refuses
/// it or could not do it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold ctl disk0 mm_stat
         ramfold ctl disk0 mem_limit 1G
         ramfold ctl disk0 idle 3600 && ramfold ctl disk0 writeback type=idle
         ramfold ctl mount0 memlimit 2G && ramfold ctl mount0 memlimit video 256M
         ramfold ctl disks0 hot_add size=1G unix=/run/more.sock && ramfold ctl disks0 hot_remove disk1")]
pub struct Options {
    /// The name of the disk, mount or server, or its control socket
    #[arg(value_name = "NAME|SOCKET")]
    pub disk: String,

    /// What to read or write
    #[arg(value_name = "ATTRIBUTE")]
    pub attribute: String,

    /// What to write: a number, a size such as 512M, or words such as type=idle
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub value: Vec<String>,

    /// What is read as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks, and prints the answer.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let words = std::iter::once(&options.attribute).chain(&options.value);
    let line = words.map(String::as_str).collect::<Vec<_>>().join(" ");
    let what = format!("ctl {} {}", options.disk, options.attribute).escape_debug().to_string();
    let mut reply = ask(&options.disk, &line).map_err(|error| failure(&what, &error))?;
    let unheard = |error: io::Error| Failure::failed(format!("{what}: {error} (the answer is not complete)"));
    if options.json && options.value.is_empty() {
        let mut text = String::new();
        reply.read_to_string(&mut text).map_err(unheard)?;
        output::print(&format!("{}\n", json(&options.attribute, &text)));
        return Ok(ExitCode::SUCCESS);
    }
    copy(&mut reply).map_err(unheard)?;
    Ok(ExitCode::SUCCESS)
}

/// A reader that closed the pipe has seen enough.
fn copy(reply: &mut Reply) -> io::Result<()> {
    match io::copy(reply, &mut io::stdout().lock()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn failure(what: &str, error: &AskError) -> Failure {
    let message = format!("{what}: {error}");
    match error {
        AskError::Refused(Refusal::Wrong(_)) => Failure::usage(message),
        _ => Failure::failed(message),
    }
}

/// The columns by their names, or the text under the attribute's.
fn json(attribute: &str, text: &str) -> serde_json::Value {
    if attribute == "disks" {
        return serde_json::json!({ attribute: text.lines().filter_map(disk).collect::<Vec<_>>() });
    }
    if attribute == "directories" {
        return serde_json::json!({ attribute: text.lines().filter_map(directory).collect::<Vec<_>>() });
    }
    let columns = COLUMNS.iter().find(|(it, _)| it.name() == attribute).map_or(&[][..], |(_, names)| names);
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    match numbers {
        Some(numbers) if numbers.len() == columns.len() => {
            let numbers = numbers.into_iter().map(serde_json::Value::from);
            columns.iter().map(|name| (*name).to_owned()).zip(numbers).collect()
        }
        Some(numbers) if numbers.len() == 1 => serde_json::json!({ attribute: numbers[0] }),
        _ => named(text).unwrap_or_else(|| serde_json::json!({ attribute: text.trim_end() })),
    }
}

/// A disk of a server: its name, its bytes, where clients find it.
fn disk(line: &str) -> Option<serde_json::Value> {
    let (name, rest) = line.split_once(' ')?;
    let (size, uri) = rest.split_once(' ')?;
    Some(serde_json::json!({ "name": name, "disksize": size.parse::<u64>().ok()?, "uri": uri }))
}

/// A directory of a mount: its limit, its bytes, its path.
fn directory(line: &str) -> Option<serde_json::Value> {
    let (limit, rest) = line.split_once(' ')?;
    let (bytes, path) = rest.split_once(' ')?;
    let [limit, bytes] = [limit, bytes].map(|number| number.parse::<u64>().ok());
    Some(serde_json::json!({ "directory": path, "memlimit": limit?, "bytes": bytes? }))
}

/// Lines that are a name and a number each.
fn named(text: &str) -> Option<serde_json::Value> {
    let pair = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), serde_json::Value::from(number.parse::<u64>().ok()?)))
    };
    text.lines().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names_in_json() {
        let text = |attribute, text| json(attribute, text).to_string();
        assert_eq!(text("bd_stat", "  1  2  3\n"), r#"{"bd_count":1,"bd_reads":2,"bd_writes":3}"#);
        assert_eq!(text("mem_limit", "4096\n"), r#"{"mem_limit":4096}"#);
        assert_eq!(text("stat", "hits 3\nmisses 4\n"), r#"{"hits":3,"misses":4}"#);
        assert_eq!(
            text("disks", "a 4096 nbd+unix:///?socket=/a b\n"),
            r#"{"disks":[{"disksize":4096,"name":"a","uri":"nbd+unix:///?socket=/a b"}]}"#
        );
        assert_eq!(
            text("directories", "4096 12 a b\n"),
            r#"{"directories":[{"bytes":12,"directory":"a b","memlimit":4096}]}"#
        );
        assert_eq!(text("disks", ""), r#"{"disks":[]}"#);
        assert_eq!(text("comp_algorithm", "[lz4] zstd\n"), r#"{"comp_algorithm":"[lz4] zstd"}"#);
    }
}
