//! A process that is killed, or finds no room, at a system call of its first thread.

use std::io;

/// What befalls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// SIGKILL, before the call.
    Kill,
    /// The call is not made, and answers ENOSPC.
    NoSpace,
}

/// The calls that change files, or may; and the end.
pub const CHANGES: &[i64] = &[
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_linkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_close,
    libc::SYS_exit_group,
];

/// Those that may find no room.
pub const TAKE_ROOM: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_write,
    libc::SYS_openat,
    libc::SYS_linkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// Does a step of ptrace; what it needs is in the numbers.
fn trace(what: libc::c_uint, pid: i32, data: u64) {
    // SAFETY: these requests of ptrace touch no memory of this process.
    let done = unsafe { libc::ptrace(what, pid, 0, data) };
    let gone = io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    assert!(done == 0 || gone, "ptrace {what}: {}", io::Error::last_os_error());
}

fn registers(pid: i32) -> Option<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::uninit();
    // SAFETY: the kernel writes one such struct.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, registers.as_mut_ptr()) };
    // SAFETY: it has written it.
    (done == 0).then(|| unsafe { registers.assume_init() })
}

fn set_registers(pid: i32, registers: &libc::user_regs_struct) {
    // SAFETY: the kernel reads one such struct.
    unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, std::ptr::from_ref(registers)) };
}

/// The next stop of the thread; None if it has ended.
fn wait(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    (found == pid && libc::WIFSTOPPED(status)).then_some(status)
}

/// Sends SIGTERM, and lets the nth of these calls meet its fate. Whether there was one: else the process has ended by
/// itself, and was waited for. One that found no room goes on untraced.
pub fn stop_at(pid: u32, calls: &[i64], nth: usize, fate: Fate) -> bool {
    let mut met = 0;
    stop(pid, |pid, registers| {
        met += usize::from(calls.contains(&registers.orig_rax.cast_signed()) && suits(pid, fate, registers));
        (met == nth).then_some(fate)
    })
}

/// Sends SIGTERM, and tells which of these calls are made until the end.
pub fn stop_and_record(pid: u32, calls: &[i64]) -> Vec<i64> {
    let mut found = vec![];
    stop(pid, |_, registers| {
        found.extend(
            calls.contains(&registers.orig_rax.cast_signed()).then_some(registers.orig_rax.cast_signed()),
        );
        None
    });
    found
}

/// Sends SIGTERM, and asks before each call of the first thread for its fate.
fn stop(pid: u32, mut fate: impl FnMut(i32, &libc::user_regs_struct) -> Option<Fate>) -> bool {
    let pid = pid.cast_signed();
    trace(libc::PTRACE_SEIZE, pid, u64::from(libc::PTRACE_O_TRACESYSGOOD.cast_unsigned()));
    trace(libc::PTRACE_INTERRUPT, pid, 0);
    wait(pid);
    // SAFETY: a plain system call; the child is not waited for yet.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    trace(libc::PTRACE_SYSCALL, pid, 0);
    let mut is_entry = true;
    while let Some(status) = wait(pid) {
        let signal = libc::WSTOPSIG(status);
        if signal != libc::SIGTRAP | 0x80 {
            // The interrupt's stop and the like pass; a signal is handed on.
            let group = status >> 16 != 0;
            trace(libc::PTRACE_SYSCALL, pid, if group { 0 } else { signal.cast_unsigned().into() });
            continue;
        }
        let Some(mut registers) = registers(pid) else { continue };
        // A call that was under way when the tracing began ends first: its answer is no ENOSYS.
        is_entry = is_entry && registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
        if let Some(fate) = is_entry.then(|| fate(pid, &registers)).flatten() {
            return befall(pid, fate, &mut registers);
        }
        is_entry = !is_entry;
        trace(libc::PTRACE_SYSCALL, pid, 0);
    }
    false
}

/// Only a file can have no room: not an event, nor a socket.
fn suits(pid: i32, fate: Fate, registers: &libc::user_regs_struct) -> bool {
    let is_file =
        |fd| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|path| path.is_absolute());
    fate == Fate::Kill || registers.orig_rax.cast_signed() != libc::SYS_write || is_file(registers.rdi)
}

fn befall(pid: i32, fate: Fate, registers: &mut libc::user_regs_struct) -> bool {
    match fate {
        Fate::Kill => {
            // SAFETY: a plain system call; the child is not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        Fate::NoSpace => {
            registers.orig_rax = u64::MAX;
            set_registers(pid, registers);
            trace(libc::PTRACE_SYSCALL, pid, 0);
            wait(pid);
            registers.rax = (-i64::from(libc::ENOSPC)).cast_unsigned();
            set_registers(pid, registers);
            trace(libc::PTRACE_DETACH, pid, 0);
        }
    }
    true
}
