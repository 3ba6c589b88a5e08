//! Leases on files of the source: who holds one is asked to give it up, and others do not wait for him.

use crate::behind::with_mount;
use crate::mounted::{need, wait_for};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// More than threads that serve requests.
const MANY: usize = 40;

/// Who holds leases, until this is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes leases on files of a directory, and gives each up so many seconds after it was asked to.
fn holder(directory: &Path, kind: &str, seconds: f64) -> Holder {
    let script = "import fcntl, os, signal, sys, time\n\
        kind, seconds, names = getattr(fcntl, sys.argv[1]), float(sys.argv[2]), sys.argv[3:]\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n\
        flags = os.O_RDWR if kind == fcntl.F_WRLCK else os.O_RDONLY\n\
        files = [os.open(name, flags) for name in names]\n\
        for file in files: fcntl.fcntl(file, fcntl.F_SETLEASE, kind)\n\
        open('held', 'w').close()\n\
        left = set(files)\n\
        while left:\n\
        \x20   signal.sigwait([signal.SIGIO])\n\
        \x20   time.sleep(seconds)\n\
        \x20   for file in list(left):\n\
        \x20       if fcntl.fcntl(file, fcntl.F_GETLEASE) != kind:\n\
        \x20           fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)\n\
        \x20           left.remove(file)\n\
        time.sleep(300)\n";
    let names = (0..MANY).map(|number| number.to_string());
    let mut python = Command::new("python3");
    python.args(["-c", script, kind, &seconds.to_string()]).args(names).current_dir(directory);
    let holder = Holder(python.spawn().unwrap());
    wait_for("the leases are taken", || directory.join("held").exists());
    holder
}

fn fill(directory: &Path) {
    (0..MANY)
        .for_each(|number| fs::write(directory.join(number.to_string()), format!("{number}\n")).unwrap());
}

#[test]
fn who_gives_a_lease_up_when_asked_is_not_noticed() {
    if !need::programs(&["python3"]) {
        return;
    }
    for (kind, seconds) in [("F_WRLCK", 0.0), ("F_WRLCK", 0.3), ("F_RDLCK", 0.3)] {
        with_mount(|_, source, point| {
            fill(source);
            let holder = holder(source, kind, seconds);
            for number in 0..3 {
                let path = point.join(number.to_string());
                if kind == "F_WRLCK" {
                    assert_eq!(
                        fs::read_to_string(&path).unwrap(),
                        format!("{number}\n"),
                        "{kind}, {seconds}"
                    );
                }
                fs::write(&path, "new\n").unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), "new\n", "{kind}, {seconds}");
            }
            drop(holder);
        });
    }
}

#[test]
fn who_keeps_leases_keeps_nobody_from_other_files() {
    if !need::programs(&["python3"]) {
        return;
    }
    with_mount(|_, source, point| {
        fill(source);
        fs::write(source.join("other"), "other\n").unwrap();
        let holder = holder(source, "F_WRLCK", 3600.0);
        let mut cat = |number: usize| {
            let mut cat = Command::new("cat");
            cat.arg(number.to_string()).current_dir(point).stdout(Stdio::null()).stderr(Stdio::null());
            cat.spawn().unwrap()
        };
        let readers: Vec<Child> = (0..MANY).map(&mut cat).collect();
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        assert_eq!(fs::read_to_string(point.join("other")).unwrap(), "other\n");
        fs::write(point.join("made"), "made\n").unwrap();
        assert_eq!(fs::read_to_string(point.join("made")).unwrap(), "made\n");
        let took = begun.elapsed();
        drop(holder);
        let (mut read, mut refused) = (0, 0);
        for mut reader in readers {
            *(if reader.wait().unwrap().success() { &mut read } else { &mut refused }) += 1;
        }
        eprintln!("others waited {took:?}; {read} read, {refused} were refused");
        assert!(took < Duration::from_secs(10), "others waited {took:?}");
        assert!(read > 0, "nobody has waited");
    });
}
