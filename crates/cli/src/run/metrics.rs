//! `--metrics`: the numbers of a running tree for Prometheus, over HTTP.
//!
//! One thread answers `GET /metrics` ([`http`]); it ends with the run. Without the option there is no thread and no
//! socket. A socket with a path is removed at the end, and by the next run that wants the path if this one is killed.

mod http;

use crate::failure::{Failure, say};
use crate::live::Sample;
use http::{Answer, Door};
use ramfold_budget::segment::{Counter, Gauge, Part, Segment};
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Where the numbers are to be had.
#[derive(Debug, Clone)]
pub enum Address {
    /// ADDR:PORT
    Tcp(SocketAddr),
    /// unix:PATH
    Unix(PathBuf),
}

impl Address {
    /// As on the command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: has no path (write unix:/run/user/1000/ramfold)".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!("\"{text}\" is no address (write 127.0.0.1:9100, [::1]:9100 or unix:PATH)")
            }),
        }
    }
}

/// The thread that answers.
pub struct Metrics {
    /// Closed, it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Metrics {
    /// Listens from now on. Called with the signals blocked that the run waits for.
    pub fn serve(address: &Address, segment: Arc<Segment>) -> Result<Self, Failure> {
        let door = open(address).map_err(|error| {
            let place = match address {
                Address::Tcp(address) => address.to_string(),
                Address::Unix(path) => path.display().to_string(),
            };
            Failure::failed(format!("--metrics: {place}: {error} (choose another address)"))
        })?;
        let socket = match address {
            Address::Tcp(_) => None,
            Address::Unix(path) => Some(path.clone()),
        };
        let failed = |error| Failure::failed(format!("--metrics: {error}"));
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let answer_all = move || http::serve(&door, &stopped, &|method, path| answer(method, path, &segment));
        let thread = std::thread::Builder::new().name("ramfold-metrics".into()).spawn(answer_all);
        Ok(Self { stop: Some(stop), thread: Some(thread.map_err(failed)?), socket })
    }
}

fn open(address: &Address) -> std::io::Result<Door> {
    match address {
        Address::Tcp(address) => {
            let door = TcpListener::bind(address)?;
            door.set_nonblocking(true)?;
            Ok(Door::Tcp(door))
        }
        Address::Unix(path) => {
            remove_stale(path);
            let door = UnixListener::bind(path)?;
            door.set_nonblocking(true)?;
            Ok(Door::Unix(door))
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.socket
            && let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            say(&format!("--metrics: {}: {error} (remove it)", path.display()));
        }
    }
}

/// Removes a socket that nobody listens to any more; everything else stays, and is told when it is in the way.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let refused =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && refused() {
        let _ = std::fs::remove_file(path);
    }
}

fn answer(method: &str, path: &str, segment: &Segment) -> Answer {
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => Answer {
            status: "200 OK",
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: text(&Sample::take(segment)),
        },
        _ => Answer {
            status: "404 Not Found",
            kind: "text/plain; charset=utf-8",
            body: "see /metrics\n".into(),
        },
    }
}

/// The text format of Prometheus, version 0.0.4. All names begin with `ramfold_`; sizes are bytes, times seconds.
fn text(sample: &Sample) -> String {
    let mut text = String::new();
    for (name, help, value) in [
        ("limit_bytes", "Memory that all processes may use together.", sample.limit),
        ("in_use_bytes", "Memory in use now: resident, pool and other.", sample.in_use),
        ("unmanaged_bytes", "Memory in use that no managed process accounts for.", sample.unmanaged),
        ("peak_bytes", "The most that was in use at once.", sample.peak),
        ("swap_used_bytes", "Swap file taken.", sample.swap_used),
        ("swap_limit_bytes", "Swap file that may be taken.", sample.swap_limit),
        ("living_processes", "Managed processes now.", sample.processes.len() as u64),
    ] {
        head(&mut text, name, "gauge", help);
        line(&mut text, name, "", value);
    }
    for counter in Counter::ALL {
        let name = format!("{}_total", counter.name());
        head(&mut text, &name, "counter", "Over all processes of the run, living and ended.");
        line(&mut text, &name, "", sample.counter(*counter));
    }
    for gauge in Gauge::ALL {
        head(&mut text, gauge.name(), "gauge", "Of each managed process.");
        for process in &sample.processes {
            line(&mut text, gauge.name(), &labels(process.pid, &process.name, None), process.gauge(*gauge));
        }
    }
    directories(&mut text, sample);
    head(&mut text, "fault_seconds", "summary", "Time to resolve a fault, over all processes.");
    for quantile in [0.5, 0.9, 0.99, 0.999] {
        let seconds = sample.faults.quantile_ns(quantile) as f64 / 1e9;
        line(&mut text, "fault_seconds", &format!("{{quantile=\"{quantile}\"}}"), seconds);
    }
    line(&mut text, "fault_seconds_count", "", sample.faults.count());
    text
}

/// Of mounts, if any has such.
fn directories(text: &mut String, sample: &Sample) {
    let parts = || sample.processes.iter().flat_map(|it| it.directories.iter().map(move |part| (it, part)));
    type Of = fn(&Part) -> u64;
    let gauges: [(&str, &str, Of); 2] = [
        ("directory_bytes", "What pages of a directory that has a limit take, compressed.", |part| {
            part.bytes
        }),
        ("directory_limit_bytes", "What they may take.", |part| part.limit),
    ];
    for (name, help, of) in gauges.into_iter().filter(|_| parts().next().is_some()) {
        head(text, name, "gauge", help);
        for (process, part) in parts() {
            line(text, name, &labels(process.pid, &process.name, Some(&part.path)), of(part));
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP ramfold_{name} {help}\n# TYPE ramfold_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "ramfold_{name}{labels} {value}");
}

fn labels(pid: u32, command: &str, directory: Option<&str>) -> String {
    let plain = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let directory = directory.map(|path| format!(",directory=\"{}\"", plain(path))).unwrap_or_default();
    format!("{{pid=\"{pid}\",command=\"{}\"{directory}}}", plain(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_or_refused_in_one_line() {
        assert!(matches!(Address::parse("127.0.0.1:9100"), Ok(Address::Tcp(_))));
        assert!(matches!(Address::parse("[::1]:9100"), Ok(Address::Tcp(_))));
        assert!(
            matches!(Address::parse("unix:/run/x"), Ok(Address::Unix(path)) if path == Path::new("/run/x"))
        );
        for wrong in ["", "9100", "localhost", "unix:", "1.2.3.4:99999"] {
            assert_eq!(Address::parse(wrong).unwrap_err().lines().count(), 1, "{wrong}");
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        assert_eq!(labels(7, "a\"b\\c", None), "{pid=\"7\",command=\"a\\\"b\\\\c\"}");
        assert_eq!(labels(7, "a", Some("b\"")), "{pid=\"7\",command=\"a\",directory=\"b\\\"\"}");
    }
}
