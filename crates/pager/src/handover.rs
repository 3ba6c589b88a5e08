//! Another process serves this memory.
//!
//! A process that was made by clone with CLONE_VM has its creator's memory and may outlive it, and the pager's
//! threads would end with the process that they belong to, wherever they are. So once there is such a process, they
//! belong to a third that shares the memory too: the keeper. Those of the program end between two pieces of work, and
//! the keeper starts its own, which read the same userfaultfd: a fault in between waits in its queue. The account
//! goes with the memory, as its lease does ([`crate::segment`]).

use crate::alone;
use crate::face::SetupError;
use crate::pager::Pager;
use crate::workers;

impl Pager {
    /// Whether management has begun.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.engine.get().is_some()
    }

    /// Management is due, however little memory the program has.
    pub fn demand(&self) {
        self.phase.set_due();
    }

    /// Ends the pager's threads, each when its piece of work is done. From here on faults wait, until
    /// [`Pager::start_threads`]. Managed, and no fork is under way or begins meanwhile.
    pub fn stop_threads(&self) {
        if let Some(engine) = self.engine() {
            alone::end_threads(engine);
        }
    }

    /// Starts them again, in the calling process, which has copies of the pager's descriptors.
    ///
    /// # Errors
    /// [`SetupError`]: nobody serves the memory.
    pub fn start_threads(&self) -> Result<(), SetupError> {
        Ok(workers::start(self.engine.get().expect("memory is managed"))?)
    }
}
