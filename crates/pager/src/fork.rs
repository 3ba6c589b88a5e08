//! fork: a quiet process is copied, and the child takes its copy over.
//!
//! The parent closes the gate, so no lock is held and no page is on its way out while the memory is copied. Nobody
//! serves faults then, in the child not even before it has a userfaultfd of its own: whoever forks must not touch
//! managed memory in between. What it cannot help touching (its own stack, what libc allocated for itself) is brought
//! in before.

use crate::activate;
use crate::engine::Engine;
use crate::face::SetupError;
use crate::pager::{Child, Pager};
use crate::pages::State;
use crate::space::Kind;
use crate::sys::{self, PAGE};
use crate::workers;
use ramfold_budget::effort::until_child_fits;
use ramfold_budget::fds::Room;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, PoisonError};

impl Pager {
    /// Before a fork, first of all: makes room for what a child takes at once, if it is to be had in a moment.
    pub fn make_room_for_child(&self) {
        if let Some(engine) = self.engine() {
            until_child_fits(&engine.member, engine);
        }
    }

    /// Before fork, and before the caller takes any lock: management does not begin until
    /// [`Pager::after_fork_parent`] or [`Pager::after_fork_child`].
    pub fn before_fork(&self) {
        self.phase.hold();
    }

    /// After `before_fork`: from here on nobody is inside the pager. `touched` are addresses, managed or not, whose
    /// pages the caller touches before the fork is over: they are in memory, and stay. `shares_table`: the child has
    /// this process's table of descriptors.
    pub fn stop_for_fork(&self, touched: &[usize], shares_table: bool) {
        if let Some(engine) = self.engine() {
            engine.settle_changes();
        }
        self.gate.close();
        let Some(engine) = self.engine() else { return };
        while let Some(addr) = self.missing(engine, touched) {
            self.gate.open();
            sys::touch(addr);
            self.gate.close();
        }
        debug_assert!(engine.member.store().is_quiet(), "somebody writes back outside of the gate");
        let child = self.prepare_child(engine, touched.len(), shares_table);
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        if let Some(tier) = &engine.member.tier {
            tier.before_fork();
        }
        engine.guard_anew();
        if engine.is_guarded() {
            for addr in touched.iter().filter(|addr| self.range().contains(addr)) {
                let _ = engine.uffd.write_protect(addr & !(PAGE - 1), PAGE, false);
            }
        }
        // Last: what was asked of the kernel above may wait for the reader.
        engine.inbox.hold_still();
    }

    fn prepare_child(&self, engine: &Engine, copied: usize, shares_table: bool) -> io::Result<Child> {
        let slot = engine.member.usage.prepare_child(copied)?;
        let numbers = shares_table
            .then(|| self.shared_table.take_for(slot, &engine.member.usage, engine.host))
            .transpose()?;
        Ok(Child { slot, numbers })
    }

    /// After fork, in the parent.
    pub fn after_fork_parent(&self) {
        if let Some(engine) = self.engine() {
            engine.member.segment().end_fork();
            engine.inbox.go_on();
        }
        self.gate.open();
        self.phase.release();
        let _inside = self.gate.enter();
        self.look_at_size(&self.space());
    }

    /// The first thing in the child, before it touches managed memory: watches its own copy of the pages, and
    /// starts its own threads. The store came along with the memory.
    ///
    /// # Errors
    /// [`SetupError`]: the child has to end, for nothing can bring back what is away.
    pub fn after_fork_child(&self) -> Result<(), SetupError> {
        self.gate.reset();
        self.phase.release();
        self.exempt();
        // Locks on memory are not inherited. What is kept is locked when the rest was given up, which could not be
        // dropped else.
        self.space().unlock_all();
        match self.engine.get() {
            Some(engine) => {
                let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
                self.take_over(engine, child)
            }
            None => {
                self.give_up_in_child().map_err(SetupError::Inherit)?;
                self.lock_kept(&self.space());
                self.look_at_size(&self.space());
                Ok(())
            }
        }
    }

    fn take_over(&self, engine: &Arc<Engine>, child: Option<io::Result<Child>>) -> Result<(), SetupError> {
        let Child { slot, numbers } = child.ok_or(Errno::NOSPC)??;
        engine.threads().clear();
        self.shared_table.in_child(numbers.is_some());
        engine.close_parents(numbers);
        let _room = Room::make();
        {
            let _inside = self.gate.enter();
            engine.member.segment().adopt(slot);
            engine.become_child(slot)?;
            self.give_up_in_child().map_err(SetupError::Inherit)?;
            self.lock_kept(&self.space());
            // Before the first fault is entered: what is inherited is not to be counted with it.
            engine.refresh_usage();
        }
        activate::register(engine, &self.space(), self.range())?;
        workers::start(engine)?;
        let _inside = self.gate.enter();
        engine.guard_if_short();
        Ok(())
    }

    /// One of these addresses whose page would fault when it is used; the gate is closed.
    fn missing(&self, engine: &Engine, addresses: &[usize]) -> Option<usize> {
        let space = self.space();
        let usable = |addr: usize| {
            space.area_at(addr).is_some_and(|(_, area)| area.kind == Kind::Anonymous && area.prot.writable())
        };
        let resident = |addr| {
            let page = engine.pages.number(addr);
            engine.pages.lock(page).state(page) == State::Resident
        };
        let away = |addr: &&usize| self.range().contains(addr) && usable(**addr) && !resident(**addr);
        addresses.iter().find(away).copied()
    }
}

#[cfg(test)]
mod tests {
    use crate::gate::Gate;
    use ramfold_budget::futex::Ordering;
    use std::sync::atomic::AtomicBool;

    /// What `crates/races` tries with a model of it, with the kernel's futex.
    #[test]
    fn nobody_is_inside_while_the_gate_is_closed() {
        let gate = Gate::default();
        let closed = AtomicBool::new(false);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _inside = gate.enter();
                        assert!(!closed.load(Ordering::SeqCst));
                    }
                });
            }
            for _ in 0..2000 {
                gate.close();
                closed.store(true, Ordering::SeqCst);
                std::hint::spin_loop();
                closed.store(false, Ordering::SeqCst);
                gate.open();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
