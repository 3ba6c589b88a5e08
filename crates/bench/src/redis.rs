//! A Redis client of its own (RESP over a Unix socket): fills the server with values of about 1 KiB, then asks for
//! and sets random keys from a few connections, each waiting for its answer, and checks every value it gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ramfold::PAGE_SIZE;
use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::pages::Pages;
use crate::random::Random;

const VALUE: usize = 1024;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server's Unix socket.
    pub socket: PathBuf,
    /// How many keys.
    pub keys: u64,
    /// Connections in the measured phase.
    pub connections: u64,
    /// How long the measured phase lasts.
    pub measured: Duration,
    /// How many requests of 100 are SETs.
    pub write_percent: u64,
    /// Repeats the order of the keys.
    pub seed: u64,
}

/// Fills the server, measures, shuts the server down; the result is what is printed.
///
/// # Errors
/// The server does not answer, refuses, or gives a value that was not set.
pub fn run(plan: &Plan, pages: &Pages) -> Result<Value> {
    fill(&mut Connection::open(&plan.socket)?, plan.keys, pages)?;
    let start = Instant::now();
    let workers = (0..plan.connections).map(|worker| move || ask(plan, pages, worker));
    let latencies = std::thread::scope(|scope| {
        let running: Vec<_> = workers.map(|worker| scope.spawn(worker)).collect();
        running
            .into_iter()
            .map(|worker| worker.join().expect("a worker panicked"))
            .collect::<Result<Vec<_>>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Connection::open(&plan.socket)?.shut_down()?;
    let mut all = Histogram::default();
    latencies.iter().for_each(|latency| all.merge(latency));
    #[allow(clippy::cast_precision_loss)]
    let rate = all.total() as f64 / seconds;
    Ok(json!({ "unit": "requests/s", "rate": rate, "seconds": seconds, "latency_ns": all.json() }))
}

fn fill(connection: &mut Connection, keys: u64, pages: &Pages) -> Result<()> {
    const BATCH: usize = 256;
    for first in (0..keys).step_by(BATCH) {
        let batch = first..keys.min(first + BATCH as u64);
        for key in batch.clone() {
            connection.send(&[b"SET", name(key).as_bytes(), &value(key, pages)?])?;
        }
        connection.flush()?;
        for _ in batch {
            connection.expect_ok()?;
        }
    }
    Ok(())
}

/// One connection's share of the measured phase.
fn ask(plan: &Plan, pages: &Pages, worker: u64) -> Result<Histogram> {
    let mut connection = Connection::open(&plan.socket)?;
    let mut random = Random::new(plan.seed ^ (worker << 32));
    let mut latencies = Histogram::default();
    let start = Instant::now();
    while start.elapsed() < plan.measured {
        let key = random.below(plan.keys);
        let expected = value(key, pages)?;
        let before = Instant::now();
        if random.below(100) < plan.write_percent {
            connection.send(&[b"SET", name(key).as_bytes(), &expected])?;
            connection.flush()?;
            connection.expect_ok()?;
        } else {
            connection.send(&[b"GET", name(key).as_bytes()])?;
            connection.flush()?;
            ensure!(connection.bulk()? == expected, "{} is not what was set", name(key));
        }
        latencies.add(u64::try_from(before.elapsed().as_nanos()).expect("less than centuries"));
    }
    Ok(latencies)
}

fn name(key: u64) -> String {
    format!("user:{key:012}")
}

/// A quarter of a page, behind the key's name, so that no two values are equal.
fn value(key: u64, pages: &Pages) -> Result<Vec<u8>> {
    let mut page = [0; PAGE_SIZE];
    pages.fill(key / 4, &mut page)?;
    let quarter = usize::try_from(key % 4).expect("below 4") * VALUE;
    let mut value = page[quarter..quarter + VALUE].to_vec();
    value[..name(key).len()].copy_from_slice(name(key).as_bytes());
    Ok(value)
}

/// A connection to the server.
struct Connection {
    from: BufReader<UnixStream>,
    to: Vec<u8>,
}

impl Connection {
    /// Waits up to ten seconds for a server that is still starting.
    fn open(socket: &Path) -> Result<Self> {
        let mut tries = 0;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if tries == 200 => {
                    return Err(error).with_context(|| format!("cannot connect to {}", socket.display()));
                }
                Err(_) => tries += 1,
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        Ok(Self { from: BufReader::new(stream), to: Vec::new() })
    }

    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        write!(self.to, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.to, "${}\r\n", word.len())?;
            self.to.extend_from_slice(word);
            self.to.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.from.get_mut().write_all(&self.to).context("the server does not take requests")?;
        self.to.clear();
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.from.read_line(&mut line).context("the server does not answer")? > 0,
            "the server has gone"
        );
        Ok(line.trim_end().to_owned())
    }

    fn expect_ok(&mut self) -> Result<()> {
        let line = self.line()?;
        ensure!(line == "+OK", "the server says {line}");
        Ok(())
    }

    fn bulk(&mut self) -> Result<Vec<u8>> {
        let line = self.line()?;
        let Some(len) = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) else {
            bail!("the server says {line} instead of a value");
        };
        let mut value = vec![0; len + 2];
        self.from.read_exact(&mut value)?;
        value.truncate(len);
        Ok(value)
    }

    /// The server closes the connection instead of answering.
    fn shut_down(mut self) -> Result<()> {
        self.send(&[b"SHUTDOWN", b"NOSAVE"])?;
        self.flush()?;
        let mut rest = Vec::new();
        self.from.read_to_end(&mut rest)?;
        ensure!(rest.is_empty(), "the server does not shut down: {}", String::from_utf8_lossy(&rest));
        Ok(())
    }
}
