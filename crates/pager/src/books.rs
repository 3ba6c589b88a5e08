//! The store's counters, entered into the segment where `ramfold run` and others read them.

use crate::segment::{Counter, Gauge};
use crate::usage::Account;
use ramfold::Stats;

/// What was entered last: counters of the segment are sums over all processes, so only growth is added.
#[derive(Debug, Default)]
pub(crate) struct Books {
    entered: Vec<u64>,
}

impl Books {
    /// Enters gauges as they are, and counters by what they grew.
    pub(crate) fn publish(&mut self, account: &Account, stats: &Stats) {
        let fields = stats.fields();
        self.entered.resize(fields.len(), 0);
        for ((name, value), entered) in fields.into_iter().zip(&mut self.entered) {
            if let Some(counter) = Counter::ALL.iter().find(|counter| counter.name() == name) {
                account.segment.add(*counter, value.saturating_sub(*entered));
                *entered = value;
            } else if let Some(gauge) = Gauge::ALL.iter().find(|gauge| gauge.name() == name)
                && !gauge.is_charged()
            {
                account.segment.publish(account.slot(), *gauge, value);
            }
        }
    }

    /// In a forked child: what the parent did before the fork is entered already.
    pub(crate) fn skip(&mut self, stats: &Stats) {
        self.entered = stats.fields().into_iter().map(|(_, value)| value).collect();
    }
}
