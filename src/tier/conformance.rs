//! What every tier must do, run by each implementation through [`tier_suite`].
//!
//! A tier is made for a bound in bytes. The oracle is a list of slots and what was written under them; what a
//! record holds follows from its number.

use super::{ReadError, Slot, Tier, WriteError};
use std::collections::BTreeSet;

/// Makes a tier that takes `bytes` of records at most, more or less.
pub(super) type Make<'a> = &'a dyn Fn(u64) -> Box<dyn Tier>;

/// The next number of a small generator (Marsaglia's xorshift64).
pub(super) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The record of this number: its length and all its bytes follow from it.
pub(super) fn record(number: u64) -> Vec<u8> {
    let mut seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let length = 1 + next(&mut seed) % if number.is_multiple_of(5) { 4096 } else { 1500 };
    (0..length).map(|_| next(&mut seed).to_le_bytes()[3]).collect()
}

/// Asserts that the slot holds the record of this number.
pub(super) fn assert_holds(tier: &dyn Tier, slot: Slot, number: u64) {
    let mut out = [0xee; 4200];
    let length = tier.read(slot, &mut out).unwrap_or_else(|error| panic!("record {number}: {error}"));
    assert!(out[..length] == record(number), "record {number} of {length} bytes");
    assert!(out[length..].iter().all(|byte| *byte == 0xee), "written behind the record");
}

/// Writes the records of these numbers.
pub(super) fn write(tier: &dyn Tier, numbers: std::ops::Range<u64>) -> Result<Vec<(Slot, u64)>, WriteError> {
    let records: Vec<_> = numbers.clone().map(record).collect();
    let slots = tier.write(&records.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    Ok(slots.into_iter().zip(numbers).collect())
}

/// Every length comes back; slots are different and in the order of the records.
pub(super) fn keeps_every_length(make: Make) {
    let tier = make(64 << 20);
    let bytes: Vec<u8> = record(5).iter().copied().cycle().take(4096).collect();
    let records: Vec<_> = (1..=4096).map(|length| &bytes[..length]).collect();
    let slots = tier.write(&records).unwrap();
    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 4096);
    for (slot, record) in slots.iter().zip(&records) {
        assert_eq!(Slot::from_bits(slot.to_bits()), *slot);
        let mut out = [0; 4096];
        assert_eq!(tier.read(*slot, &mut out).unwrap(), record.len());
        assert!(out[..record.len()] == **record);
        let mut exact = vec![0; record.len()];
        assert_eq!(tier.read(*slot, &mut exact).unwrap(), record.len());
    }
    assert!(tier.used_bytes() >= 4096 * 4097 / 2);
    assert!(tier.meta_bytes() > 0);
}

/// Nothing written is no slot, and what is no record is refused.
pub(super) fn refuses_what_is_no_record(make: Make) {
    let tier = make(64 << 20);
    assert!(tier.write(&[]).unwrap().is_empty());
    for wrong in [&[] as &[u8], &[0; 4097]] {
        assert!(matches!(tier.write(&[b"good", wrong]), Err(WriteError::Io(_))));
    }
    assert_eq!(tier.used_bytes(), 0);
    let slot = tier.write(&[b"four"]).unwrap()[0];
    assert!(matches!(tier.read(slot, &mut [0; 3]), Err(ReadError::Io(_))));
    assert_eq!(tier.read(slot, &mut [0; 4]).unwrap(), 4);
}

/// At its bound it is full, as a whole: nothing of the batch stays, nothing else is hurt, and what is discarded
/// makes room again.
pub(super) fn is_full_at_its_bound(make: Make) {
    let tier = make(4 << 20);
    let mut live = vec![];
    loop {
        let from = live.len() as u64;
        match write(&*tier, from..from + 64) {
            Ok(slots) => live.extend(slots),
            Err(error) => {
                assert!(matches!(error, WriteError::Full), "{error}");
                break;
            }
        }
    }
    assert!(tier.used_bytes() > 2 << 20 && tier.used_bytes() <= 4 << 20, "{} bytes", tier.used_bytes());
    for _ in 0..3 {
        assert!(matches!(write(&*tier, 0..2000), Err(WriteError::Full)));
        live.iter().for_each(|(slot, number)| assert_holds(&*tier, *slot, *number));
    }
    live.drain(..).for_each(|(slot, _)| tier.discard(slot));
    let again = write(&*tier, 1000..2000).unwrap();
    again.iter().for_each(|(slot, number)| assert_holds(&*tier, *slot, *number));
}

/// All discarded, nothing is used but what is open.
pub(super) fn gives_space_back(make: Make) {
    let tier = make(64 << 20);
    for round in 0..5 {
        let slots = write(&*tier, round * 4000..(round + 1) * 4000).unwrap();
        slots.iter().rev().for_each(|(slot, _)| tier.discard(*slot));
        assert!(tier.used_bytes() <= 1 << 20, "{} bytes", tier.used_bytes());
    }
}

/// Whatever is written and discarded in whatever order, under a bound, what is live is as it was written.
pub(super) fn agrees_with_a_list(make: Make) {
    for seed in 1..4u64 {
        let mut random = seed;
        let tier = make(6 << 20);
        let mut live: Vec<(Slot, u64)> = vec![];
        let mut number = 0;
        for _ in 0..800 {
            let some = 1 + next(&mut random) % 100;
            // About 4 of the 6 MiB are live at most.
            while live.len() as u64 + some > 4200 {
                let at = usize::try_from(next(&mut random)).unwrap() % live.len();
                tier.discard(live.swap_remove(at).0);
            }
            let slots = write(&*tier, number..number + some).expect("a third of the space is free");
            number += some;
            live.extend(slots);
            for _ in 0..5 {
                let (slot, number) = live[usize::try_from(next(&mut random)).unwrap() % live.len()];
                assert_holds(&*tier, slot, number);
            }
        }
        assert_eq!(live.iter().map(|(slot, _)| slot).collect::<BTreeSet<_>>().len(), live.len());
        live.iter().for_each(|(slot, number)| assert_holds(&*tier, *slot, *number));
    }
}

/// Threads that write, read and discard their own records at once do not hurt each other.
pub(super) fn serves_threads(make: Make) {
    let tier = make(8 << 20);
    let tier = &*tier;
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            scope.spawn(move || {
                let (mut random, mut live) = (thread, vec![]);
                for round in 0..150 {
                    let from = thread * 1_000_000 + round * 100;
                    live.extend(write(tier, from..from + 1 + next(&mut random) % 60).expect("half is free"));
                    while live.len() > 900 {
                        let at = usize::try_from(next(&mut random)).unwrap() % live.len();
                        tier.discard(live.swap_remove(at).0);
                    }
                    for _ in 0..20 {
                        let (slot, number) = live[usize::try_from(next(&mut random)).unwrap() % live.len()];
                        assert_holds(tier, slot, number);
                    }
                }
                live.iter().for_each(|(slot, number)| assert_holds(tier, *slot, *number));
            });
        }
    });
}

/// The suite for a tier: `tier_suite!(|bytes| Box::new(MyTier::new(bytes)));`.
macro_rules! tier_suite {
    ($make:expr) => {
        $crate::tier::conformance::tier_suite!(@tests [$make]
            keeps_every_length refuses_what_is_no_record is_full_at_its_bound gives_space_back
            agrees_with_a_list serves_threads);
    };
    (@tests [$make:expr] $($test:ident)+) => {
        $(#[test]
        fn $test() {
            let make: &dyn Fn(u64) -> Box<dyn $crate::tier::Tier> = &$make;
            $crate::tier::conformance::$test(make);
        })+
    };
    (@tests $make:tt $($test:ident)+) => {
        $($crate::tier::conformance::tier_suite!(@tests $make $test);)+
    };
}
pub(super) use tier_suite;
