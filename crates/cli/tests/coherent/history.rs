//! What is known of a name: each thing that it stood for, when that began, and when it was done.
//!
//! A thing is a file or a directory with a file in it, and has a number that nobody else has. What was done through the
//! mount is firm at once, what was done behind it after a bound.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Things of a name that are remembered.
const REMEMBERED: usize = 64;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thing {
    Nothing,
    File(u64),
    Directory(u64),
}

struct Step {
    thing: Thing,
    done: Option<Instant>,
    behind: bool,
}

pub struct History {
    steps: VecDeque<Step>,
    first: u64,
}

impl History {
    /// The number of the step that has to be known of now.
    pub fn firm(&self, bound: Duration) -> u64 {
        let is_firm = |step: &Step| step.done.is_some_and(|done| !step.behind || done.elapsed() >= bound);
        self.first + self.steps.iter().rposition(is_firm).unwrap_or(0) as u64
    }
}

/// A name. What changes it holds `writer`.
pub struct Name {
    pub path: String,
    pub writer: Mutex<()>,
    history: Mutex<History>,
}

impl Name {
    pub fn new(path: String) -> Self {
        let step = Step { thing: Thing::Nothing, done: Some(Instant::now()), behind: false };
        let history = Mutex::new(History { steps: [step].into(), first: 0 });
        Self { path, writer: Mutex::new(()), history }
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    pub fn now(&self) -> Thing {
        self.history().steps.back().unwrap().thing
    }

    pub fn is_firm(&self, bound: Duration) -> bool {
        let history = self.history();
        history.firm(bound) + 1 == history.first + history.steps.len() as u64
    }

    pub fn begin(&self, thing: Thing, behind: bool) {
        let mut history = self.history();
        history.steps.push_back(Step { thing, done: None, behind });
        if history.steps.len() > REMEMBERED {
            history.steps.pop_front();
            history.first += 1;
        }
    }

    pub fn end(&self) {
        self.history().steps.back_mut().unwrap().done = Some(Instant::now());
    }

    /// What it may have been from this step on. None if that is too long ago.
    pub fn since(&self, step: u64) -> Option<Vec<Thing>> {
        let history = self.history();
        let skipped = usize::try_from(step.checked_sub(history.first)?).unwrap();
        Some(history.steps.iter().skip(skipped).map(|step| step.thing).collect())
    }
}
