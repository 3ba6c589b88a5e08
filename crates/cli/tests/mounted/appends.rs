//! What is appended (O_APPEND) by several at once, through the mount and behind it.
//!
//! Each appends pieces that tell who has written them. What comes from behind the mount has the upper bit set in each
//! byte, so it is told from what comes through it wherever they meet.

use crate::behind::with_mount;
use crate::mounted::{both, content, wait_for};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Bytes in front of each piece: who has appended it, which of his it is, how long.
const HEAD: usize = 24;
const BEHIND: u8 = 0x80;

fn piece(writer: usize, number: usize, len: usize) -> Vec<u8> {
    let mut piece = format!("{writer:4}{number:8}{len:12}").into_bytes();
    let seed = (writer << 32 | number) as u64;
    piece.extend(content(seed, len - HEAD).iter().map(|byte| byte & !BEHIND));
    piece
}

/// Appends so many pieces of up to so many bytes, each by one write.
fn append(path: &Path, mark: u8, writer: usize, count: usize, most: usize) {
    let mut file = File::options().append(true).open(path).unwrap();
    for number in 0..count {
        let len = HEAD + (number * 7919 + writer * 104_729) % (most - HEAD + 1);
        let piece: Vec<u8> = piece(writer, number, len).iter().map(|byte| byte | mark).collect();
        assert_eq!(file.write(&piece).unwrap(), len);
    }
}

/// Takes whole pieces, each writer's in order, and nothing else.
#[derive(Default)]
struct Book(HashMap<usize, usize>);

impl Book {
    fn enter(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            let head = rest.get(..HEAD).and_then(|head| std::str::from_utf8(head).ok()).expect("a head");
            let [writer, number, len] =
                [&head[..4], &head[4..12], &head[12..]].map(|word| word.trim().parse::<usize>().unwrap());
            let wanted = self.0.entry(writer).or_insert(0);
            assert_eq!(number, *wanted, "of writer {writer}");
            *wanted += 1;
            let (found, more) = rest.split_at_checked(len).expect("a whole piece");
            assert!(found == piece(writer, number, len), "piece {number} of writer {writer} is not whole");
            rest = more;
        }
    }

    fn insist_on(&self, writers: usize, count: usize) {
        assert!(self.0.len() == writers && self.0.values().all(|number| *number == count), "{:?}", self.0);
    }
}

#[test]
fn what_is_appended_goes_to_the_end_that_others_have_moved() {
    with_mount(|_, source, point| {
        fs::write(source.join("log"), "").unwrap();
        let appender = |at: &Path| File::options().append(true).open(at.join("log")).unwrap();
        let (mut behind, mut through, mut other) = (appender(source), appender(point), appender(point));
        for _ in 0..50 {
            behind.write_all(b"behind\n").unwrap();
            through.write_all(b"one\n").unwrap();
            other.write_all(b"two\n").unwrap();
        }
        let expected = "behind\none\ntwo\n".repeat(50);
        assert_eq!(fs::read_to_string(source.join("log")).unwrap(), expected);
        wait_for("the mount shows it", || fs::read_to_string(point.join("log")).unwrap() == expected);
    });
}

/// What goes through the mount may come in parts, and nothing but what comes from behind it between them.
#[test]
fn nothing_is_lost_of_what_is_appended_through_the_mount_and_behind_it() {
    const COUNT: usize = 60;
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("log"), point.join("log"));
        File::create(&behind).unwrap();
        std::thread::scope(|scope| {
            for (writer, (path, mark)) in
                [(&behind, BEHIND), (&through, 0)].into_iter().cycle().take(4).enumerate()
            {
                scope.spawn(move || append(path, mark, writer, COUNT, 200_000));
            }
        });
        let (all, mut book) = (fs::read(&behind).unwrap(), Book::default());
        let runs = all.chunk_by(|one, next| one & BEHIND == next & BEHIND);
        let (from_behind, rest): (Vec<&[u8]>, Vec<&[u8]>) = runs.partition(|run| run[0] & BEHIND != 0);
        for run in from_behind {
            book.enter(&run.iter().map(|byte| byte & !BEHIND).collect::<Vec<_>>());
        }
        book.enter(&rest.concat());
        book.insist_on(4, COUNT);
        wait_for("the mount shows it", || fs::read(&through).unwrap() == all);
    });
}

/// However long it is.
#[test]
fn what_several_append_through_the_mount_is_whole() {
    const COUNT: usize = 12;
    both(|directory| {
        let path = directory.join("log");
        File::create(&path).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || append(path, 0, writer, COUNT, 1 << 20));
            }
        });
        let mut book = Book::default();
        book.enter(&fs::read(&path).unwrap());
        book.insist_on(4, COUNT);
    });
}
