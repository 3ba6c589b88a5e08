//! Process memory over the store: cold pages leave a program's memory and come back when they are touched.
//!
//! Two ways in. [`Region`] is a byte range larger than its memory budget, for any Rust program. [`Pager`] manages all
//! memory of a program that was not written for it: the library that `ramfold run` puts into programs hands
//! their `mmap` and friends to it.
//!
//! Read in this order: [`mod@pager`] (the reserved range), `mapping` and `moving` (what the program does to its
//! address space), `fault` (a touched page comes back), `evict` (a cold block leaves), `changes` (what is done past the
//! pager), `pages` (where each page is).

use ramfold_budget::futex;

mod activate;
mod advise;
mod alone;
mod changes;
mod core_file;
mod density;
mod detach;
mod dump;
mod engine;
mod evict;
mod face;
mod fault;
mod foreign;
mod fork;
mod fresh;
mod gate;
mod give_back;
mod guard;
mod handover;
mod hold;
mod inbox;
mod inherit;
mod lock;
mod mapping;
mod mask;
mod moving;
mod mutex;
pub mod pager;
mod pages;
mod phase;
mod queue;
mod region;
mod reservation;
mod shared_table;
mod space;
mod staging;
mod streams;
mod sys;
mod trace;
mod uffd;
mod workers;

pub use face::{Config, Host, MapError, Mode, Prot, SetupError, UffdError};
pub use foreign::{Call, Move};
pub use pager::Pager;
pub use region::{Region, RegionError, RegionOptions};
pub use sys::own_address_space;
pub use uffd::kernel_can_move;
