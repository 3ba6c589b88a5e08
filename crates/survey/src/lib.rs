//! What this memory would give: sampling, measuring, predicting, replaying.
//!
//! ```text
//!     process, image      where the pages are                      (the only files that read /proc and dumps)
//!        population       all pages of all sources, as runs
//!           |
//!         look            same-filled, duplicates, where they are; a sample
//!        /     \
//!   measure   units       what every compressor, unit and zpool makes of the sample
//!
//!     trace, generate -> replay, mrc      what a policy or a size would have done to a sequence of touches
//! ```
//!
//! A survey only reads: the processes that it looks at go on running. What is counted and what is estimated, and
//! with which error, is said where it is computed. [`watch`] tells how much of a process's memory stays untouched.

pub mod forecast;
pub mod generate;
pub mod image;
pub mod kernel_pool;
pub mod look;
pub mod measure;
pub mod mrc;
mod open;
pub mod population;
pub mod process;
pub mod random;
pub mod replay;
pub mod shelf;
pub mod standin;
pub mod statistics;
pub mod trace;
pub mod units;
pub mod watch;
