//! `ramfold inspect`, `advise` and `replay` as their users see them.

mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;
#[path = "common/patience.rs"]
mod patience;

use command::{Outcome, finish, one_line, ramfold};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const PAGE: usize = 4096;

/// A page of text-like lines that depend on the number.
fn text(number: u32) -> Vec<u8> {
    let lines = (0..300u32).flat_map(|line| format!("{number} {}\n", line * number).into_bytes());
    let mut page: Vec<u8> = lines.collect();
    page.resize(PAGE, b'.');
    page
}

/// A file of these pages, removed with the directory.
fn file(pages: impl IntoIterator<Item = Vec<u8>>) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pages");
    fs::write(&path, pages.into_iter().collect::<Vec<_>>().concat()).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

/// 400 pages of text, 30 of them again, 20 zero pages, 10 of another word.
fn mixed() -> (TempDir, String) {
    let repeated = (1..=400).chain(1..=30).map(text);
    file(repeated.chain(vec![vec![0; PAGE]; 20]).chain(vec![vec![7; PAGE]; 10]))
}

fn json(arguments: &[&str]) -> Value {
    let outcome = ramfold(arguments);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(one_line(&outcome.stdout)).unwrap()
}

/// A process with 2000 pages of text that counts on its standard output, one line for one line of its input.
struct Counter {
    child: Mortal,
    lines: BufReader<std::process::ChildStdout>,
}

const COUNTER: &str = "
import sys
data = [(str(number) * 4096)[:4096] for number in range(1, 2001)]
for number, _ in enumerate(sys.stdin): print(number, sum(map(len, data)), flush=True)
";

impl Counter {
    fn start() -> Option<Self> {
        if !need::programs(&["python3"]) {
            return None;
        }
        let mut command = Command::new("python3");
        command.args(["-c", COUNTER]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut counter = Self { child: Mortal(child), lines };
        assert_eq!(counter.count(), "0 8192000\n");
        Some(counter)
    }

    fn count(&mut self) -> String {
        self.child.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn pid(&self) -> String {
        self.child.0.id().to_string()
    }
}

/// A process that ends when this is dropped.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether processes of this user may be read by their owner.
fn may_read() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim().parse().unwrap_or(0) == 0 || need::root()
}

fn fails(arguments: &[&str], part: &str) {
    let outcome = ramfold(arguments);
    assert_eq!(outcome.code, Some(125), "{arguments:?}: {}", outcome.stderr);
    let line = one_line(&outcome.stderr);
    assert!(line.starts_with("ramfold: ") && line.contains(part) && line.ends_with(')'), "{line}");
}

/// Without options: every compressor, unit and zpool.
#[test]
fn all_there_is_is_measured() {
    let (_directory, path) = mixed();
    let report = json(&["inspect", "--json", &path]);
    let compressors = ["lz4", "lz4hc", "zstd:-1", "zstd:3", "deflate:6", "lzo", "lzo-rle"];
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), compressors.len() * 3 * 3);
    for compressor in compressors {
        let ratio = |row: &Value| row["ratio"].as_f64().unwrap();
        assert!(rows.iter().filter(|row| row["compressor"] == compressor).all(|row| ratio(row) > 1.0));
    }
}

#[test]
fn a_file_is_counted_and_measured() {
    let (_directory, path) = mixed();
    let report = json(&["inspect", "--json", "--compressor", "lz4,zstd:-1", &path]);
    assert_eq!((&report["pages"], &report["looked_at"]), (&460.into(), &460.into()));
    assert_eq!((&report["census"], &report["sampled_pages"]), (&true.into(), &430.into()));
    let share = |name: &str| report[name].as_f64().unwrap() * 460.0;
    assert_eq!([share("zero_share"), share("same_filled_share")].map(f64::round), [20.0, 30.0]);
    assert_eq!((report["duplicate_share"]["most"].as_f64().unwrap() * 460.0).round(), 30.0);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 3, "compressor x unit x zpool");
    for row in rows {
        for name in ["ratio", "pool_bytes", "store_us", "load_us"] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name} in {row}");
        }
        let (shared, whole) = (row["pool_bytes_shared"].as_f64(), row["pool_bytes"].as_f64());
        assert!(shared <= whole && row["saved"].as_f64().unwrap() > 0.3, "{row}");
    }
    let ratio = |compressor: &str| {
        let row = rows.iter().find(|row| row["compressor"] == compressor && row["unit_kib"] == 4);
        row.unwrap()["ratio"].as_f64().unwrap()
    };
    assert!(ratio("zstd:-1") > ratio("lz4"), "zstd packs better than lz4");
    let sizes = report["compressed_sizes_256"]["lz4"].as_array().unwrap();
    assert_eq!(sizes.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 430);
}

#[test]
fn the_pool_is_as_large_as_the_store_says() {
    let (_directory, path) = file((1..=2000).map(text));
    let inspected = json(&["inspect", "--json", "--compressor", "lz4", "--zpool", "zsmalloc", &path]);
    let bench = json(&["bench", "pages", "--json", "--compressor", "lz4", "--zpool", "zsmalloc", &path]);
    let (row, bench) = (&inspected["rows"][0], &bench["rows"][0]);
    let pool = 2000.0 * 4096.0 / bench["ratio"].as_f64().unwrap() * bench["pool_overhead"].as_f64().unwrap();
    let told = row["pool_bytes"].as_f64().unwrap();
    assert!((told / pool - 1.0).abs() < 0.01, "{told} for {pool}");
}

/// As root, where the kernel has zram with lz4: adds a device of its own, and removes it.
#[test]
fn the_pool_of_zram_is_foretold() {
    let control = "/sys/class/zram-control/hot_add";
    if !need::root() || !fs::exists(control).unwrap() && !need::skip("this kernel has no zram") {
        return;
    }
    let (_directory, path) = file((1..=6000).map(text));
    let number = fs::read_to_string(control).unwrap().trim().to_owned();
    let attribute = |name: &str| format!("/sys/block/zram{number}/{name}");
    let used = fs::write(attribute("comp_algorithm"), "lz4").is_ok().then(|| {
        fs::write(attribute("disksize"), fs::metadata(&path).unwrap().len().to_string()).unwrap();
        fs::copy(&path, format!("/dev/zram{number}")).unwrap();
        let stat = fs::read_to_string(attribute("mm_stat")).unwrap();
        stat.split_whitespace().nth(2).unwrap().parse::<f64>().unwrap()
    });
    fs::write(attribute("reset"), "1").unwrap();
    fs::write("/sys/class/zram-control/hot_remove", number.as_bytes()).unwrap();
    let Some(used) = used else {
        need::skip("this zram has no lz4");
        return;
    };
    let report = json(&["inspect", "--json", "--compressor", "lz4", "--zpool", "zsmalloc", &path]);
    let told = report["kernel_zsmalloc_bytes"]["lz4"].as_f64().unwrap();
    assert!((told / used - 1.0).abs() < 0.03, "{told} foretold, {used} used");
}

#[test]
fn people_get_tables_and_a_page_and_the_sample() {
    let (directory, path) = mixed();
    let (html, saved) = (directory.path().join("report.html"), directory.path().join("sample"));
    let outcome = ramfold(&[
        "inspect",
        "--compressor",
        "lz4",
        "--html",
        html.to_str().unwrap(),
        "--save",
        saved.to_str().unwrap(),
        &path,
    ]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert!(
        outcome
            .stdout
            .starts_with("460 pages (1.8 MiB): 4.3 % zero, 2.2 % otherwise same-filled, 6.5 % duplicates\n")
    );
    for line in ["lz4           4K  zsmalloc", "lz4           4K  zbud", "lz4          64K  zsmalloc"] {
        assert!(outcome.stdout.lines().any(|text| text.starts_with(line)), "{line} in {}", outcome.stdout);
    }
    assert!(outcome.stdout.contains("       460        6.5 %"), "{}", outcome.stdout);
    assert_eq!(fs::metadata(&saved).unwrap().len(), 430 * PAGE as u64);
    let html = fs::read_to_string(html).unwrap();
    assert!(html.contains("<svg") && html.contains("prefers-color-scheme: dark"));
    for fetched in ["http", "src=", "url(", "<link", "<script"] {
        assert!(!html.contains(fetched), "{fetched}");
    }
}

#[test]
fn an_inspected_process_goes_on() {
    let Some(mut counter) = Counter::start() else { return };
    if !may_read() {
        return;
    }
    let pid = counter.pid();
    let report = json(&["inspect", "--json", "--watch", "0.4", "--compressor", "lz4", &pid]);
    let pages = report["pages"].as_u64().unwrap();
    assert!((2000..20_000).contains(&pages), "{pages}");
    assert!(report["places"].as_array().unwrap().iter().any(|place| place["name"] == "[heap]"));
    let ages = report["watched"]["ages"].as_array().unwrap();
    let cold: Vec<f64> = ages.iter().map(|age| age["cold_share"].as_f64().unwrap()).collect();
    assert!(cold.len() > 3 && cold.iter().all(|share| *share > 0.9), "it waits for input: {cold:?}");
    assert_eq!(counter.count(), "1 8192000\n");
    assert_eq!(counter.child.0.try_wait().unwrap(), None);
}

#[test]
fn use_is_seen_while_watching() {
    let Some(mut counter) = Counter::start() else { return };
    if !may_read() {
        return;
    }
    let pid = counter.pid();
    let mut watching = command::command(&["inspect", "--json", "--watch", "2", "--compressor", "lz4", &pid]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
    while watching.try_wait().unwrap().is_none() {
        counter.count();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let output = watching.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ages = report["watched"]["ages"].as_array().unwrap();
    let cold: Vec<f64> = ages.iter().map(|age| age["cold_share"].as_f64().unwrap()).collect();
    assert!(cold.is_sorted_by(|younger, older| younger >= older), "{cold:?}");
    // Half of its memory is what it counts; a program that waits has more than nine tenths cold.
    assert!(cold[cold.len() - 1] < 0.75, "it counts all the time: {cold:?}");
}

#[test]
fn descendants_are_looked_at_with_tree() {
    if !may_read() || !need::programs(&["sh", "sleep"]) {
        return;
    }
    let mut shell = Command::new("sh").args(["-c", "sleep 60; true"]).process_group(0).spawn().unwrap();
    let pid = shell.id().to_string();
    patience::wait_for("the child", || {
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|list| !list.is_empty())
    });
    let sources = |arguments: &[&str]| json(arguments)["sources"].as_array().unwrap().len();
    assert_eq!(sources(&["inspect", "--json", "--compressor", "lz4", &pid]), 1);
    assert_eq!(sources(&["inspect", "--json", "--compressor", "lz4", "--tree", &pid]), 2);
    // SAFETY: plain integers; the child has not been waited for, so the group is its own.
    unsafe { libc::kill(-i32::try_from(shell.id()).unwrap(), libc::SIGKILL) };
    shell.wait().unwrap();
}

/// A parent of two children at a time, each of which has memory of its own and lives for a moment.
const PARENT: &str = "
import os, time
def child():
    if os.fork() == 0:
        mine = os.urandom(8 << 20)
        time.sleep(0.02)
        os._exit(0)
child()
print('begun', flush=True)
while True:
    child()
    os.wait()
";

#[test]
fn descendants_that_end_meanwhile_are_left_out() {
    if !may_read() || !need::programs(&["python3"]) {
        return;
    }
    let mut command = Command::new("python3");
    let mut parent = Mortal(command.args(["-c", PARENT]).stdout(Stdio::piped()).spawn().unwrap());
    BufReader::new(parent.0.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let pid = parent.0.id().to_string();
    patience::wait_for("a child that ends while it is looked at", || {
        let report = json(&["inspect", "--json", "--watch", "0.2", "--compressor", "lz4", "--tree", &pid]);
        report["vanished"].as_u64().unwrap() > 0
    });
    assert_eq!(parent.0.try_wait().unwrap(), None);
}

#[test]
fn what_cannot_be_inspected_is_told_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path: PathBuf = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, odd) = (path("empty", &[]), path("odd", &[1; 5000]));
    let mut ended = Command::new("true").spawn().unwrap();
    let zombie = ended.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(200));
    for command in ["inspect", "advise"] {
        fails(&[command, &empty], "the file is empty");
        fails(&[command, &odd], "5000 bytes are neither a core dump nor whole pages");
        fails(&[command, "/no/such/file"], "/no/such/file: No such file");
        fails(&[command, "/proc"], "no regular file");
        fails(&[command, &zombie], "there is no such process");
        fails(&[command, "4194304"], "there is no such process");
    }
    ended.wait().unwrap();
}

#[test]
fn advice_adds_up() {
    let (_directory, path) = mixed();
    let memory = 460 * PAGE as u64;
    let advice = json(&["advise", "--json", "--target-bytes", "1M", &path]);
    assert_eq!((&advice["bytes"], &advice["target_bytes"]), (&memory.into(), &(1 << 20).into()));
    let number = |name: &str| advice["ramfold"][name].as_f64().unwrap();
    let resident = memory as f64 - number("evicted_bytes");
    let tables = number("evicted_bytes") * 0.006;
    let held = resident + number("pool_bytes");
    assert!((1 << 20) as f64 - tables <= held && held <= (1 << 20) as f64, "{advice}");
    assert_eq!(number("beyond_bytes"), 0.0);
    assert!(advice["ramfold"]["command"].is_null(), "ramfold run does not take so small a limit: {advice}");
    assert!(!advice["choose"].as_str().unwrap().starts_with("ramfold"), "{advice}");
    let tight = json(&["advise", "--json", "--target-bytes", "100K", &path]);
    assert!(tight["ramfold"]["beyond_bytes"].as_f64().unwrap() > 0.0, "{tight}");
    assert!(tight["missed"].as_str().unwrap().contains("do not fit"), "{tight}");
}

#[test]
fn the_advice_can_be_run() {
    if !need::userfaultfd() || !need::programs(&["python3"]) {
        return;
    }
    let counter = Counter::start().unwrap();
    let advice = json(&["advise", "--json", "--target-bytes", "64M", &counter.pid()]);
    let words: Vec<&str> = advice["ramfold"]["command"].as_str().unwrap().split(' ').collect();
    let (options, program) = words[1..].split_at(words.len() - 2);
    assert_eq!((&options[..3], program), (&["run", "-m", "64M"][..], &["PROGRAM"][..]));
    let outcome = ramfold(&[options, &["true"]].concat());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_slowdown_is_forecast_by_watching() {
    let Some(counter) = Counter::start() else { return };
    if !may_read() {
        return;
    }
    let advice = json(&["advise", "--json", "--slowdown", "5", "--watch", "0.5", &counter.pid()]);
    let (limit, memory) = (advice["ramfold"]["limit"].as_f64().unwrap(), advice["bytes"].as_f64().unwrap());
    assert!(limit < memory * 0.6, "it waits for input, so all but the pool may go: {limit} of {memory}");
}

#[test]
fn people_get_five_lines_of_advice() {
    let (_directory, path) = mixed();
    let outcome = ramfold(&["advise", &path]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let too_small = "ramfold  ramfold run takes no limit below 16.0 MiB";
    for line in ["memory   1.8 MiB", too_small, "zram     ", "zswap    ", "choose   "] {
        assert!(outcome.stdout.lines().any(|text| text.starts_with(line)), "{line} in {}", outcome.stdout);
    }
}

#[test]
fn a_kernel_thread_has_no_memory() {
    // In a PID namespace there is none.
    if !fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        need::skip("process 2 is no kernel thread here");
        return;
    }
    fails(&["inspect", "2"], "a kernel thread has no memory of its own");
}

#[test]
fn another_users_process_may_not_be_read() {
    if !need::root() {
        return;
    }
    let mut command = command::command(&["inspect", &std::process::id().to_string()]);
    let copy = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let binary = copy.path().join("ramfold");
    fs::copy(command.get_program(), &binary).unwrap();
    fs::set_permissions(copy.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new(&binary);
    let Outcome { code, stderr, .. } = finish(command.args(arguments).uid(65_534).gid(65_534));
    assert_eq!(code, Some(125), "{stderr}");
    assert!(one_line(&stderr).contains("its memory may not be read (be root"), "{stderr}");
}

#[test]
fn a_process_that_ends_meanwhile_is_told() {
    if !may_read() {
        return;
    }
    let mut brief = Command::new("sleep").arg("0.6").spawn().unwrap();
    let pid = brief.id().to_string();
    let reaper = std::thread::spawn(move || brief.wait());
    std::thread::sleep(std::time::Duration::from_millis(50));
    fails(&["inspect", "--watch", "3", &pid], "there is no such process (it has ended");
    reaper.join().unwrap().unwrap();
}

#[test]
fn files_cannot_be_watched_and_wrong_usage_is_status_2() {
    let (_directory, path) = mixed();
    for (arguments, part) in [
        (&["inspect"][..], "PID|FILE"),
        (&["inspect", "--watch", "3", &path], "a file does not change"),
        (&["advise", "--slowdown", "5", &path], "a file does not change"),
        (&["advise", "--slowdown", "5", "--target-bytes", "1M", &path], "cannot be used with"),
        (&["advise", "--slowdown", "-5", &path], "-5"),
        (&["replay"], "TRACE"),
        (&["replay", "zipf:pages=lots"], "\"pages=lots\" is no setting"),
        (&["replay", "zipf", "--policy", "fifo"], "none, one-page, shrink, store"),
        (&["replay", "zipf", "--max-pool-percent", "0"], "--max-pool-percent"),
        (&["replay", "zipf", "--costs", "1,2,3"], "--costs"),
        (&["replay", "--save", "x", &path], "the trace is a file already"),
        (&["inspect", "--watch", "soon", &path], "\"soon\" is no number of seconds"),
        (&["inspect", "--compressor", "lzma", &path], "lz4"),
        (&["inspect", "--zpool", "z3fold", &path], "zsmalloc, zbud, xvmalloc"),
    ] {
        let outcome = ramfold(arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        assert!(one_line(&outcome.stderr).contains(part), "{arguments:?}: {}", outcome.stderr);
    }
    for command in ["inspect", "advise", "replay"] {
        let outcome = ramfold(&[command, "--help"]);
        assert!(outcome.stdout.contains("Example: ramfold "), "{}", outcome.stdout);
    }
    let missing = ["inspect", "--compressor", "lz4", "--save", "/no/such/folder/file", &path];
    fails(&missing, "--save /no/such/folder/file: No such file");
}

#[test]
fn a_replay_shows_the_inversion_and_its_cure() {
    let played = json(&["replay", "--json", "zipf:pages=6000,touches=200000,writes=50"]);
    let case = |policy: &str| {
        let mut cases = played["cases"].as_array().unwrap().iter();
        cases.find(|case| case["policy"] == policy).unwrap_or_else(|| panic!("{policy} in {played}")).clone()
    };
    let seconds = |policy: &str| case(policy)["elapsed_s"].as_f64().unwrap();
    assert!(seconds("one-page") > seconds("none"), "{played}");
    assert!(seconds("shrink") < seconds("none") && seconds("store") < seconds("none"), "{played}");
    let count = |name: &str| case("one-page")[name].as_u64().unwrap();
    assert!(count("pool_limit_hit") > 100 * count("pool_limit_hit_at_limit"), "{played}");
}

#[test]
fn a_saved_trace_is_played_like_the_made_up_one() {
    let directory = tempfile::tempdir().unwrap();
    let (trace, page) = (directory.path().join("trace"), directory.path().join("page.html"));
    let (trace, page) = (trace.to_str().unwrap(), page.to_str().unwrap());
    let options =
        ["--json", "--mrc", "-m", "4M", "--max-pool-percent", "10,40", "--accept-threshold-percent", "80"];
    let generator = "loop:pages=2000,touches=20000";
    let made_up = json(&[&["replay", generator, "--save", trace], &options[..]].concat());
    let saved = json(&[&["replay", trace, "--html", page], &options[..]].concat());
    assert_eq!(made_up["cases"], saved["cases"]);
    assert_eq!(saved["cases"].as_array().unwrap().len(), 1 + 3 * 2, "a pool of no pages has no sizes");
    let curve = saved["mrc"]["points"].as_array().unwrap();
    let misses: Vec<f64> = curve.iter().map(|point| point["miss_ratio"].as_f64().unwrap()).collect();
    assert!(misses[0] == 1.0 && misses.is_sorted_by(|a, b| a >= b) && misses[64] < 0.2, "{misses:?}");
    assert!(fs::read_to_string(page).unwrap().contains("<polyline"));
}

#[test]
fn a_trace_that_is_none_is_told_in_one_line() {
    let (directory, pages) = mixed();
    let trace = directory.path().join("trace");
    let trace = trace.to_str().unwrap();
    fails(&["replay", &pages], "the first line is not");
    fails(&["replay", "/no/such/trace"], "No such file");
    for (text, part) in [
        ("", "the first line is not"),
        ("r 1\n", "the first line is not"),
        ("ramfold-trace 1\nr 1\nx 2\n", "line 3: \"x 2\" is no operation"),
        ("ramfold-trace 1\nt 5\n", "touches no page"),
    ] {
        fs::write(trace, text).unwrap();
        fails(&["replay", trace], part);
    }
}

#[test]
fn people_get_a_table_of_a_replay() {
    let outcome = ramfold(&["replay", "uniform:pages=1000,touches=5000", "--policy", "none,store", "--mrc"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "uniform:pages=1000,touches=5000: 1000 pages, 6000 touches, in 2.0 MiB");
    assert!(lines[3].starts_with("none         -       -") && lines[4].starts_with("store     30 %    90 %"));
    assert!(outcome.stdout.contains("an LRU of so many pages would miss (100 % of the pages followed)"));
}
