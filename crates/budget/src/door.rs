//! A door as its member sees it: something that keeps pages in memory, and gives them up when it is told to.

/// What a door gave up in a turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    /// Pages that the store has now.
    pub pages: usize,
    /// Pages that the store refused.
    pub refused: usize,
    /// Candidates that were looked at.
    pub looked_at: usize,
}

/// A door, as its member sees it.
pub trait Door {
    /// Bytes that it keeps in memory beside the store.
    fn resident(&self) -> u64;

    /// How many candidates there are to look at.
    fn candidates(&self) -> usize;

    /// When the candidate that would go next came, by the budget's clock ([`crate::segment::Segment::clock`]).
    fn oldest(&self) -> Option<u64>;

    /// Whether what would go next is of use to somebody: what nobody waits for goes before others are asked.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Whether the door is closing: then nothing more is given up.
    fn is_closing(&self) -> bool {
        false
    }

    /// Taken for each turn, and given back when what it gives is dropped: between two turns others may stop the door.
    fn inside(&self) -> impl Sized {}
}
