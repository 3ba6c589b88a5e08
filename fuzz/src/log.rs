//! Logs of images, as the fuzzer makes them up.

use ramfold::codec::NAMES;
use ramfold::{PAGE_SIZE, Page};
use ramfold_disk::image::format::ReadError;
use ramfold_disk::image::log::{Change, Mark, find, replay, sealed};
use std::io::Cursor;

/// Pages of the disk.
const PAGES: u64 = 64;
const SEED: u128 = 0x1357_9bdf_0246_8ace;

/// A record of a log, with its own bytes.
#[derive(Debug, PartialEq, Eq)]
enum Owned {
    Page(u64, Box<Page>),
    Holes(u64, u64),
}

/// Gives the reader `data` as a mark, as a whole log, as changes of one, and as records under right sums.
pub fn log(data: &[u8]) {
    if let Some(mark) = Mark::parse(data) {
        assert!(mark.block()[..] == *data, "a mark is what it says");
    }
    let Some(([kind, groups], data)) = data.split_first_chunk() else { return };
    let mark = Mark { seed: SEED, codec: NAMES[usize::from(*kind) % NAMES.len()].to_owned() };
    changes_of(&mark, data);
    changed(&mark, usize::from(*groups % 8) + 1, data);
    forged(&mark, u32::from(*groups >> 6), data);
}

/// Whole groups of the front are given, and nothing else, whatever was done to the log.
fn changed(mark: &Mark, groups: usize, edits: &[u8]) {
    let record = |number: u64, kind: u16, data: &[u8]| {
        let len = u16::try_from(data.len()).expect("small");
        [&number.to_le_bytes()[..], &kind.to_le_bytes(), &len.to_le_bytes(), data].concat()
    };
    let payloads: Vec<Vec<u8>> = (0..groups as u64)
        .map(|group| [record(group, 2, &[7; 8]), record(9, 3, &(group + 1).to_le_bytes())].concat())
        .collect();
    let whole: Vec<(u32, &[u8])> = payloads.iter().map(|payload| (2, &payload[..])).collect();
    let mut log = sealed(SEED, &whole);
    let (all, _) = changes_of(mark, &log).expect("it is whole");
    assert_eq!(all.len(), 2 * groups);
    let len = log.len();
    for edit in edits.as_chunks::<3>().0 {
        log[usize::from(u16::from_le_bytes([edit[0], edit[1]])) % len] ^= edit[2];
    }
    log.truncate(len - usize::from(edits.first().copied().unwrap_or(0)) * 16 % len);
    if let Some((found, _)) = changes_of(mark, &log) {
        assert!(found.len().is_multiple_of(2) && found[..] == all[..found.len()]);
    }
}

/// Groups of any records: the first two bytes of each are its length.
fn forged(mark: &Mark, records: u32, mut data: &[u8]) {
    let mut groups = vec![];
    while let Some(([a, b], rest)) = data.split_first_chunk() {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*a, *b]))));
        groups.push((records + 1, payload));
        data = rest;
    }
    changes_of(mark, &sealed(SEED, &groups));
}

/// What is read, each within the disk, and how many groups; None if it is damaged.
fn changes_of(mark: &Mark, log: &[u8]) -> Option<(Vec<Owned>, u64)> {
    let mut found = vec![];
    let mut file = Cursor::new(log);
    let read = find(&mut file, 0, mark).and_then(|groups| {
        replay(&mut file, (0, groups), mark, PAGES, &mut |change| {
            found.push(match change {
                Change::Page(number, page) => {
                    assert!(number < PAGES && page.len() == PAGE_SIZE);
                    Owned::Page(number, Box::new(*page))
                }
                Change::Holes(number, count) => {
                    assert!(count > 0 && number + count <= PAGES);
                    Owned::Holes(number, count)
                }
            });
            Ok(())
        })?;
        Ok(groups.groups)
    });
    match read {
        Ok(groups) => Some((found, groups)),
        Err(ReadError::Damaged(_)) => None,
        Err(error) => panic!("{error}"),
    }
}
