//! `ramfold run --trace`: what a program did to its pages, written down and played again.

mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;

use command::{one_line, ramfold};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Touches 40 MiB of text in turn, gives a half up, and thirty mappings as well, and says what it read. A child that
/// has its own copy reads it too. (When malloc gives freed memory back is its own affair.)
const PROGRAM: &str = "
import mmap, os
data = [(str(number) * 40000)[:40000] for number in range(1, 1001)]
for _ in range(4):
    total = sum(text.count('7') for text in data)
del data[::2]
maps = [mmap.mmap(-1, 1 << 18, mmap.MAP_PRIVATE) for _ in range(30)]
for map in maps: map.write(b'x' * (1 << 18))
for map in maps: map.close()
if os.fork() == 0:
    total = sum(text.count('7') for text in data)
    os._exit(0)
os.wait()
print(total)
";

fn can_run() -> bool {
    need::userfaultfd() && need::programs(&["python3"])
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_was_recorded_is_played_again() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (trace, stats) = (directory.path().join("trace"), directory.path().join("stats"));
    let (trace_path, stats_path) = (trace.to_str().unwrap(), stats.to_str().unwrap());
    let plain = std::process::Command::new("python3").args(["-c", PROGRAM]).output().unwrap();
    let options = ["run", "-m", "24M", "--trace", trace_path, "--stats", stats_path];
    let run = ramfold(&[&options[..], &["--", "python3", "-c", PROGRAM]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert_eq!(run.stdout.as_bytes(), plain.stdout);

    let (stats, text) = (json(&stats), fs::read_to_string(&trace).unwrap());
    let count = |names: &[char]| {
        let whole = text.lines().skip(1).filter_map(|line| line.rsplit('!').next());
        whole.filter(|line| line.starts_with(names)).count() as u64
    };
    let evicted = stats["evicted_pages"].as_u64().unwrap();
    // The child ends without a word, and with its last lines.
    let nearly = |seen: u64, all: u64| assert!(seen * 10 >= all * 9, "{seen} of {all}: {stats}");
    nearly(count(&['c']), evicted);
    nearly(count(&['r', 'w']), stats["refaults"].as_u64().unwrap());
    let (given_up, worked) = (count(&['d']), count(&['t']));
    assert!(evicted > 10_000 && given_up > 20 && worked > 1000, "{given_up}, {worked}: {stats}");

    let played = ramfold(&["replay", trace_path, "--json", "-m", "24M", "--policy", "none,store"]);
    assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    let played: Value = serde_json::from_str(one_line(&played.stdout)).unwrap();
    let of = |case: usize, name: &str| played["cases"][case][name].as_u64().unwrap();
    assert_eq!(of(1, "touches"), count(&['r', 'w']));
    assert!(of(0, "tier_reads") > 10 * of(1, "tier_reads"), "a pool holds what a device would: {played}");
}

#[test]
fn a_place_where_nothing_can_be_recorded_is_told_before_the_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    for (path, why) in [
        ("/no/such/folder/trace", "No such file or directory"),
        (directory.path().to_str().unwrap(), "Is a directory"),
        ("/dev/null", "not a regular file"),
    ] {
        let run = ramfold(&["run", "-m", "24M", "--trace", path, "--", "echo", "ran"]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(125), ""), "{path}");
        assert!(
            one_line(&run.stderr).starts_with(&format!("ramfold: --trace {path}: {why}")),
            "{}",
            run.stderr
        );
    }
}
