//! Process memory over the store.

mod pager;
pub mod segment;

pub use pager::{Advice, Config, Host, MapError, Mode, Pager, Prot, SetupError};
