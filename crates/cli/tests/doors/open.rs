//! A door that is open: one thread serves it, until it is dropped.

use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::serve;
use ramfold_budget::member::Member;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What a door is beside a [`Door`].
pub trait Beside: Door + Send + Sync + 'static {
    fn member(&self) -> &Member;

    /// Gives up some pages.
    fn give(&self) -> Given;

    /// What [`Door::is_closing`] tells.
    fn closing(&self) -> &AtomicBool;
}

pub struct Open<D: Beside>(pub Arc<D>, Option<JoinHandle<()>>);

impl<D: Beside> Open<D> {
    pub fn new(door: D) -> Self {
        let door = Arc::new(door);
        let served = Arc::clone(&door);
        let thread = std::thread::spawn(move || serve(served.member(), &*served, || served.give()));
        Self(door, Some(thread))
    }

    /// What the door holds, asked from anywhere.
    pub fn held(&self) -> Box<dyn Fn() -> u64 + Send> {
        let door = Arc::clone(&self.0);
        Box::new(move || door.member().held(door.resident()))
    }
}

impl<D: Beside> Drop for Open<D> {
    fn drop(&mut self) {
        self.0.closing().store(true, Ordering::Relaxed);
        self.0.member().event().call();
        self.1.take().map(JoinHandle::join);
    }
}
