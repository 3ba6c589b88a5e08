//! The workloads of the comparison: which program, which client, how much memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::measure::Workload;

/// The memory that the limited sides get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Bytes.
    Fixed(u64),
    /// Half of the peak of the unlimited run.
    Half,
}

/// A line of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Random touches of 1 GiB in 512 MiB.
    Uniform,
    /// Passes over 1 GiB in 512 MiB.
    Sequential,
    /// Zipfian touches of 1 GiB in 512 MiB.
    Zipf,
    /// A Python dictionary in half its peak.
    Python,
    /// redis-server in half its peak.
    Redis,
}

/// Sizes and places.
#[derive(Debug)]
pub struct Scale {
    /// Smaller and shorter: to see that everything works, not to publish.
    pub quick: bool,
    /// How long touches and redis are measured, in seconds.
    pub seconds: u64,
    /// A page file for the contents.
    pub pages: Option<PathBuf>,
    /// For sockets.
    pub directory: PathBuf,
}

impl Kind {
    /// In the order of the table.
    pub const ALL: [Self; 5] = [Self::Uniform, Self::Sequential, Self::Zipf, Self::Python, Self::Redis];

    /// As on the command line and in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Sequential => "sequential",
            Self::Zipf => "zipf",
            Self::Python => "python",
            Self::Redis => "redis",
        }
    }

    /// What the limited sides get.
    #[must_use]
    pub fn limit(self, scale: &Scale) -> Limit {
        match self {
            Self::Uniform | Self::Sequential | Self::Zipf => Limit::Fixed(scale.touched_mib() << 19),
            Self::Python | Self::Redis => Limit::Half,
        }
    }

    /// The commands.
    ///
    /// # Errors
    /// A program is not installed.
    pub fn workload(self, scale: &Scale) -> Result<Workload> {
        match self {
            Self::Uniform | Self::Sequential | Self::Zipf => scale.touch(self.name()),
            Self::Python => scale.python(),
            Self::Redis => scale.redis(),
        }
    }
}

impl Scale {
    fn touched_mib(&self) -> u64 {
        if self.quick { 256 } else { 1024 }
    }

    fn touch(&self, order: &str) -> Result<Workload> {
        let mib = self.touched_mib().to_string();
        let mut program =
            words(&[&own_program("workload")?, order, "--mib", &mib, "--seconds", &self.seconds.to_string()]);
        self.add_pages(&mut program);
        Ok(Workload { program, client: None })
    }

    fn python(&self) -> Result<Workload> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/dictionary.py");
        let sizes = if self.quick { ["500000", "100000"] } else { ["2000000", "200000"] };
        Ok(Workload { program: words(&[&python()?, script, sizes[0], sizes[1]]), client: None })
    }

    fn redis(&self) -> Result<Workload> {
        let socket = self.directory.join(format!("ramfold-bench-{}.sock", std::process::id()));
        let socket = socket.to_str().context("the directory's name is not UTF-8")?;
        let off = ["--save", "", "--appendonly", "no", "--dir", "/"];
        let mut program = words(&["redis-server", "--port", "0", "--unixsocket", socket]);
        program.extend(words(&off));
        let keys = if self.quick { "200000" } else { "900000" };
        let seconds = self.seconds.to_string();
        let client = ["redis", "--socket", socket, "--keys", keys, "--seconds", &seconds];
        let mut client = [words(&[&own_program("workload")?]), words(&client)].concat();
        self.add_pages(&mut client);
        Ok(Workload { program, client: Some(client) })
    }

    fn add_pages(&self, words: &mut Vec<String>) {
        if let Some(path) = &self.pages {
            words.extend(["--pages".to_owned(), path.display().to_string()]);
        }
    }
}

/// The interpreter itself. pyenv's `python3` is a shell script: what it would start is asked for.
pub(crate) fn python() -> Result<String> {
    let ask = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let answer = String::from_utf8(ask.context("python3 is not installed")?.stdout)?;
    Ok(answer.trim().to_owned())
}

/// A program that was built beside this one.
pub(crate) fn own_program(name: &str) -> Result<String> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(
        Path::new(&path).exists(),
        "{} is missing (cargo build --release -p ramfold-bench)",
        path.display()
    );
    Ok(path.to_str().context("not UTF-8")?.to_owned())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
