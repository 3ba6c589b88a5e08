//! What /proc tells of a process. One that has ended, or that this user may not see, tells nothing.

use ramfold::PAGE_SIZE as PAGE;
use std::fs;
use std::time::Duration;

/// What `/proc/PID/stat` tells (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    state: u8,
    /// Who made it, or has taken it over.
    pub parent: u32,
    /// Processor time that it has used, by the kernel's clock ticks.
    pub ran: Duration,
    /// The same of children that it has waited for, and of theirs.
    pub children_ran: Duration,
    /// Where its stack began, which an exec changes; 0 if this user may not know.
    pub start_stack: u64,
}

impl Stat {
    /// What is told of this process.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `PID (NAME) STATE ...`, where the name may hold anything; fields have the manual's numbers.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(text.get(name_end + 2..)?).ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            state: *rest.as_bytes().first()?,
            parent: field(4)?.try_into().ok()?,
            ran: of_ticks(field(14)? + field(15)?),
            children_ran: of_ticks(field(16)? + field(17)?),
            start_stack: field(28)?,
        })
    }

    /// It waits for its parent to ask how it ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// A signal or a tracer has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// It runs, or could, or waits for a page.
    #[must_use]
    pub fn can_run(&self) -> bool {
        matches!(self.state, b'R' | b'D')
    }
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second())
}

/// Bytes of anonymous memory that the process has resident; 0 if nothing is told.
#[must_use]
pub fn anonymous(pid: u32) -> u64 {
    parse_anonymous(&fs::read(format!("/proc/{pid}/statm")).unwrap_or_default())
}

/// Bytes of anonymous memory, each page divided by the number of page tables that it is in. None where the kernel does
/// not tell them (before Linux 5.4), or not to this user.
#[must_use]
pub fn proportional(pid: u32) -> Option<u64> {
    size_in(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss_Anon:")
}

/// The same as [`anonymous`], of the text of a statm: pages in all, resident, and of these such as are a file's or
/// shared memory's.
pub(crate) fn parse_anonymous(statm: &[u8]) -> u64 {
    let number = |digits: &[u8]| {
        digits.iter().fold(0_u64, |sum, digit| sum.wrapping_mul(10) + u64::from(digit.wrapping_sub(b'0')))
    };
    let mut pages = statm.split(|byte| *byte == b' ').skip(1).map(number);
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * PAGE as u64
}

/// The number that the process has in the innermost PID namespace that it is in: how it numbers itself.
#[must_use]
pub fn innermost(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// Bytes behind the name that a line begins with, as /proc tells sizes: `NAME 12 kB`.
#[must_use]
pub fn size_in(text: &str, name: &str) -> Option<u64> {
    let size = text.lines().find_map(|line| line.strip_prefix(name))?;
    size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// What a process found under this name in its environment when it began.
#[must_use]
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut words = environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Its name as the kernel shows it. A program chooses it, so control characters come as `?`.
#[must_use]
pub fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&name);
    text.trim_end_matches('\n').chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: char) -> Option<Stat> {
        let text = format!(
            "12 (a) Z b) {state} 7 12 12 0 -1 4194304 1 2 3 4 70 8 9 10 20 0 1 0 55 0 1 2 3 4 99 5\n"
        );
        Stat::parse(text.as_bytes())
    }

    #[test]
    fn what_the_kernel_tells_of_a_process_is_understood() {
        let running = stat('R').unwrap();
        assert_eq!((running.parent, running.start_stack), (7, 99));
        assert_eq!((running.ran, running.children_ran), (of_ticks(78), of_ticks(19)));
        assert!(running.can_run() && !running.has_ended());
        assert!(!stat('S').unwrap().can_run() && stat('Z').unwrap().has_ended());
        assert!(stat('T').unwrap().is_stopped() && stat('t').unwrap().is_stopped() && !running.is_stopped());
        assert_eq!((Stat::parse(b""), Stat::parse(b"12 (a"), Stat::parse(b"12 (a) R 1")), (None, None, None));
        assert_eq!((parse_anonymous(b"90 30 20 1 0 9 0\n"), parse_anonymous(b"")), (10 * PAGE as u64, 0));
    }

    #[test]
    fn a_process_is_asked() {
        let me = std::process::id();
        assert!(Stat::of(me).unwrap().start_stack > 0 && anonymous(me) > 0 && !name(me).is_empty());
        assert_eq!((variable(me, "PATH"), variable(me, "PAT")), (std::env::var("PATH").ok(), None));
        assert_eq!((Stat::of(u32::MAX), anonymous(u32::MAX)), (None, 0));
    }
}
