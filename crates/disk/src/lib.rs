//! A disk of compressed pages.
//!
//! [`face`] is the line between the two halves: what a disk can do, whoever asks. Above it lie the protocols ([`nbd`]
//! and [`vhost_user`] on the sockets of [`listen`], and [`ublk`]); they know requests and no pages. Below it lies the
//! disk ([`volume`], `pages`); it knows pages and no protocol. Beside the protocols, [`attributes`] are what can be
//! read and changed while it runs, by the socket of [`ramfold_budget::control`]. [`image`] keeps a disk from a stop to
//! the next start, or from a flush on.

mod ages;
pub mod attributes;
mod awake;
pub mod backing;
mod changed;
mod counts;
pub mod face;
pub mod image;
pub mod listen;
pub mod nbd;
mod pages;
#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
mod settler;
mod shrinker;
mod stripes;
pub mod ublk;
pub mod vhost_user;
pub mod volume;
