//! Rights: those that a server has and whoever asks it has not.

use crate::mounted::{Place, can_mount, need, wait_for};
use std::fs;
use std::process::Stdio;

/// CAP_SYS_RESOURCE: who has it passes by quotas, and takes what a file system keeps back.
const RESOURCES: u64 = 1 << 24;

/// In a user namespace, whose root has all capabilities whatever this process has.
#[test]
fn who_answers_requests_passes_by_no_quota() {
    if !can_mount() || !need::user_namespace() {
        return;
    }
    let place = Place::new();
    let mut command = std::process::Command::new("unshare");
    command.args(["-U", "-r", "-m"]).arg(crate::mounted::binary()).args(["mount", "-m", "32M"]);
    command.args([place.source(), place.point()]).env("XDG_RUNTIME_DIR", place.path());
    let told = fs::File::create(place.path().join("told")).unwrap();
    let mut server = command.stdin(Stdio::null()).stderr(told).spawn().unwrap();
    let pid = server.id();
    let answers = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let part =
            |task: &fs::DirEntry, name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let statuses =
            tasks.filter(|task| part(task, "comm").starts_with("fuser")).map(|task| part(&task, "status"));
        let set = |status: String| {
            let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(set.trim(), 16).ok()
        };
        statuses.filter_map(set).collect::<Vec<u64>>()
    };
    wait_for("it serves", || {
        let is_over = server.try_wait().unwrap();
        assert_eq!(is_over, None, "{}", fs::read_to_string(place.path().join("told")).unwrap());
        answers().len() > 3
    });
    let sets = answers();
    // SAFETY: plain integers; the child is not waited for yet.
    unsafe { libc::kill(server.id().cast_signed(), libc::SIGTERM) };
    server.wait().unwrap();
    for set in sets {
        assert_ne!(set, 0, "it is root there");
        assert_eq!(set & RESOURCES, 0, "{set:x}");
    }
}
