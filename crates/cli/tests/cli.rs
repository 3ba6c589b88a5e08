//! `ramfold run` as its users see it: exit statuses, signals, messages, statistics, and what it leaves behind. That
//! pages survive is tested elsewhere.

mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;

use command::{Outcome, PATH, command, finish, one_line, ramfold};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const LIMIT: &[&str] = &["run", "-m", "64M", "--"];

fn run(arguments: &[&str]) -> Outcome {
    ramfold(&[LIMIT, arguments].concat())
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (arguments, part) in [
        (&["run", "--", "true"][..], "-m"),
        (&["run", "-m", "64M"], "PROGRAM"),
        (&["run", "-m", "lots", "--", "true"], "\"lots\" is no size"),
        (&["run", "-m", "-5", "--", "true"], "-5"),
        (&["run", "-m", "4096", "--", "true"], "too small"),
        (&["run", "-m", "64M", "--compressor", "lzma", "--", "true"], "lz4"),
        (&["run", "-m", "64M", "--compressor", "zstd:99", "--", "true"], "level"),
        (&["run", "-m", "64M", "--zpool", "z3fold", "--", "true"], "zsmalloc, zbud, xvmalloc"),
        (&["run", "-m", "64M", "--max-pool-percent", "0", "--", "true"], "--max-pool-percent"),
        (&["run", "-m", "64M", "--accept-threshold-percent", "101", "--", "true"], "101"),
        (&["run", "-m", "64M", "--swap", "none", "--swap-size", "1G", "--", "true"], "--swap-size"),
        (&["run", "-m", "64M", "--frobnicate", "--", "true"], "--frobnicate"),
        (&["run", "-m", "64M", "--metrics", "9100", "--", "true"], "127.0.0.1:9100"),
        (&["bench", "pages"], "FILE"),
        (&["top", "--interval", "0"], "\"0\" is no time"),
        (&["conquer"], "conquer"),
        (&[], "command is missing"),
    ] {
        let outcome = ramfold(arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        let line = one_line(&outcome.stderr);
        assert!(line.starts_with("ramfold: ") && line.contains(part), "{arguments:?}: {line}");
    }
}

#[test]
fn help_shows_an_example() {
    for arguments in [&["run", "--help"][..], &["bench", "pages", "--help"], &["top", "--help"]] {
        let outcome = ramfold(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
        assert!(outcome.stdout.contains("Example: ramfold "), "{}", outcome.stdout);
    }
    assert_eq!(ramfold(&["--version"]).stdout, concat!("ramfold ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn the_exit_status_is_the_programs_own() {
    for status in [0, 1, 7, 125, 255] {
        let outcome = run(&["sh", "-c", &format!("exit {status}")]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(status), ""));
    }
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("USR1", 138)] {
        assert_eq!(run(&["sh", "-c", &format!("kill -{signal} $$")]).code, Some(status));
    }
}

#[test]
fn programs_that_cannot_start_give_126_and_127() {
    let missing = run(&["no-such-program-anywhere"]);
    assert_eq!(missing.code, Some(127));
    assert!(one_line(&missing.stderr).starts_with("ramfold: no-such-program-anywhere: "));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("text");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    let denied = run(&[file.to_str().unwrap()]);
    assert_eq!(denied.code, Some(126));
    assert!(one_line(&denied.stderr).contains("text: "), "{}", denied.stderr);
}

#[test]
fn arguments_input_output_and_environment_pass_through() {
    let mut child = command(LIMIT)
        .args(["sh", "-c", "cat; echo \"$1-$MARK\" >&2", "sh", "a  b"])
        .env("MARK", "m")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"through"[..], &b"a  b-m\n"[..]));
}

#[test]
fn preloaded_libraries_of_the_user_stay_behind_ours() {
    let outcome =
        finish(command(LIMIT).args(["sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "libm.so.6"));
    let value = outcome.stdout.trim();
    assert!(value.starts_with("/proc/") && value.ends_with(":libm.so.6"), "{value}");
}

/// What every program of a run loads is nobody's to change, of the same user neither.
#[test]
fn the_libraries_cannot_be_changed() {
    let mut run = command(LIMIT)
        .args(["sh", "-c", "echo ready; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    run.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", run.id())).unwrap();
    let is_library = |path: &std::path::PathBuf| {
        let target = fs::read_link(path).unwrap();
        ["/memfd:ramfold-start (deleted)", "/memfd:ramfold-preload (deleted)"]
            .contains(&target.to_str().unwrap())
    };
    let libraries: Vec<_> = descriptors.map(|entry| entry.unwrap().path()).filter(is_library).collect();
    assert_eq!(libraries.len(), 2);
    for path in libraries {
        let mut file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let refused = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        };
        refused(file.write_all(b"x"));
        refused(file.set_len(0));
    }
    drop(run.stdin.take());
    run.wait().unwrap();
}

#[test]
fn the_statistics_have_every_name_of_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let outcome = ramfold(&[
        "run",
        "-m",
        "64M",
        "--stats",
        file.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "sleep 0.3; exit 4",
    ]);
    assert_eq!(outcome.code, Some(4));
    let stats: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for name in [
        "limit",
        "peak_bytes",
        "resident_bytes",
        "processes",
        "faults",
        "refaults",
        "evicted_pages",
        "stored_pages",
        "pool_total_size",
        "orig_data_size",
        "compr_data_size",
        "same_filled_pages",
        "duplicate_pages",
        "stored_incompressible_pages",
        "loads",
        "stores",
        "invalidates",
        "misses",
        "written_back_pages",
        "writeback_bytes",
        "tier_loads",
        "pool_limit_hit",
        "reject_reclaim_fail",
        "reject_alloc_fail",
        "reject_meta_fail",
        "reject_compress_fail",
        "reject_compress_poor",
        "decompress_fail",
        "checksum_fail",
        "tier_fail",
        "writeback_fail",
        "dropped_pages",
        "pages_compacted",
        "meta_bytes",
    ] {
        assert!(stats[name].is_u64(), "{name} is {}", stats[name]);
    }
    for name in ["p50", "p99", "max"] {
        assert!(stats["fault_ns"][name].is_u64(), "fault_ns.{name}");
    }
    assert_eq!(stats["limit"], 64 << 20);
    let elapsed = stats["elapsed_s"].as_f64().unwrap();
    assert!((0.3..60.0).contains(&elapsed), "{elapsed}");
}

#[test]
fn a_dash_prints_a_short_table_on_stderr() {
    let outcome = ramfold(&["run", "-m", "64M", "--stats", "-", "--", "echo", "out"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "out\n"));
    assert!(outcome.stderr.lines().all(|line| line.starts_with("ramfold: ")), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("of 64.0 MiB") && outcome.stderr.lines().count() < 12);
}

#[test]
fn statistics_that_cannot_be_written_are_told_before_the_program_runs() {
    let outcome = ramfold(&["run", "-m", "64M", "--stats", "/no/such/dir/x", "--", "echo", "ran"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(125), ""));
    assert!(one_line(&outcome.stderr).contains("/no/such/dir/x"));
}

/// As `man` itself would show it, each command has a page that names its options.
#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = ramfold(&["man", directory.path().to_str().unwrap()]);
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(0), "", ""));
    let pages = [
        ("ramfold", "SUBCOMMANDS"),
        ("ramfold-run", "swap\\-size"),
        ("ramfold-top", "interval"),
        ("ramfold-bench-pages", "zpool"),
        ("ramfold-inspect", "watch"),
        ("ramfold-advise", "slowdown"),
        ("ramfold-replay", "policy"),
        ("ramfold-completions", "bash"),
    ];
    for (name, text) in pages {
        let page = fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(text), "{name}: {page}");
    }
    let outcome = ramfold(&["man", "/no/such/directory"]);
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("/no/such/directory"));
}

/// bash reads its completions, and offers commands and options.
#[test]
fn completions_are_read_by_their_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = ramfold(&["completions", shell]);
        assert_eq!(outcome.code, Some(0));
        assert!(outcome.stdout.contains("ramfold") && outcome.stdout.contains("swap-size"), "{shell}");
    }
    let script = ramfold(&["completions", "bash"]).stdout
        + "COMP_WORDS=(ramfold run --swap-s); COMP_CWORD=2; _ramfold ramfold --swap-s run; echo \"${COMPREPLY[@]}\"\n";
    let bash = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&bash.stdout),
        "--swap-size\n",
        "{}",
        String::from_utf8_lossy(&bash.stderr)
    );
    assert_eq!(ramfold(&["completions", "sh"]).code, Some(2));
}

#[test]
fn a_static_program_is_run_with_a_warning_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("s.c"), directory.path().join("static"));
    fs::write(&source, "int main(void) { return 42; }\n").unwrap();
    let compiled = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status().unwrap();
    assert!(compiled.success());
    let program = program.to_str().unwrap();
    let outcome = run(&[program]);
    assert_eq!(outcome.code, Some(42));
    assert!(one_line(&outcome.stderr).contains("statically linked"), "{}", outcome.stderr);
    let outcome = ramfold(&["run", "-m", "64M", "--strict", "--", program]);
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("statically linked"), "{}", outcome.stderr);
    // What counts for a script is its interpreter.
    let script = directory.path().join("script");
    fs::write(&script, format!("#!{program}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run(&[script.to_str().unwrap()]).stderr.contains("statically linked"));
}

#[test]
fn a_process_that_cannot_be_managed_ends() {
    let outcome = with_settings(";shm=/nowhere");
    assert_eq!(outcome.stdout, "status 125\n");
    assert!(
        one_line(&outcome.stderr).contains("memory cannot be held under the limit"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_small_process_that_grows_after_the_end_of_ramfold_goes_on_and_says_so() {
    let outcome = with_settings(";library=/nowhere");
    assert_eq!(outcome.stdout, "status 0\n");
    assert!(one_line(&outcome.stderr).contains("not held under the limit any more"), "{}", outcome.stderr);
}

/// A program that takes a block of 1 MiB, with settings that were added to.
fn with_settings(more: &str) -> Outcome {
    let script = format!(
        r#"RAMFOLD_RUN="${{RAMFOLD_RUN}}{more}"; dd if=/dev/null bs=1M count=1 status=none; echo "status $?""#
    );
    run(&["sh", "-c", &script])
}

#[test]
fn no_environment_leads_out_of_the_limit() {
    let managed = "grep -q ramfold-preload /proc/self/maps && echo managed";
    for words in [
        &["env", "-i", "/bin/sh", "-c", managed][..],
        &["sh", "-c", "unset LD_PRELOAD RAMFOLD_RUN; exec /bin/sh -c \"$0\"", managed],
        &["env", "-u", "LD_PRELOAD", "sh", "-c", managed],
    ] {
        assert_eq!(run(words).stdout, "managed\n", "{words:?}");
    }
}

#[test]
fn a_swap_file_on_tmpfs_is_refused_with_the_reason() {
    let outcome = ramfold(&["run", "-m", "64M", "--swap", "/dev/shm", "--", "echo", "ran"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(125), ""));
    let line = one_line(&outcome.stderr);
    assert!(line.contains("/dev/shm") && line.contains("tmpfs"), "{line}");
    assert_eq!(ramfold(&["run", "-m", "64M", "--swap", "none", "--", "true"]).code, Some(0));
    let missing = ramfold(&["run", "-m", "64M", "--swap", "/no/such/place/x", "--", "true"]);
    assert_eq!(missing.code, Some(125), "{}", missing.stderr);
    assert!(one_line(&missing.stderr).contains("/no/such/place/x"));
}

#[test]
fn ramfold_does_not_run_within_itself() {
    let outcome = run(&[PATH, "run", "-m", "64M", "--", "true"]);
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("already runs under ramfold"));
}

#[test]
fn without_permission_the_three_ways_are_named() {
    // SAFETY: plain system call.
    let root = unsafe { libc::geteuid() } == 0;
    let open =
        fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1");
    let device = fs::metadata("/dev/userfaultfd").is_ok_and(|meta| meta.permissions().mode() & 0o006 != 0);
    if !root || open || device {
        need::skip("needs root, and a system that refuses userfaultfd to others");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("ramfold");
    fs::copy(PATH, &copy).unwrap();
    let outcome = finish(Command::new(copy).args(LIMIT).arg("true").uid(65534).gid(65534));
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    let line = one_line(&outcome.stderr);
    for way in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd=1", "/dev/userfaultfd"] {
        assert!(line.contains(way), "{line}");
    }
}

/// A quota of the processors' time on which programs may stand still (docs/platform.md) is told at the start.
#[test]
fn a_quota_that_is_too_small_is_told() {
    let one = Path::new("/sys/fs/cgroup/cpu");
    let (root, quota, of_kernel) = if one.join("cpu.cfs_quota_us").exists() {
        (one, "cpu.cfs_quota_us", "50000")
    } else {
        (Path::new("/sys/fs/cgroup"), "cpu.max", "50000 100000")
    };
    let group = root.join(format!("ramfold-test-quota-{}", std::process::id()));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    let release: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    if release < (6, 18) || !need::root() {
        return;
    }
    if fs::create_dir(&group).is_err() {
        need::skip("a group of processes with a quota cannot be made here");
        return;
    }
    let limited = fs::write(group.join(quota), of_kernel);
    let script = format!("echo $$ >{}/cgroup.procs; exec \"$0\" run -m 64M -- true", group.display());
    let outcome = limited.map(|()| finish(Command::new("sh").args(["-euc", &script, PATH])));
    fs::remove_dir(group).unwrap();
    let Ok(outcome) = outcome else {
        need::skip("groups of processes have no quota here");
        return;
    };
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(one_line(&outcome.stderr).contains("a quota of 0.50"), "{}", outcome.stderr);
}

/// The run's own files are bound by `ulimit -f` too.
#[test]
fn a_limit_on_the_size_of_files_is_named() {
    let script = format!("ulimit -f 64; exec {} run -m 64M -- true", env!("CARGO_BIN_EXE_ramfold"));
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.starts_with("ramfold: ") && message.contains("ulimit -f"), "{message}");
}
