//! `ramfold disk --persist`: the disk from one server to the next. Stops that fail at a step are in `persist/steps.rs`.

#[path = "shared/client.rs"]
mod client;
mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;
#[cfg(target_arch = "x86_64")]
#[path = "persist/steps.rs"]
mod steps;
#[cfg(target_arch = "x86_64")]
#[path = "persist/trace.rs"]
mod trace;

use client::Client;
use command::{Outcome, PATH, one_line, ramfold};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use tempfile::TempDir;

const PAGE: usize = 4096;
const SIZE: usize = 8 << 20;

/// A directory with an image and a socket.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").unwrap())
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("socket")
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let (image, socket) = (self.image(), self.socket());
        let own = ["disk", "--backing-dev", image.to_str().unwrap(), "--unix", socket.to_str().unwrap()];
        let size = if more.contains(&"--size") { &[][..] } else { &["--size", "8M"] };
        [&own[..], &["--persist", "--recomp-algorithm", "none"], size, more]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(PATH);
        command.args(self.arguments(more)).env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    /// A disk that is served, or why it is not.
    fn try_serve(&self, more: &[&str]) -> Result<Disk, String> {
        let mut command = self.command(more);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        let told = BufReader::new(process.stderr.take().unwrap());
        let mut disk = Disk { process, told, socket: self.socket() };
        if uri.is_empty() { Err(disk.line()) } else { Ok(disk) }
    }

    fn serve(&self, more: &[&str]) -> Disk {
        self.try_serve(more).unwrap()
    }

    /// One that is not.
    fn refused(&self, more: &[&str], code: i32, part: &str) {
        let Outcome { code: found, stderr, .. } = command::finish(&mut self.command(more));
        assert_eq!(found, Some(code), "{stderr}");
        assert!(one_line(&stderr).contains(part), "{part}: {stderr}");
    }

    /// Names in the directory, but for the sockets.
    fn files(&self) -> Vec<String> {
        let names = self.0.path().read_dir().unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "socket" && name != "ramfold").collect()
    }
}

struct Disk {
    process: Child,
    told: BufReader<ChildStderr>,
    socket: PathBuf,
}

impl Disk {
    fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.process.id().cast_signed(), signal) };
    }

    fn end(mut self, signal: i32) -> Option<i32> {
        self.signal(signal);
        self.process.wait().unwrap().code()
    }

    fn contents(&self) -> Vec<u8> {
        let mut client = self.client();
        (0..SIZE).step_by(1 << 20).flat_map(|at| client.read(at as u64, 1 << 20)).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Bytes of a disk, of which a part does not compress, one repeats and one is zeros.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1;
    let mut bytes = vec![0; SIZE];
    for (number, page) in bytes.chunks_mut(PAGE).enumerate().filter(|(number, _)| number % 3 == 0) {
        let mask = if number % 2 == 0 { 0xff } else { 3 };
        page.fill_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_le_bytes()[7] & mask
        });
    }
    bytes[SIZE / 2..][..64 * PAGE].fill(seed.to_le_bytes()[0]);
    bytes
}

fn write(disk: &Disk, bytes: &[u8]) {
    let mut client = disk.client();
    for (at, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        assert_eq!(client.write((at * PAGE) as u64, page), 0);
    }
}

/// A place with the image of these bytes, clean.
fn kept(bytes: &[u8]) -> Place {
    let place = Place::new();
    let disk = place.serve(&[]);
    write(&disk, bytes);
    assert_eq!(disk.end(libc::SIGTERM), Some(0));
    place
}

/// Whether programs that are started from now on find SIGHUP ignored, as nohup has it.
fn ignore_hang_up(it: bool) {
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGHUP, if it { libc::SIG_IGN } else { libc::SIG_DFL }) };
}

#[test]
fn a_disk_outlives_its_server() {
    ignore_hang_up(false);
    let (place, image) = (Place::new(), bytes(1));
    let disk = place.serve(&["--mem-limit", "1M"]);
    write(&disk, &image);
    assert_eq!(disk.end(libc::SIGINT), Some(0));
    for (signal, more) in
        [(libc::SIGTERM, &["--mem-limit", "1M", "--comp-algorithm", "zstd:3"][..]), (libc::SIGHUP, &[])]
    {
        let mut disk = place.serve(more);
        assert!(disk.line().contains("pages, as the disk was stopped"));
        assert!(disk.contents() == image);
        // So that it is written anew.
        assert_eq!(disk.client().write(0, &image[..PAGE]), 0);
        assert_eq!((disk.end(signal), place.files()), (Some(0), vec!["image".to_owned()]));
    }
    ignore_hang_up(true);
    let disk = place.serve(&[]);
    ignore_hang_up(false);
    disk.signal(libc::SIGHUP);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(disk.contents() == image, "nohup's disk has another end than its terminal");
    assert_eq!(disk.end(libc::SIGTERM), Some(0));
}

/// What is kept is compressed by --comp-algorithm, so the next server needs no dictionary: neither of pages that were
/// compressed again, nor of those that were written with one.
#[test]
fn a_disk_outlives_its_dictionary() {
    let (place, image) = (Place::new(), bytes(1));
    let dictionary = place.0.path().join("dict");
    fs::write(&dictionary, &image[..64 << 10]).unwrap();
    let ctl = |words: &[&str]| {
        let mut command = command::command(&[&["ctl", "disk0"], words].concat());
        let Outcome { code, stdout, stderr } =
            command::finish(command.env("XDG_RUNTIME_DIR", place.0.path()));
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let stored = || ctl(&["mm_stat"]).split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let dict = format!("dict={}", dictionary.display());
    let disk = place.serve(&[]);
    ctl(&["recomp_algorithm", "algo=zstd:3", "priority=1"]);
    ctl(&["algorithm_params", "priority=1", &dict]);
    write(&disk, &image);
    ctl(&["recompress", "priority=1"]);
    let recompressed = ctl(&["block_state"]).lines().filter(|line| line.contains('r')).count();
    assert!(recompressed > 10, "{recompressed}");
    assert!(disk.contents() == image, "with the dictionary");
    assert_eq!(disk.end(libc::SIGTERM), Some(0));

    let disk = place.serve(&["--no-fresh", "--comp-algorithm", &format!("zstd:3,{dict}")]);
    let params = ctl(&["algorithm_params"]);
    assert!(params.starts_with("priority=0 algo=zstd level=3 dict=file dict_bytes=65536\n"), "{params}");
    write(&disk, &image);
    let compressed = stored();
    ctl(&["algorithm_params", "priority=0", "dict=none"]);
    write(&disk, &image);
    let without = stored();
    assert!(compressed < without, "{compressed} bytes with the dictionary, {without} without");
    ctl(&["algorithm_params", "priority=0", &dict]);
    write(&disk, &image);
    assert!(disk.contents() == image, "written with the dictionary");
    assert_eq!(disk.end(libc::SIGTERM), Some(0));
    fs::remove_file(&dictionary).unwrap();
    assert!(place.serve(&[]).contents() == image, "without it");
}

#[test]
fn real_clients_find_what_they_wrote() {
    if !need::programs(&["nbdcopy", "qemu-img"]) {
        return;
    }
    let place = Place::new();
    let [from, to] = ["from", "to"].map(|name| place.0.path().join(name));
    let mut image = fs::read(PATH).unwrap();
    image.resize(64 << 20, 0);
    fs::write(&from, &image).unwrap();
    let uri = format!("nbd+unix:///?socket={}", place.socket().display());
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let size = &["--size", "64M", "--mem-limit", "8M"];
    let disk = place.serve(size);
    run("nbdcopy", &[from.to_str().unwrap(), &uri]);
    assert_eq!(disk.end(libc::SIGTERM), Some(0));
    let _disk = place.serve(size);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", from.to_str().unwrap(), &uri]);
    run("nbdcopy", &[&uri, to.to_str().unwrap()]);
    assert!(fs::read(&to).unwrap() == image);
}

#[test]
fn a_disk_in_the_budget_of_another_is_kept_as_well() {
    let (place, other) = (Place::new(), Place::new());
    let budget = other.0.path().join("budget");
    let _first = other.serve(&["--mem-limit", "64M", "--share", budget.to_str().unwrap()]);
    for round in [1, 2] {
        let disk = place.serve(&["--budget", budget.to_str().unwrap()]);
        assert!(round == 1 || disk.contents() == bytes(1));
        write(&disk, &bytes(round));
        assert_eq!(disk.end(libc::SIGTERM), Some(0));
    }
    assert!(place.serve(&[]).contents() == bytes(2));
}

#[test]
fn what_cannot_be_served_is_told_in_one_line_and_left_as_it_is() {
    let place = kept(&bytes(1));
    let path = place.image();
    let whole = fs::read(&path).unwrap();
    place.refused(&["--size", "16M"], 125, "--size 8388608");
    let mut damaged = whole.clone();
    let middle = whole.len() / 2;
    damaged[middle] ^= 1;
    for (contents, part) in [
        (&damaged[..], "damaged from byte"),
        (&whole[..middle], "damaged: it has"),
        (b"something of mine", "no image"),
        (b"", "no image"),
    ] {
        fs::write(&path, contents).unwrap();
        place.refused(&[], 125, part);
        assert!(fs::read(&path).unwrap() == contents);
    }
    fs::write(&path, &whole).unwrap();
    place.refused(&["--mem-limit", "256K", "--backing-size", "1M"], 125, "no room");
    // Nor is it taken for a file that may be written over.
    let image = path.to_str().unwrap();
    let told = ramfold(&["disk", "--size", "8M", "--backing-dev", image, "--unix", "/nowhere/socket"]);
    assert_eq!(told.code, Some(125));
    assert!(one_line(&told.stderr).contains("not made by ramfold") && fs::read(&path).unwrap() == whole);
    let wrong = |arguments: &[&str], part: &str| {
        let told = ramfold(&[&["disk", "--size", "8M", "--unix", "/nowhere/socket"], arguments].concat());
        assert_eq!(told.code, Some(2), "{}", told.stderr);
        assert!(one_line(&told.stderr).contains(part), "{}", told.stderr);
    };
    wrong(&["--persist"], "--backing-dev");
    wrong(&["--durable"], "--persist");
    wrong(&["--durable", "--backing-dev", image], "--persist");
    wrong(&["--accept-stale", "--backing-dev", image], "--persist");
    wrong(&["--persist", "--backing-dev", "/var/tmp"], "give a file");
    let disk = place.serve(&[]);
    assert!(disk.contents() == bytes(1));
    let second = place.0.path().join("second");
    let told = ramfold(&[
        "disk",
        "--size",
        "8M",
        "--persist",
        "--backing-dev",
        image,
        "--unix",
        second.to_str().unwrap(),
    ]);
    assert!(told.code == Some(125) && one_line(&told.stderr).contains("another disk"), "{}", told.stderr);
}

#[test]
fn a_disk_that_was_killed_is_not_served_as_if_nothing_were_lost() {
    let (place, image) = (kept(&bytes(1)), bytes(1));
    let disk = place.serve(&[]);
    assert_eq!(disk.client().write(0, &[9; PAGE]), 0);
    assert_eq!(disk.end(libc::SIGKILL), None);
    place.refused(&[], 125, "--accept-stale");
    let mut disk = place.serve(&["--accept-stale"]);
    assert!(disk.line().contains("is lost"));
    assert!(disk.contents() == image);
    assert_eq!(disk.end(libc::SIGTERM), Some(0));
    assert!(place.serve(&[]).contents() == image, "it was accepted, and ended in order");
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let (place, mut image) = (Place::new(), bytes(1));
    let disk = place.serve(&["--durable", "--mem-limit", "1M"]);
    write(&disk, &image);
    assert_eq!(disk.client().flush(), 0);
    // Not flushed: it may be lost.
    assert_eq!(disk.client().write(0, &[9; PAGE]), 0);
    assert_eq!(disk.end(libc::SIGKILL), None);
    let mut disk = place.serve(&["--durable"]);
    let line = disk.line();
    assert!(line.contains("1 flushes since"), "{line}");
    let found = disk.contents();
    assert!(found[PAGE..] == image[PAGE..] && (found[..PAGE] == image[..PAGE] || found[..PAGE] == [9; PAGE]));
    let mut client = disk.client();
    image[..PAGE].fill(7);
    assert_eq!((client.write(0, &image[..PAGE]), client.flush()), (0, 0));
    drop(client);
    assert_eq!(disk.end(libc::SIGKILL), None);
    // One that is kept at clean stops alone has it as well, and leaves an image without a log.
    let disk = place.serve(&[]);
    assert!(disk.contents() == image);
    assert_eq!((disk.end(libc::SIGTERM), place.files()), (Some(0), vec!["image".to_owned()]));
    let mut disk = place.serve(&["--durable"]);
    assert!(disk.line().contains("as the disk was stopped") && disk.contents() == image);
    image[..PAGE].fill(5);
    assert_eq!(disk.client().write(0, &image[..PAGE]), 0);
    assert_eq!(disk.end(libc::SIGTERM), Some(0), "a clean stop keeps what was not flushed too");
    assert!(place.serve(&[]).contents() == image);
}

#[test]
fn what_was_acknowledged_before_a_stop_is_kept() {
    for round in 0..4 {
        let place = Place::new();
        let disk = place.serve(&["--mem-limit", "1M"]);
        let written: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3_usize)
                .map(|writer| {
                    let mut client = disk.client();
                    scope.spawn(move || {
                        let mut pages = vec![0; SIZE / PAGE];
                        for count in 1_u64.. {
                            let page =
                                usize::try_from(count * 7).unwrap() * 3 % (SIZE / PAGE - 3) / 3 * 3 + writer;
                            let data: Vec<u8> = count.to_le_bytes().repeat(PAGE / 16);
                            let data = [data, vec![writer.to_le_bytes()[0]; PAGE / 2]].concat();
                            match client.try_write((page * PAGE) as u64, &data) {
                                Ok(0) => pages[page] = count,
                                Ok(error) => panic!("{error}"),
                                Err(_) => break,
                            }
                        }
                        pages
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(100 + 77 * round));
            disk.signal(libc::SIGTERM);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(disk.end(libc::SIGTERM), Some(0));
        let found = place.serve(&[]).contents();
        assert!(written.iter().flatten().filter(|count| **count > 0).count() > 50);
        for (page, data) in found.chunks(PAGE).enumerate() {
            let last = written.iter().map(|pages| pages[page]).max().unwrap();
            let kept = u64::from_le_bytes(data[..8].try_into().unwrap());
            // A writer has one write under way: the next of its own to this page may be there unacknowledged.
            assert!(kept >= last, "page {page}: {kept}, and {last} was acknowledged");
        }
    }
}
