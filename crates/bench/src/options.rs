//! What the comparisons' command lines have in common.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};

use crate::measure::{INTERRUPTED, Side};

/// Those of `all` that were named, or all.
///
/// # Errors
/// There is none of that name.
pub fn chosen<T: Copy, const N: usize>(
    names: &[String],
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<Vec<T>> {
    let known: Vec<_> = all.iter().map(|item| name(*item)).collect();
    let unknown = names.iter().find(|wanted| !known.contains(&wanted.as_str()));
    ensure!(unknown.is_none(), "unknown name {} (there are {})", unknown.map_or("", |s| s), known.join(", "));
    let wanted = |item: &T| names.is_empty() || names.iter().any(|wanted| wanted == name(*item));
    Ok(all.into_iter().filter(wanted).collect())
}

/// What a run is called while it lasts.
#[must_use]
pub fn side_and_limit(side: Side, limit: u64) -> String {
    match side {
        Side::Unlimited => side.name().to_owned(),
        _ => format!("{} in {} MiB", side.name(), limit >> 20),
    }
}

/// Ctrl-C only sets a flag, so that every guard still runs.
pub fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = interrupt as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
