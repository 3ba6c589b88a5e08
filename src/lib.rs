//! ramfold's engine: a store of compressed pages, and the mechanisms it is made of.
//!
//! ```text
//!     doors (run, disk, mount)
//!        |
//!     Store      store / load / invalidate: what is kept, and where      (policy)
//!     |    |   \
//!  Codec  Zpool  Tier                                                    (mechanism)
//! ```
//!
//! The three mechanisms never see each other; only [`store`] and [`writeback`] touch all three. The library
//! has no threads of its own, no door and no async runtime.

pub mod codec;
pub mod page;
pub mod tier;
pub mod zpool;

pub use page::{PAGE_SIZE, Page};
