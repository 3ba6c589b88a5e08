//! What every codec must do, run by each implementation through [`codec_suite`].

use super::{Codec, CompressError, Dictionary, train};
use crate::page::{PAGE_SIZE, Page};
use proptest::prelude::*;
use std::cell::RefCell;
use std::sync::{Arc, Barrier};

/// Any codec's output for any page fits: a page and what the format adds to bytes it cannot pack.
const ROOM: usize = PAGE_SIZE + 128;

/// The next number of a small generator (Marsaglia's xorshift64).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A page that no codec packs.
pub(super) fn random_page(mut seed: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.fill_with(|| (next(&mut seed) >> 32).to_le_bytes()[0]);
    page
}

/// A page of words of a small vocabulary.
pub(super) fn text_page() -> Page {
    let words =
        ["page", "pool", "handle", "fault", "the", "of", "a", "store", "load", "tier", "evicted", "is"];
    let (mut seed, mut text) = (7, String::new());
    while text.len() < PAGE_SIZE {
        text += words[usize::try_from(next(&mut seed) % 12).unwrap()];
        text += if next(&mut seed).is_multiple_of(9) { ",\n" } else { " " };
    }
    text.as_bytes()[..PAGE_SIZE].try_into().unwrap()
}

/// A page of pointers into one heap, as programs have them.
fn pointer_page() -> Page {
    let mut seed = 3;
    let mut page = [0; PAGE_SIZE];
    for word in page.as_chunks_mut::<8>().0 {
        *word = (0x7f3a_0000_0000 + (next(&mut seed) % (1 << 20)) * 16).to_le_bytes();
    }
    page
}

/// Kinds of pages: those that pack to nothing, well, badly, not at all, and up to the last byte differently.
pub(super) fn pages() -> Vec<Page> {
    let mut half = random_page(5);
    half[PAGE_SIZE / 2..].fill(0);
    let mut late = [0; PAGE_SIZE];
    late[PAGE_SIZE - 1] = 1;
    let ramp = std::array::from_fn(|at| at.to_le_bytes()[0]);
    let far = std::array::from_fn(|at| if at % 1024 < 8 { 1 } else { random_page(9)[at / 256] });
    vec![
        [0; PAGE_SIZE],
        [0xff; PAGE_SIZE],
        text_page(),
        pointer_page(),
        random_page(1),
        half,
        late,
        ramp,
        far,
    ]
}

/// Trained from pages of the small vocabulary.
pub(super) fn dictionary() -> Arc<Dictionary> {
    let pages: Vec<Page> = (0..64)
        .map(|turn| {
            let mut page = text_page();
            page.rotate_left(turn * 61);
            page[..16].copy_from_slice(&random_page(turn as u64 + 1)[..16]);
            page
        })
        .collect();
    Arc::new(Dictionary::new(train(&pages, 4096).unwrap()).unwrap())
}

/// Made of runs, copies of what was before and random bytes: what a proptest finds corners with.
fn any_page() -> impl Strategy<Value = Page> {
    let piece = (0..3u8, any::<u64>(), 1..600usize);
    proptest::collection::vec(piece, 1..40).prop_map(|pieces| {
        let mut bytes = vec![];
        for (kind, mut seed, length) in pieces.into_iter().cycle() {
            let start = bytes.len();
            for at in 0..length {
                bytes.push(match kind {
                    0 => seed.to_le_bytes()[0],
                    1 => next(&mut seed).to_le_bytes()[3],
                    _ => bytes.get((start / 2) + at).copied().unwrap_or(0),
                });
            }
            if bytes.len() >= PAGE_SIZE {
                break;
            }
        }
        bytes[..PAGE_SIZE].try_into().unwrap()
    })
}

fn compress(codec: &dyn Codec, page: &Page) -> Vec<u8> {
    let mut out = vec![0; ROOM];
    let length = codec.compress(&mut codec.scratch(), page, &mut out).unwrap();
    out.truncate(length);
    out
}

/// Every kind of page comes back, with one scratch for all, in any order, and into a page that was not empty.
pub(super) fn round_trips(codec: &dyn Codec) {
    let mut scratch = codec.scratch();
    for _ in 0..2 {
        for page in pages() {
            let mut out = [0; ROOM];
            let length = codec.compress(&mut scratch, &page, &mut out).unwrap();
            assert_eq!(out[..length], compress(codec, &page), "an old scratch changes the result");
            let mut restored = [0xee; PAGE_SIZE];
            codec.decompress(&mut scratch, &out[..length], &mut restored).unwrap();
            assert!(restored == page);
        }
    }
    assert!(compress(codec, &text_page()).len() < PAGE_SIZE * 3 / 4);
    assert!(compress(codec, &[0; PAGE_SIZE]).len() < 64);
}

/// Pages that chance puts together come back.
pub(super) fn round_trips_any(codec: &dyn Codec) {
    let scratch = RefCell::new(codec.scratch());
    proptest!(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() }, |(page in any_page())| {
        let scratch = &mut *scratch.borrow_mut();
        let mut out = [0; ROOM];
        let length = codec.compress(scratch, &page, &mut out).unwrap();
        let mut restored = [0; PAGE_SIZE];
        codec.decompress(scratch, &out[..length], &mut restored).unwrap();
        prop_assert!(restored == page);
    });
}

/// In an `out` that is too small a page is too poor, and nothing is written behind it; in a larger one it is
/// the same page. A codec may ask for some bytes more than it uses in the end.
pub(super) fn keeps_to_out(codec: &dyn Codec) {
    for page in pages() {
        let mut scratch = codec.scratch();
        let needed = compress(codec, &page).len();
        let near = needed.saturating_sub(20)..=(needed + 20).min(ROOM);
        for room in (0..64).chain(near).chain([PAGE_SIZE / 2, PAGE_SIZE]) {
            let mut out = vec![0xa5; room + 32];
            match codec.compress(&mut scratch, &page, &mut out[..room]) {
                Ok(length) => {
                    assert!(length <= room);
                    let mut restored = [0; PAGE_SIZE];
                    codec.decompress(&mut scratch, &out[..length], &mut restored).unwrap();
                    assert!(restored == page);
                }
                Err(error) => {
                    assert_eq!(error, CompressError::TooPoor);
                    assert!(room < needed + 16, "{room} bytes refused, {needed} would do");
                }
            }
            assert!(out[room..].iter().all(|byte| *byte == 0xa5), "written behind {room} bytes");
        }
        assert_eq!(codec.compress(&mut scratch, &page, &mut []), Err(CompressError::TooPoor));
    }
}

/// Cut, flipped and arbitrary bytes give an error or a page, and the scratch works on.
pub(super) fn survives_wrong_bytes(codec: &dyn Codec) {
    let mut scratch = codec.scratch();
    let mut restored = [0; PAGE_SIZE];
    for page in pages() {
        let good = compress(codec, &page);
        for length in (0..good.len()).step_by(good.len() / 200 + 1) {
            assert!(
                codec.decompress(&mut scratch, &good[..length], &mut restored).is_err(),
                "cut at {length}"
            );
        }
        for bit in (0..good.len() * 8).step_by(good.len() / 100 + 1) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = codec.decompress(&mut scratch, &bad, &mut restored);
        }
        codec.decompress(&mut scratch, &good, &mut restored).unwrap();
        assert!(restored == page, "wrong bytes spoil the scratch");
    }
    let scratch = RefCell::new(scratch);
    let bytes = proptest::collection::vec(any::<u8>(), 0..ROOM);
    proptest!(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() }, |(data in bytes)| {
        let _ = codec.decompress(&mut scratch.borrow_mut(), &data, &mut [0; PAGE_SIZE]);
    });
}

/// One codec serves two threads, each with its scratch, one of which was made elsewhere.
pub(super) fn serves_two_threads(codec: &dyn Codec) {
    let start = Barrier::new(2);
    let work = |mut scratch: super::Scratch, seed: u64| {
        start.wait();
        for round in 0..40 {
            let mut page = text_page();
            page[..512].copy_from_slice(&random_page(seed * 1000 + round)[..512]);
            let mut out = [0; ROOM];
            let length = codec.compress(&mut scratch, &page, &mut out).unwrap();
            let mut restored = [0; PAGE_SIZE];
            codec.decompress(&mut scratch, &out[..length], &mut restored).unwrap();
            assert!(restored == page);
        }
    };
    let elsewhere = codec.scratch();
    std::thread::scope(|scope| {
        scope.spawn(|| work(elsewhere, 1));
        work(codec.scratch(), 2);
    });
}

/// The suite for some codecs: `codec_suite!(Zstd::new(-1), Zstd::new(3));`.
macro_rules! codec_suite {
    ($($codec:expr),+) => {
        $crate::codec::conformance::codec_suite!(@tests [$($codec),+]
            round_trips round_trips_any keeps_to_out survives_wrong_bytes serves_two_threads);
    };
    (@tests $codecs:tt $($test:ident)+) => {
        $(#[test]
        fn $test() {
            let codecs: Vec<Box<dyn $crate::codec::Codec>> =
                $crate::codec::conformance::codec_suite!(@boxes $codecs);
            for codec in codecs {
                $crate::codec::conformance::$test(&*codec);
            }
        })+
    };
    (@boxes [$($codec:expr),+]) => { vec![$(Box::new($codec)),+] };
}
pub(super) use codec_suite;
