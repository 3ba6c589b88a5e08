//! What the fuzz targets do with their bytes. A panic, a sanitizer's report or a failed assertion is a finding.

pub mod image;
pub mod log;
pub mod nbd;
pub mod virtio;

use ramfold::PAGE_SIZE;
use ramfold::codec::{self, Codec, Dictionary, Scratch, Zstd};
use ramfold::tier::file::{EXTENT_BYTES, LocalExtents};
use ramfold::tier::{FileTier, ReadError, Slot, Tier};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock, Mutex};

/// One of each codec, and zstd with dictionaries, with a scratch that lives through all inputs, as a thread's does.
static CODECS: LazyLock<Mutex<Vec<(Box<dyn Codec>, Scratch)>>> = LazyLock::new(|| {
    let named = codec::NAMES.iter().map(|name| codec::by_name(name).expect("a name of NAMES"));
    let with = |level, bytes: Vec<u8>| {
        let dictionary = Arc::new(Dictionary::new(bytes).expect("a dictionary"));
        Box::new(Zstd::with_dictionary(level, dictionary).expect("a dictionary")) as Box<dyn Codec>
    };
    let made = named.chain([with(3, trained()), with(9, trained()), with(1, page_of(b"any bytes").to_vec())]);
    let with_scratch = |codec: Box<dyn Codec>| {
        let scratch = codec.scratch();
        (codec, scratch)
    };
    Mutex::new(made.map(with_scratch).collect())
});

/// A dictionary of pages that have much in common.
fn trained() -> Vec<u8> {
    let pages: Vec<_> = (0..64u8)
        .map(|number| {
            let mut page = page_of(b"a page that the others are like");
            page.rotate_left(usize::from(number) * 61);
            page[..64].fill(number);
            page
        })
        .collect();
    codec::train(&pages, 4096).expect("they have")
}

/// Takes `data` for a dictionary, and changes by it for one that was trained. What is taken has to give back pages, and
/// survive `data` as a page.
pub fn dictionary(data: &[u8]) {
    let mut changed = trained();
    for edit in data.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % changed.len();
        changed[at] ^= edit[2];
    }
    for bytes in [data.to_vec(), changed] {
        let Ok(dictionary) = Dictionary::new(bytes).map(Arc::new) else { continue };
        for level in [-1, 3, 9] {
            let Ok(codec) = Zstd::with_dictionary(level, Arc::clone(&dictionary)) else { continue };
            let scratch = &mut codec.scratch();
            let (mut packed, mut again) = ([0; ROOM], [0; PAGE_SIZE]);
            let page = page_of(&data[..data.len().min(16)]);
            let length = codec.compress(scratch, &page, &mut packed).expect("room for any page");
            codec.decompress(scratch, &packed[..length], &mut again).expect("what was just compressed");
            assert!(page == again);
            restore(&codec, scratch, data);
        }
    }
}

/// Gives every codec `data`, and a page it made itself of the first bytes of `data` with changes by the rest.
pub fn decompress(data: &[u8]) {
    for (codec, scratch) in CODECS.lock().expect("no panic before").iter_mut() {
        restore(&**codec, scratch, data);
        let mut packed = [0; ROOM];
        let (seed, edits) = data.split_at(data.len().min(16));
        let length = codec.compress(scratch, &page_of(seed), &mut packed).expect("room for any page");
        for edit in edits.as_chunks::<3>().0 {
            packed[usize::from(u16::from_le_bytes([edit[0], edit[1]])) % length] ^= edit[2];
        }
        let cut = usize::from(data.last().copied().unwrap_or(0)) % 4;
        restore(&**codec, scratch, &packed[..length.saturating_sub(cut)]);
    }
}

/// Room for any compressed page.
const ROOM: usize = 2 * PAGE_SIZE;

/// Restores a page from `data`. What comes out must go in and come out again as the same page.
fn restore(codec: &dyn Codec, scratch: &mut Scratch, data: &[u8]) {
    let mut page = [0; PAGE_SIZE];
    if codec.decompress(scratch, data, &mut page).is_err() {
        return;
    }
    let (mut packed, mut again) = ([0; ROOM], [0; PAGE_SIZE]);
    let length = codec.compress(scratch, &page, &mut packed).expect("room for any page");
    codec.decompress(scratch, &packed[..length], &mut again).expect("what was just compressed");
    assert!(page == again, "{} does not restore a page", codec.name());
}

/// A page of pieces of `seed` and what follows from it: with matches, literals and runs for a codec to find.
fn page_of(seed: &[u8]) -> [u8; PAGE_SIZE] {
    let mut state = seed.iter().fold(1u32, |state, byte| state.wrapping_mul(0x0100_0193) ^ u32::from(*byte));
    std::array::from_fn(|at| {
        if at % 64 == 0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        }
        let [kind, byte, shift, _] = state.to_le_bytes();
        match kind % 3 {
            0 => byte,
            1 => seed.get((at + usize::from(shift)) % seed.len().max(1)).copied().unwrap_or(byte),
            _ => byte.wrapping_mul(at.to_le_bytes()[0]).rotate_left(u32::from(shift % 8)),
        }
    })
}

/// Parses `data` after the first line of a trace. What is understood has to mean the same when it is written again.
pub fn trace(data: &[u8]) {
    use ramfold_survey::trace::{parse, text};
    let _ = parse(data);
    if let Ok(operations) = parse(&[b"ramfold-trace 1\n", data].concat()[..]) {
        assert_eq!(parse(text(&operations).as_bytes()), Ok(operations));
    }
}

/// Bytes of the file that the input decides on.
const HURT: u64 = 2 * EXTENT_BYTES as u64;

/// Writes records, then `data` over the file: pieces of a place (3 bytes), a length (1 byte) and bytes. Each
/// record must then be as it was written or be reported as corrupt, the cleaner running over all of it included.
pub fn records(data: &[u8]) {
    let memory = rustix::fs::memfd_create("tier", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let file = File::from(memory);
    let extents = Box::new(LocalExtents::new(HURT + u64::from(EXTENT_BYTES)));
    let tier = FileTier::new(file.try_clone().expect("a descriptor"), extents);
    let mut live = vec![];
    for round in 0..8 {
        append(&tier, round, &mut live);
    }
    // Sparse enough to be cleaned.
    live.retain(|(slot, fill)| {
        let keep = fill % 4 == 0;
        if !keep {
            tier.discard(*slot);
        }
        keep
    });
    overwrite(&file, data);
    check(&tier, &live);
    for round in 8..16 {
        append(&tier, round, &mut live);
    }
    check(&tier, &live);
    live.into_iter().for_each(|(slot, _)| tier.discard(slot));
}

/// 64 records of 4000 bytes, as far as there is room.
fn append(tier: &FileTier, round: u8, live: &mut Vec<(Slot, u8)>) {
    let records: Vec<_> =
        (0..64u8).map(|number| [round.wrapping_mul(64).wrapping_add(number); 4000]).collect();
    if let Ok(slots) = tier.write(&records.iter().map(|record| &record[..]).collect::<Vec<_>>()) {
        live.extend(slots.into_iter().zip(records.iter().map(|record| record[0])));
    }
}

fn overwrite(file: &File, mut data: &[u8]) {
    while let Some(([a, b, c, length], rest)) = data.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        let at = u64::from(u32::from_le_bytes([*a, *b, *c, 0])) % HURT;
        file.write_all_at(bytes, at).expect("memory");
        data = rest;
    }
}

fn check(tier: &FileTier, live: &[(Slot, u8)]) {
    for (slot, fill) in live {
        let mut out = [0; 4096];
        match tier.read(*slot, &mut out) {
            Ok(length) => assert!(length == 4000 && out[..length].iter().all(|byte| byte == fill)),
            Err(ReadError::Corrupt) => {}
            Err(ReadError::Io(error)) => panic!("{error}"),
        }
    }
}
