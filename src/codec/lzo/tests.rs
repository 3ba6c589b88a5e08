//! Every instruction both ways, and liblzo2 as the other side.

use super::*;
use crate::codec::conformance::{codec_suite, pages, text_page};
use crate::page::PAGE_SIZE;
use std::io::Write;
use std::process::{Command, Stdio};

codec_suite!(Lzo::plain(), Lzo::with_zeros());

fn packed(codec: &Lzo, page: &Page) -> Vec<u8> {
    let mut out = [0; 2 * PAGE_SIZE];
    let length = codec.compress(&mut codec.scratch(), page, &mut out).unwrap();
    out[..length].to_vec()
}

fn restored(data: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut page = vec![0xee; len];
    decode::decode(data, &mut page).map(|()| page)
}

/// Each instruction of the description, with the state that it needs.
#[test]
fn every_instruction_is_read() {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let read = |data: &[u8], len| restored(&[data, &END].concat(), len).map(|page| text(&page));
    // Literals first: of one length that the first byte tells, and of one that it begins.
    assert_eq!(read(b"\x15abcd", 4).as_deref(), Some("abcd"));
    assert_eq!(read(b"\x02abcde", 5).as_deref(), Some("abcde"));
    assert_eq!(
        read(&[b"\x00\x01".as_slice(), &[b'x'; 19]].concat(), 19).as_deref(),
        Some("xxxxxxxxxxxxxxxxxxx")
    );
    // Three to eight bytes within 2 KiB, with a literal behind; it overlaps what it writes.
    assert_eq!(read(b"\x15abcd\x4d\x00e", 8).as_deref(), Some("abcdabce"));
    assert_eq!(read(b"\x15abcd\xe0\x00", 12).as_deref(), Some("abcddddddddd"));
    // After one to three literals: two bytes within 1 KiB.
    assert_eq!(read(b"\x13ab\x04\x00", 4).as_deref(), Some("abab"));
    // Within 16 KiB, with a length that does not fit.
    assert_eq!(read(b"\x15abcd\x20\x01\x0c\x00", 38).unwrap(), "abcd".repeat(10)[..38]);
    // No end, an end too early, bytes behind the end, a distance before the beginning.
    assert_eq!(restored(b"\x15abcd", 4), None);
    assert_eq!(read(b"\x15abcd", 5), None);
    assert_eq!(restored(b"\x15abcd\x11\0\0x", 4), None);
    assert_eq!(read(b"\x15abcd\x50\x01", 7), None);
}

/// Three bytes at 2 to 3 KiB, after four literals or more; far matches, beyond 16 KiB.
#[test]
fn distances_beyond_a_page_are_read() {
    let far = |len: usize, instruction: &[u8]| {
        let literals = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect::<Vec<_>>();
        let mut data = vec![0];
        data.extend(std::iter::repeat_n(0, (len - 19) / 255));
        data.push(((len - 19) % 255 + 1).to_le_bytes()[0]);
        let data = [&data, &literals[..], instruction, &END].concat();
        restored(&data, len + 3).map(|page| (page[len..].to_vec(), literals))
    };
    let (copy, literals) = far(3000, &[0, 0]).unwrap();
    assert_eq!(copy, literals[3000 - 2049..][..3]);
    let (copy, literals) = far(20_000, &[0x11, 4, 0]).unwrap();
    assert_eq!(copy, literals[20_000 - 16_385..][..3]);
    let (copy, literals) = far(40_000, &[0x19, 0, 0]).unwrap();
    assert_eq!(copy, literals[40_000 - 32_768..][..3]);
}

#[test]
fn runs_of_zeros_are_written_with_a_version_and_read_in_that_alone() {
    let mut page = text_page();
    page[1000..3500].fill(0);
    let [plain, with_zeros] = [Lzo::plain(), Lzo::with_zeros()].map(|codec| packed(&codec, &page));
    assert!(with_zeros.starts_with(&[VERSIONED, WITH_ZEROS]) && !plain.starts_with(&[VERSIONED]));
    for data in [&plain, &with_zeros] {
        assert!(restored(data, PAGE_SIZE).unwrap() == page);
    }
    let run = [17, 1, 21, b'a', b'b', b'c', b'd', 0x1a, 0xfd, 0xff, 1, b'e', 17, 0, 0];
    assert_eq!(restored(&run, 4 + 14 + 1).unwrap(), b"abcd\0\0\0\0\0\0\0\0\0\0\0\0\0\0e");
    assert_eq!(restored(&run[2..], 19), None);
}

/// Units of up to 64 KiB: what repeats beyond the reach of a match is none, and no match reads as a run.
#[test]
fn larger_units_come_back() {
    for len in [0, 1, 4, 19, 20, 21, 300, 16 << 10, 40_000, 49_152, MOST_BYTES] {
        for period in [1, 7, 250, 5_000, 16_383, 16_385, 32_767, 32_768, 40_000, 49_151, 60_000] {
            let unit: Vec<u8> = (0..len)
                .map(|at: usize| {
                    let place = at % period;
                    let word = (place / 5).wrapping_mul(0x9e37_79b9);
                    if place % 700 > 400 { 0 } else { (word >> (place % 5 * 4)).to_le_bytes()[0] }
                })
                .collect();
            for codec in [Lzo::plain(), Lzo::with_zeros()] {
                let mut out = vec![0; 2 * len + 64];
                let packed = codec.compress_unit(&mut codec.scratch(), &unit, &mut out).unwrap();
                let mut back = vec![0xee; len];
                codec.decompress_unit(&out[..packed], &mut back).unwrap();
                assert!(back == unit, "{len} bytes with period {period}, {}", codec.name());
            }
        }
    }
}

/// Any bytes, and those of a page with some changed, give an error or a page.
#[test]
fn wrong_bytes_lead_nowhere() {
    let good = packed(&Lzo::with_zeros(), &text_page());
    for at in 0..good.len() {
        for byte in [0, 1, 0x0f, 0x10, 0x1f, 0x20, 0x3f, 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            drop(restored(&bad, PAGE_SIZE));
            drop(restored(&bad[..at], PAGE_SIZE));
        }
    }
}

/// What liblzo2 makes of these; None if it is not there, which is told, and under CI=true an error.
fn by_liblzo2(what: &str, all: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codec/lzo/liblzo2.py");
    let started =
        Command::new("python3").args([script, what]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let sized = |bytes: &Vec<u8>| [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), &bytes[..]].concat();
    let input: Vec<u8> = all.iter().flat_map(sized).collect();
    let ended = started.map(|mut python| {
        let mut stdin = python.stdin.take().unwrap();
        let writing = std::thread::spawn(move || stdin.write_all(&input));
        let ended = python.wait_with_output().unwrap();
        drop(writing.join().unwrap());
        ended
    });
    let ended = ended.ok().filter(|ended| ended.status.code() != Some(77));
    if ended.is_none() {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "no liblzo2, and CI=true forbids skipping"
        );
        eprintln!("skipped: no python3, or no liblzo2.so.2");
    }
    let mut output = ended.map(|ended| (ended.status.success(), ended.stdout))?;
    assert!(output.0, "liblzo2 refuses");
    let mut parts = Vec::new();
    while let Some((size, rest)) = output.1.split_first_chunk::<4>() {
        let (part, rest) = rest.split_at(u32::from_le_bytes(*size) as usize);
        parts.push(part.to_vec());
        output.1 = rest.to_vec();
    }
    Some(parts)
}

#[test]
fn liblzo2_reads_what_is_written_and_writes_what_is_read() {
    let pages = pages();
    let ours: Vec<_> = pages.iter().map(|page| packed(&Lzo::plain(), page)).collect();
    let whole: Vec<_> = pages.iter().map(|page| page.to_vec()).collect();
    let Some(back) = by_liblzo2("decompress", &ours) else { return };
    assert!(back == whole);
    let theirs = by_liblzo2("compress", &whole).unwrap();
    for (data, page) in theirs.iter().zip(&whole) {
        assert!(restored(data, PAGE_SIZE).as_ref() == Some(page));
    }
    let [ours, theirs] = [ours, theirs].map(|all| all.iter().map(Vec::len).sum::<usize>());
    assert!(ours * 100 <= theirs * 101, "{ours} bytes, {theirs} of liblzo2");
}
