//! The workloads that `run-vs-kernel` measures; each prints one JSON line about its measured phase.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use ramfold_bench::pages::Pages;
use ramfold_bench::{redis, touch};

#[derive(Parser)]
#[command(about = "Touches memory, or asks a Redis server, and prints one JSON line")]
struct Options {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// Every page with the same probability
    Uniform(Touch),
    /// One page after another, over and over
    Sequential(Touch),
    /// Zipfian, theta 0.99, hot pages spread over the whole range
    Zipf(Touch),
    /// Fill a Redis server, then GET and SET random keys
    Redis(Redis),
}

#[derive(Args)]
struct Common {
    /// Seconds of the measured phase
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Touches or requests of 100 that write
    #[arg(long, default_value_t = 25)]
    write_percent: u64,
    /// A file of 4096-byte pages to fill memory with (default: made-up pages)
    #[arg(long)]
    pages: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Touch {
    /// Memory, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Measure in parts of so many milliseconds, and print a line after each
    #[arg(long, value_name = "MS")]
    tell_every: Option<u64>,
    /// Touches after which the measured phase ends before its time
    #[arg(long)]
    touches: Option<u64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Redis {
    /// The server's Unix socket
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, default_value_t = 900_000)]
    keys: u64,
    #[arg(long, default_value_t = 4)]
    connections: u64,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<()> {
    let result = match Options::parse().workload {
        Workload::Uniform(touch) => run_touch(touch::Order::Uniform, &touch),
        Workload::Sequential(touch) => run_touch(touch::Order::Sequential, &touch),
        Workload::Zipf(touch) => run_touch(touch::Order::Zipf, &touch),
        Workload::Redis(redis) => run_redis(redis),
    }?;
    println!("{result}");
    Ok(())
}

fn run_touch(order: touch::Order, options: &Touch) -> Result<serde_json::Value> {
    let Touch { mib, tell_every, touches, common } = options;
    let plan = touch::Plan {
        order,
        bytes: mib << 20,
        measured: Duration::from_secs_f64(common.seconds),
        most: touches.unwrap_or(u64::MAX),
        parts: tell_every.map(Duration::from_millis),
        write_percent: common.write_percent,
        seed: common.seed,
    };
    touch::run(&plan, &Pages::open(common.pages.as_deref())?)
}

fn run_redis(options: Redis) -> Result<serde_json::Value> {
    let Redis { socket, keys, connections, common } = options;
    let plan = redis::Plan {
        socket,
        keys,
        connections,
        measured: Duration::from_secs_f64(common.seconds),
        write_percent: common.write_percent,
        seed: common.seed,
    };
    redis::run(&plan, &Pages::open(common.pages.as_deref())?)
}
