//! What a test needs of the machine. Where something is missing the test says so and is skipped; under CI=true it
//! fails, so that a test cannot go missing unnoticed.

use std::process::{Command, Stdio};

/// Whether all programs are there; says which is not.
pub fn programs(names: &[&str]) -> bool {
    names.iter().all(|name| present(name) || skip(&format!("{name} is not installed")))
}

/// Whether Python can import `module`.
pub fn python_module(module: &str) -> bool {
    let import = format!("import {module}");
    let imported = Command::new("python3").args(["-c", &import]).stderr(Stdio::null()).status();
    imported.is_ok_and(|status| status.success()) || skip(&format!("Python has no {module}"))
}

/// Whether this process may handle the page faults of system calls too.
pub fn userfaultfd() -> bool {
    // SAFETY: plain integers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return skip(&format!("no userfaultfd: {error} (root, or vm.unprivileged_userfaultfd=1)"));
    }
    // SAFETY: the descriptor was just opened and is used nowhere else.
    unsafe { libc::close(i32::try_from(fd).unwrap()) };
    true
}

/// Whether this user is root.
pub fn root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 || skip("only root may do what this test does") }
}

/// Whether this user may have a user namespace with mounts of its own.
pub fn user_namespace() -> bool {
    let made = Command::new("unshare").args(["-U", "-r", "-m", "true"]).stderr(Stdio::null()).status();
    made.is_ok_and(|status| status.success()) || skip("no user namespace is to be had (unshare -U -r -m)")
}

/// Whether the kernel writes cores as files into the directory of who dies.
pub fn core_files() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_plain = pattern.starts_with("core") && !pattern.contains('/');
    is_plain || skip(&format!("kernel.core_pattern is not \"core\" but {:?}", pattern.trim()))
}

/// Says why, or fails under CI=true; always false.
pub fn skip(reason: &str) -> bool {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{reason}, and CI=true forbids skipping");
    eprintln!("skipped: {reason}");
    false
}

fn present(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(name).is_file())
}
