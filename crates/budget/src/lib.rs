//! One limit for many members.
//!
//! A *budget* is a limit in bytes and a swap file, for any number of members in any number of processes. A *member*
//! is a store of compressed pages behind a door (a process's memory, a disk, a directory). What all agree on lies in
//! shared memory ([`segment`]); what one member does to stay within the limit is the same behind every door
//! ([`member`], [`effort`]). A door gives up pages when it is told to, and knows what they are; nothing here does.
//!
//! Read in this order: [`segment`] (the limit and the accounts), [`usage`] (what one process takes of it), [`member`]
//! (its store, its pool's share, its swap file), [`effort`] (making room). For a door that is a server, [`service`]
//! makes all of these, and [`household`] is for several of them in one process; [`share`] is how a door joins the
//! budget of another; [`pressure`] is who needs memory outside of it; and [`control`] is how it is asked, and told to
//! do something, while it runs.

mod books;
pub mod control;
pub mod crowd;
pub mod door;
pub mod effort;
pub mod event;
pub mod extents;
pub mod fds;
pub mod futex;
pub mod household;
pub mod member;
pub mod open_lease;
pub mod overdrawn;
pub mod pagemap;
pub mod pooled;
pub mod pressure;
pub mod process;
pub mod recompress;
pub mod segment;
pub mod service;
pub mod settings;
pub mod share;
pub mod time;
pub mod usage;

use std::os::fd::RawFd;

/// What a member needs from the process that it lives in.
pub trait Host: Send + Sync {
    /// Ends the process at once: its memory can no longer be trusted or held. `reported`: the message is in the
    /// segment, and whoever made that, if it still runs, tells the user.
    fn die(&self, message: &str, reported: bool) -> !;

    /// Keeps a program from closing a descriptor that ramfold uses in it, until ramfold itself closes it.
    fn protect_fd(&self, _fd: RawFd) {}
}
