//! Real programs whose output depends on nothing but their input, most of them from the tests of the command.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::build::Objects;
use crate::cost::{Cost, End, Job};
use crate::measure::Bench;
use crate::suite::python;

#[path = "../../cli/tests/common/heavy.rs"]
mod heavy;
#[path = "../../cli/tests/common/lines.rs"]
mod lines;

/// Where the tests of the command have their programs.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/programs");
/// What a program prints; it is compared as its files are.
const STDOUT: &str = "stdout";

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Objects of many kinds.
    Python,
    /// All lines in memory at once.
    Sort,
    /// Objects, strings and typed arrays.
    Node,
    /// The same.
    Java,
    /// A database in memory, with indexes.
    Sqlite,
    /// One heavy file.
    Gpp,
    /// A sort, a transform and a product of matrices.
    Numpy,
    /// A log in hashes.
    Perl,
}

impl Kind {
    /// In the order of the table.
    pub const ALL: [Self; 8] =
        [Self::Python, Self::Sort, Self::Node, Self::Java, Self::Sqlite, Self::Gpp, Self::Numpy, Self::Perl];

    /// As on the command line and in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Sort => "sort",
            Self::Node => "node",
            Self::Java => "java",
            Self::Sqlite => "sqlite",
            Self::Gpp => "g++",
            Self::Numpy => "numpy",
            Self::Perl => "perl",
        }
    }

    /// How much it has to do: in 120 to 250 MiB of memory, or `quick`, in 50 to 100.
    fn size(self, quick: bool) -> u32 {
        let (small, large) = match self {
            Self::Python => (80_000, 200_000),
            Self::Sort => (24 << 20, 64 << 20),
            Self::Node => (100_000, 300_000),
            Self::Java => (100_000, 300_000),
            Self::Sqlite => (200_000, 600_000),
            Self::Gpp => (4, 20),
            Self::Numpy => (1_000_000, 3_000_000),
            Self::Perl => (250_000, 600_000),
        };
        if quick { small } else { large }
    }

    /// The words of its command line. Its input is made in `directory`.
    fn words(self, directory: &Path, size: u32) -> Result<Vec<String>> {
        let count = size.to_string();
        let input = |name: &str| directory.join(name).display().to_string();
        let test = |name: &str| format!("{TESTS}/{name}");
        let given = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Ok(match self {
            Self::Python => given(&[&python()?, &test("objects.py"), &count]),
            Self::Sort => {
                let lines = input("lines");
                lines::write(Path::new(&lines), size.into());
                let buffer = format!("--buffer-size={}", u64::from(size) * 4);
                given(&["sort", &buffer, "--parallel=2", &lines])
            }
            // V8 and the JVM choose their heaps by the limit of their control group, which only the kernel's sides
            // have. What they choose without one is told them here: all sides run the same program.
            Self::Node => {
                let heap = ["--max-old-space-size=8192", "--max-semi-space-size=16"];
                given(&["node", heap[0], heap[1], &test("allocate.js"), &count])
            }
            Self::Java => {
                let javac =
                    Command::new("javac").arg("-d").arg(directory).arg(test("Allocate.java")).status();
                ensure!(javac.context("javac is not installed")?.success(), "javac failed");
                let classes = input("");
                let machine = "-XX:-UseContainerSupport";
                given(&["java", "-XX:+UseSerialGC", machine, "-Xmx2g", "-cp", &classes, "Allocate", &count])
            }
            Self::Sqlite => {
                let script = fs::read_to_string(test("index.sql"))?.replace("ROWS", &count);
                fs::write(input("index.sql"), script)?;
                given(&["sqlite3", ":memory:", &format!(".read {}", input("index.sql"))])
            }
            Self::Gpp => {
                fs::write(input("heavy.cpp"), heavy::source(size))?;
                given(&["g++", "-std=c++17", "-O1", "-c", "heavy.cpp", "-o", "heavy.o"])
            }
            Self::Numpy => given(&[&python()?, &test("arrays.py"), &count, "1000"]),
            Self::Perl => given(&["perl", concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/log.pl"), &count]),
        })
    }

    /// The files that it makes.
    fn outputs(self) -> &'static [&'static str] {
        if self == Self::Gpp { &[STDOUT, "heavy.o"] } else { &[STDOUT] }
    }
}

/// A program with its input, in a directory of its own.
#[derive(Debug)]
pub struct Program {
    kind: Kind,
    directory: PathBuf,
    words: Vec<String>,
}

impl Program {
    /// Makes the input in `directory`.
    ///
    /// # Errors
    /// The program is not installed, or there is no space.
    pub fn new(kind: Kind, directory: &Path, quick: bool) -> Result<Self> {
        let words = kind.words(directory, kind.size(quick))?;
        Ok(Self { kind, directory: directory.to_owned(), words })
    }

    /// The command line.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Runs it. Output that is not as `expected` is an error; there is none of a run that came to no end.
    ///
    /// # Errors
    /// The program fails or gives something else, or the limit cannot be set up.
    pub fn run(
        &self,
        bench: &Bench,
        job: &Job,
        expected: Option<&Objects>,
    ) -> Result<(Cost, Option<Objects>)> {
        let outcome = self.run_there(bench, job, expected);
        outcome.with_context(|| format!("{} on {}", self.kind.name(), job.side.name()))
    }

    fn run_there(
        &self,
        bench: &Bench,
        job: &Job,
        expected: Option<&Objects>,
    ) -> Result<(Cost, Option<Objects>)> {
        for name in self.kind.outputs() {
            // Before the first run there is none.
            let _ = fs::remove_file(self.directory.join(name));
        }
        let said = self.directory.join("stderr");
        let (cost, failed) = bench.cost(job, |command| {
            command.current_dir(&self.directory).env("TMPDIR", &self.directory).stdin(Stdio::null());
            command.envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("OPENBLAS_NUM_THREADS", "1")]);
            command.stdout(File::create(self.directory.join(STDOUT))?).stderr(File::create(&said)?);
            Ok(())
        })?;
        if let Some(status) = failed {
            bail!("{status} after {:.1} s: {}", cost.seconds, fs::read_to_string(said).unwrap_or_default());
        }
        if cost.end != End::Done {
            return Ok((cost, None));
        }
        let names = self.kind.outputs().iter().map(|name| (*name).to_owned());
        let made = Objects::read(&self.directory, names)?;
        if let Some(expected) = expected {
            made.same_as(expected)?;
        }
        Ok((cost, Some(made)))
    }
}
