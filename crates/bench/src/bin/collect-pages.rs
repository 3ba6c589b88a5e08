//! Collects real process memory to compress: `collect-pages FILE [MEGABYTES]`.
//!
//! Starts programs of its own with an empty environment and made-up data, and writes their private anonymous
//! pages, in address order, to FILE. Nothing of any other process or user gets in. A program says `ready` on
//! its standard output once its data is built, or is taken when it has waited for input long enough; it is
//! stopped while it is read. Programs that the machine lacks are left out, and the rest run again with other
//! data until there is enough.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Collects real process memory to compress, of programs that it starts itself")]
struct Options {
    /// Where to write the pages
    file: PathBuf,
    /// At least so much
    #[arg(default_value_t = 100)]
    megabytes: u64,
}

const PAGE: u64 = 4096;
/// `/proc/PID/pagemap`: the page is present; it belongs to a file or is shared.
const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;

const PYTHON: &str = r#"
import random, sys
seed = int(sys.argv[1]); r = random.Random(seed)
words = [''.join(r.choice('etaoinshrdlucmfwypvbgkjqxz') for _ in range(r.randint(2, 11))) for _ in range(20000)]
people = [{'id': i, 'name': r.choice(words).title(), 'mail': f'{r.choice(words)}@{r.choice(words)}.example',
           'score': r.gauss(50, 15), 'tags': r.sample(words, 3), 'active': r.random() < .8} for i in range(30000)]
floats = [r.random() for _ in range(200000)]
text = [' '.join(r.choice(words) for _ in range(12)) for _ in range(20000)]
index = {}
for i, line in enumerate(text):
    for word in line.split(): index.setdefault(word, []).append(i)
print('ready', flush=True); sys.stdin.read()
"#;

const PERL: &str = r#"
$| = 1; srand($ARGV[0]); my %log; my @lines;
for my $i (1 .. 90000) {
    my $host = sprintf "10.%d.%d.%d", rand 4, rand 256, rand 256;
    push @{$log{$host}}, [$i, int rand 5000, (qw(GET POST PUT HEAD))[rand 4]];
    push @lines, sprintf "%s - - [%d] \"%s /item/%d HTTP/1.1\" %d", $host, 1.7e9 + $i, "GET", rand 1e5, 200 + rand 4;
}
print "ready\n"; <STDIN>;
"#;

const AWK: &str = r#"
BEGIN { srand(seed)
    for (i = 0; i < 250000; i++) { key = sprintf("k%07d", int(rand() * 1e7)); count[key]++; sum[key] += rand() }
    print "ready"; fflush(); getline < "-" }
"#;

const NODE: &str = r"
let x = Number(process.argv[1]) || 1; const rnd = () => (x = (x * 1103515245 + 12345) % 2147483648) / 2147483648;
const items = []; const byKey = new Map();
for (let i = 0; i < 120000; i++) {
  const o = { id: i, price: rnd() * 100, name: 'product-' + Math.floor(rnd() * 1e6).toString(36), stock: Math.floor(rnd() * 50) };
  items.push(o); byKey.set(o.name, o);
}
const matrix = new Float64Array(400000).map(rnd);
console.log('ready'); process.stdin.resume();
";

const SQL: &str = "
PRAGMA temp_store=MEMORY;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, value REAL, note TEXT);
WITH RECURSIVE n(i) AS (SELECT SEED UNION ALL SELECT i + 1 FROM n LIMIT 200000)
INSERT INTO t SELECT i, printf('customer %d', i * 7919 % 100003), i * 0.37, hex(i * 2654435761 % 4294967296) FROM n;
CREATE INDEX by_name ON t(name);
SELECT 'ready';
";

const BASH: &str = r#"
RANDOM=$1; declare -A seen
for ((i = 0; i < 60000; i++)); do seen["/srv/data/$RANDOM/file-$i.txt"]="$RANDOM $i modified"; done
echo ready; read
"#;

/// A program, its arguments (`SEED` stands for the round's number), and what it is told on standard input.
struct Program {
    name: &'static str,
    arguments: &'static [&'static str],
    input: fn(u32) -> String,
    /// It says `ready`; otherwise it is taken once it has eaten its input and waits for more.
    says_ready: bool,
}

const PROGRAMS: &[Program] = &[
    Program { name: "python3", arguments: &["-I", "-c", PYTHON, "SEED"], input: nothing, says_ready: true },
    Program { name: "perl", arguments: &["-e", PERL, "SEED"], input: nothing, says_ready: true },
    Program { name: "awk", arguments: &["-v", "seed=SEED", AWK], input: nothing, says_ready: true },
    Program { name: "node", arguments: &["-e", NODE, "SEED"], input: nothing, says_ready: true },
    Program { name: "sqlite3", arguments: &[":memory:"], input: sql, says_ready: true },
    Program {
        name: "bash",
        arguments: &["--norc", "-c", BASH, "bash", "SEED"],
        input: nothing,
        says_ready: true,
    },
    Program { name: "sort", arguments: &["-S", "64M"], input: lines, says_ready: false },
    Program {
        name: "gcc",
        arguments: &["-x", "c", "-O1", "-o", "/dev/null", "-"],
        input: c_source,
        says_ready: false,
    },
];

fn nothing(_seed: u32) -> String {
    String::new()
}

fn sql(seed: u32) -> String {
    SQL.replace("SEED", &seed.to_string())
}

/// A small congruential generator: the data must only differ from round to round.
fn numbers(seed: u32) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(u64::from(seed)), |x| {
        Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    })
    .skip(1)
    .map(|x| x >> 33)
}

fn lines(seed: u32) -> String {
    numbers(seed)
        .take(400_000)
        .enumerate()
        .map(|(i, n)| format!("{i}\tuser{:05}\t{:.2}\n", n % 65536, n as f64 / 1e4))
        .collect()
}

fn c_source(seed: u32) -> String {
    let function = |(i, n): (usize, u64)| {
        format!(
            "struct s{i} {{ int a; double b[{}]; }};\nint f{i}(struct s{i} *p, int n) {{ int t = {n}; \
             for (int k = 0; k < n; k++) {{ t += p[k].a * k; p[k].b[0] += t % 7; }} return t; }}\n",
            n % 9 + 1
        )
    };
    numbers(seed).take(12_000).enumerate().map(function).collect()
}

fn main() -> Result<()> {
    let Options { file, megabytes } = Options::parse();
    let (path, wanted) = (file.display().to_string(), megabytes << 20);
    let mut out = BufWriter::new(File::create(&file).with_context(|| path.clone())?);
    let mut written = 0;
    for round in 1.. {
        let before = written;
        for program in PROGRAMS {
            let Some(executable) = find(program.name) else { continue };
            let pages = collect(program, &executable, round, &mut out)
                .with_context(|| format!("{} ({executable})", program.name))?;
            println!("{:<8} {:>6.1} MB", program.name, (pages * PAGE) as f64 / 1e6);
            written += pages * PAGE;
        }
        ensure!(written > before, "none of the programs is on this machine");
        if written >= wanted {
            break;
        }
    }
    out.flush()?;
    println!("{path}: {} pages", written / PAGE);
    Ok(())
}

/// Only where the system keeps its programs: what comes first in PATH may be a wrapper.
fn find(name: &str) -> Option<String> {
    let places = ["/usr/bin", "/usr/local/bin", "/bin"];
    places.iter().map(|place| format!("{place}/{name}")).find(|path| fs::metadata(path).is_ok())
}

fn collect(program: &Program, executable: &str, round: u32, out: &mut impl Write) -> Result<u64> {
    let seed = round.to_string();
    let mut child = Command::new(executable)
        .args(program.arguments.iter().map(|argument| argument.replace("SEED", &seed)))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // Input stays open: the program waits for more while its memory is read.
    let mut stdin = child.stdin.take().context("no input")?;
    let fed = stdin.write_all((program.input)(round).as_bytes()).and_then(|()| stdin.flush());
    let copied = fed.map_err(Into::into).and_then(|()| read_when_built(program, &mut child, out));
    child.kill()?;
    child.wait()?;
    copied
}

fn read_when_built(program: &Program, child: &mut Child, out: &mut impl Write) -> Result<u64> {
    let root = child.id();
    if program.says_ready {
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        let said = stdout.lines().map_while(Result::ok).any(|line| line == "ready");
        ensure!(said, "ended before its data was built");
    } else {
        std::thread::sleep(Duration::from_millis(600));
    }
    let mut pages = 0;
    for process in with_children(root) {
        let _stopped = Stopped::new(process)?;
        pages += copy_private_pages(process, out)?;
    }
    Ok(pages)
}

/// The process and those that it started (gcc's work is done in cc1).
fn with_children(process: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    std::iter::once(process).chain(children.flat_map(with_children)).collect()
}

/// A process that stands still as long as this value lives.
struct Stopped(i32);

impl Stopped {
    fn new(process: u32) -> Result<Self> {
        let stopped = Self(process.cast_signed());
        stopped.send(libc::SIGSTOP)?;
        while !fs::read_to_string(format!("/proc/{process}/stat"))?.contains(") T ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(stopped)
    }

    fn send(&self, signal: i32) -> std::io::Result<()> {
        // SAFETY: a plain system call; the process is a descendant of ours that still exists.
        let sent = unsafe { libc::kill(self.0, signal) };
        if sent == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = self.send(libc::SIGCONT);
    }
}

/// Writes the pages of private writable mappings that are present and belong to no file.
fn copy_private_pages(process: u32, out: &mut impl Write) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let pagemap = File::open(format!("/proc/{process}/pagemap"))?;
    let mut pages = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (start, end) = range.context("an odd line in maps")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        for address in (start..end).step_by(usize::try_from(PAGE)?) {
            let (mut entry, mut page) = ([0; 8], [0; 4096]);
            pagemap.read_exact_at(&mut entry, address / PAGE * 8)?;
            if u64::from_ne_bytes(entry) & (PRESENT | FILE_OR_SHARED) == PRESENT {
                memory.read_exact_at(&mut page, address)?;
                out.write_all(&page)?;
                pages += 1;
            }
        }
    }
    Ok(pages)
}
