//! A disk of compressed pages.
//!
//! [`face`] is the line between the two halves: what a disk can do, whoever asks. Above it lie the protocols ([`nbd`]);
//! they know requests and no pages. Below it lies the disk ([`volume`], `pages`); it knows pages and no protocol.

mod ages;
pub mod backing;
mod counts;
pub mod face;
mod keeper;
pub mod nbd;
mod pages;
mod stripes;
pub mod volume;
