//! What `ramfold advise` promises, and what `ramfold run` then saves: `advise-vs-run RAMFOLD`.
//!
//! Three programs build their data, look at all of it once and wait: Python objects, Perl hashes, an SQLite database
//! in memory. Each is advised on while it runs alone, with a part of its memory as the aim; then it is run again with
//! just the settings advised. Beside the promise stand two measurements:
//!
//! - **less memory**: what the program had alone, less what the run has in all when the program waits, ramfold's own
//!   memory and what it does not manage included. This is what its user saves.
//! - **in the pool**: the bytes of the pages in the pool, less the pool. This is what the engine saves.
//!
//! They differ by the program's memory itself: under ramfold it has another malloc. The second is therefore told for
//! another promise too: that for the program while it runs under `ramfold run`, with a limit that it does not reach.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::process::{Running, anonymous_bytes};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "What `ramfold advise` promises, and what `ramfold run` then saves")]
struct Options {
    /// The binary
    ramfold: PathBuf,
    /// The aim, in percent of the program's memory
    #[arg(long, default_value_t = 60)]
    percent: u64,
}

/// Objects of many kinds.
const PYTHON: &str = "
import sys
data = {i: (str(i) * 3, [i, float(i)], {'name': 'n%d' % i}) for i in range(250000)}
print('sum', sum(len(v[0]) + v[1][0] for v in data.values()), flush=True)
sys.stdin.read()";

/// A log: lines of words by number, counts of words.
const PERL: &str = r#"$| = 1;
for my $i (1 .. 400000) {
    my $line = join " ", map { ("GET", "POST", "open", "close", "index", "user", "error", "ok")[($i * $_) % 8] . ($i % (97 * $_)) } 1 .. 6;
    $lines{$i} = $line; $words{$_}++ for split / /, $line;
}
my $sum = 0; $sum += length for values %lines; print "sum $sum ", scalar(keys %words), "\n"; <STDIN>"#;

/// Rows of numbers and text, with an index.
const SQLITE: &str = "
import sqlite3, sys
db = sqlite3.connect(':memory:')
db.execute('create table t(id integer primary key, name text, city text, score real)')
cities = ['Berlin', 'Lisbon', 'Osaka', 'Quito', 'Nairobi', 'Oslo']
db.executemany('insert into t values(?,?,?,?)',
    ((i, 'customer number %d' % (i * 7919 % 1000003), cities[i * i % 6], i * 0.37) for i in range(1500000)))
db.execute('create index n on t(name)')
print('sum', *db.execute('select count(*), sum(score), min(name), max(name) from t').fetchone(), flush=True)
sys.stdin.read()";

const PROGRAMS: [(&str, &[&str]); 3] = [
    ("Python, objects", &["python3", "-c", PYTHON]),
    ("Perl, a log in hashes", &["perl", "-e", PERL]),
    ("SQLite, in memory", &["python3", "-c", SQLITE]),
];

const MIB: f64 = 1024.0 * 1024.0;

/// A program that has built its data and waits; ends with its owner.
struct Waiting {
    program: Running,
    /// What it printed about its data.
    says: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Its input ends, and with it the program; `ramfold run` ends with its program, and is not killed before.
        drop(self.program.0.stdin.take());
        let _ = self.program.0.wait();
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    println!(
        "MiB                        alone  advised  promised  less memory          roomy run: promised  in the pool"
    );
    for (name, program) in PROGRAMS {
        let row = compare(&options, name, program).with_context(|| name.to_owned())?;
        println!("{row}");
    }
    Ok(())
}

fn compare(options: &Options, name: &str, program: &[&str]) -> Result<String> {
    let ramfold = options.ramfold.as_path();
    let alone = Waiting::start(program)?;
    let first = advise(ramfold, alone.pid(), options.percent)?;
    let says = alone.says.clone();
    drop(alone);

    let run = Waiting::start(&under(ramfold, &first.run, program))?;
    ensure!(run.says == says, "it says something else under ramfold: {} instead of {says}", run.says);
    let used = number(&top(ramfold, run.pid())?, "in_use_bytes")?;
    drop(run);

    let roomy = Waiting::start(&under(ramfold, &["run", "-m", "16G", "--"].map(str::to_owned), program))?;
    let pid = top(ramfold, roomy.pid())?["living"][0]["pid"].as_u64().context("no process lives")?;
    let second = advise(ramfold, u32::try_from(pid)?, options.percent)?;
    drop(roomy);
    let run = Waiting::start(&under(ramfold, &second.run, program))?;
    let live = top(ramfold, run.pid())?;
    let pooled = number(&live, "orig_data_size")? - number(&live, "pool_total_size")?;

    let less = first.memory - used;
    let of = |measured: f64, promised: f64| (measured / promised - 1.0) * 100.0;
    Ok(format!(
        "{name:<24} {:>7.1} {:>8.1} {:>9.1} {:>12.1} {:>+6.1} % {:>20.1} {:>12.1} {:>+6.1} %",
        first.memory / MIB,
        first.limit / MIB,
        first.saved / MIB,
        less / MIB,
        of(less, first.saved),
        second.saved / MIB,
        pooled / MIB,
        of(pooled, second.saved),
    ))
}

/// What is advised, in bytes, and how to run it.
struct Advice {
    memory: f64,
    limit: f64,
    saved: f64,
    /// `run` and its options, the `--` included.
    run: Vec<String>,
}

fn advise(ramfold: &Path, pid: u32, percent: u64) -> Result<Advice> {
    let anonymous = anonymous_bytes(pid)? * percent / 100;
    let advice =
        json(ramfold, &["advise", "--json", "--target-bytes", &anonymous.to_string(), &pid.to_string()])?;
    let own = &advice["ramfold"];
    let command = own["command"].as_str().context("no command is advised")?;
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    ensure!(words.first().is_some_and(|word| word == "ramfold"), "an unknown command: {command}");
    Ok(Advice {
        memory: number(&advice, "bytes")?,
        limit: number(own, "limit")?,
        saved: number(own, "saved_bytes")?,
        run: words[1..words.len() - 1].to_vec(),
    })
}

fn under(ramfold: &Path, run: &[String], program: &[&str]) -> Vec<String> {
    let own = [ramfold.display().to_string()];
    own.into_iter().chain(run.iter().cloned()).chain(program.iter().map(|word| (*word).to_owned())).collect()
}

impl Waiting {
    fn start(command: &[impl AsRef<str>]) -> Result<Self> {
        let words: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
        let mut start = Command::new(words[0]);
        start.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Running::start(&mut start)?;
        let says = program.first_line()?;
        let waiting = Self { program, says };
        ensure!(waiting.says.starts_with("sum "), "it ended before it had its data");
        // What is evicted in the background comes to rest.
        std::thread::sleep(Duration::from_secs(1));
        Ok(waiting)
    }

    fn pid(&self) -> u32 {
        self.program.0.id()
    }
}

/// One look at the run.
fn top(ramfold: &Path, pid: u32) -> Result<Value> {
    json(ramfold, &["top", "--json", "--count", "1", "--interval", "0.1", &pid.to_string()])
}

fn json(ramfold: &Path, arguments: &[&str]) -> Result<Value> {
    let output = Command::new(ramfold).args(arguments).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ramfold {}: {error}", arguments[0]);
    serde_json::from_slice(&output.stdout).with_context(|| format!("what ramfold {} printed", arguments[0]))
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no {name}"))
}
