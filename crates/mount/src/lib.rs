//! A directory on slow storage, shown as it is, with its file pages kept in compressed memory.
//!
//! [`fuse`] carries requests of the kernel to a [`tree`], which does with the source what was asked and knows no FUSE.
//! What is read of files goes through a [`cache`]: pages over a store, each belonging to a version of its file
//! ([`stamp`], [`known`]). [`mount`] puts the three together; [`attributes`] are what can be read and changed
//! meanwhile.
//!
//! Who holds what: the kernel has the pages that are read now, uncompressed, and drops them when it needs the memory.
//! The cache has pages that were read before, compressed. The source's own page cache is not filled on the way,
//! but by files that are not to be kept, which the kernel reads itself where it can (`passage.rs`).

mod admission;
pub mod attributes;
mod believed;
pub mod cache;
mod callers;
mod doubt;
mod entries;
mod events;
pub mod fuse;
mod gather;
mod handles;
mod keeper;
mod kept;
pub mod known;
mod later;
pub mod mount;
mod mounts;
mod nodes;
pub mod parts;
mod passage;
mod shown;
mod source;
pub mod stamp;
mod sys;
pub mod tree;
pub mod watch;
mod work;
