//! What has arrived of a client and is not yet served, and the replies that are not yet sent.
//!
//! A request lies in one piece with its data, where the socket has put it, and is served from there; a page is loaded
//! into the reply that will be sent. So no byte is copied on its way, and none is cleared to be written over. Price:
//! the front of a request whose end has no room behind it is moved, once in a few large requests, and a client has as
//! much memory as its largest requests of late.

use crate::listen::Channel;
use std::io::{self, ErrorKind, IoSlice, Read};

/// Bytes that have arrived.
#[derive(Debug)]
pub(super) struct Input<R> {
    from: R,
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<R: Read> Input<R> {
    /// An input that holds so many bytes at most.
    pub(super) fn new(from: R, most: usize) -> Self {
        Self { from, bytes: vec![0; most].into(), start: 0, end: 0 }
    }

    /// Where they come from.
    pub(super) fn get_mut(&mut self) -> &mut R {
        &mut self.from
    }

    /// What has arrived.
    pub(super) fn buffer(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Whether there is room for so many bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        len <= self.bytes.len()
    }

    /// Waits until so many bytes are there, for which there is room. False where the stream ends before the first.
    pub(super) fn wait_for(&mut self, len: usize) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        while self.end - self.start < len {
            if self.bytes.len() - self.start < len {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.from.read(&mut self.bytes[self.end..]) {
                Ok(0) if self.start == self.end => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(more) => self.end += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Forgets bytes that are there.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len.min(self.end - self.start);
    }

    /// Fills `out`: with what is there, and with what comes.
    pub(super) fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        let here = out.len().min(self.end - self.start);
        let (first, rest) = out.split_at_mut(here);
        first.copy_from_slice(&self.buffer()[..here]);
        self.consume(here);
        self.from.read_exact(rest)
    }
}

/// Replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The replies, and behind them what earlier ones have left.
    bytes: Vec<u8>,
    len: usize,
}

impl Replies {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// So many bytes more, to be written: they may be anything.
    pub(super) fn grow(&mut self, len: usize) -> &mut [u8] {
        let from = self.len;
        self.len += len;
        if self.bytes.len() < self.len {
            self.bytes.resize(self.len, 0);
        }
        &mut self.bytes[from..self.len]
    }

    pub(super) fn extend(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.grow(bytes.len()).copy_from_slice(bytes);
    }

    /// Sends what there is, and these pages behind it, as far as it goes out without a wait. What is left is kept.
    pub(super) fn send_behind(&mut self, pages: &[&[u8]], to: &mut impl Channel) {
        let all = [self.as_slice()].into_iter().chain(pages.iter().copied());
        let pieces: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
        let mut sent = to.write_now(&pieces);
        let own = sent.min(self.len);
        self.bytes.copy_within(own..self.len, 0);
        self.len -= own;
        sent -= own;
        for page in pages {
            let here = sent.min(page.len());
            self.extend(&page[here..]);
            sent -= here;
        }
    }

    /// Takes back what was added after so many bytes.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Begins anew, with memory for so many bytes at most.
    pub(super) fn clear(&mut self, most: usize) {
        self.len = 0;
        if self.bytes.len() > most {
            self.bytes.truncate(most);
            self.bytes.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes in pieces of these lengths, in turn.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = self.1 % 7 + 1;
            let len = self.1.min(out.len()).min(self.0.len());
            out[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    #[test]
    fn what_arrives_in_pieces_is_found_in_one() {
        let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut input = Input::new(Pieces(&all, 0), 16);
        let (mut at, mut len) = (0, 0);
        assert!(input.has_room(16) && !input.has_room(17));
        while at < 980 {
            len = len % 16 + 1;
            assert!(input.wait_for(len).unwrap());
            assert_eq!(input.buffer()[..len], all[at..at + len]);
            input.consume(len);
            at += len;
        }
        let mut rest = vec![0; 1000 - at];
        input.read_exact(&mut rest).unwrap();
        assert_eq!(rest, all[at..]);
        assert!(!input.wait_for(1).unwrap(), "the end");
    }

    #[test]
    fn an_end_in_the_middle_is_an_error() {
        let mut input = Input::new(Pieces(&[1, 2, 3], 0), 16);
        assert_eq!(input.wait_for(4).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(input.wait_for(3).unwrap());
    }

    #[test]
    fn replies_hold_what_was_added() {
        let mut replies = Replies::default();
        replies.extend([1, 2]);
        replies.grow(3).fill(9);
        let before = replies.len();
        replies.extend([7; 100]);
        replies.truncate(before);
        replies.extend([4]);
        assert_eq!(replies.as_slice(), [1, 2, 9, 9, 9, 4]);
        replies.clear(3);
        replies.extend([5]);
        assert_eq!((replies.as_slice(), replies.bytes.len()), (&[5][..], 3));
    }
}
