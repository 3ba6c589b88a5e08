//! Sequential use, recognised from the faults, so that a fault can bring its neighbours along.
//!
//! The idea is that of the page cache's readahead (`mm/readahead.c`): a fault where one was expected doubles
//! the window, any other fault starts a new stream with a window of one page. A few streams are followed at a
//! time, so that a merge of several sequences, or two threads, do not disturb each other. The price of a wrong
//! guess is some pages brought back in vain; random use never gets there, because a second fault has to hit the
//! very page expected.
//!
//! A sequence causes no faults where pages are there already. One that begins behind such pages is taken to be the one
//! that ended before them.

const STREAMS: usize = 8;
/// Pages after which a sequence is taken to go on: 2 MiB.
const SUSTAINED: usize = 512;
/// Most pages that a sequence may have gone over without a fault: 256 MiB.
const LEAP: usize = 1 << 16;

/// The sequences now followed.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    table: [Stream; STREAMS],
    clock: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct Stream {
    /// The page that would go on the sequence.
    next: usize,
    window: usize,
    /// The sum of all windows.
    suggested: usize,
    used: u32,
}

impl Stream {
    fn is_sustained(&self) -> bool {
        self.suggested > SUSTAINED
    }

    /// How many pages it may go over without a fault: as far as it has come.
    fn reach(&self) -> usize {
        if self.is_sustained() { LEAP } else { self.suggested }
    }
}

/// What a fault should bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// So many pages, the one that is touched included.
    pub(crate) pages: usize,
    /// They are part of a sequence that has been going on for long.
    pub(crate) sustained: bool,
}

impl Streams {
    /// What to bring, from this page on, for a fault on `page`: 1..=`most` pages. `there` tells of a page before it
    /// whether a touch causes no fault.
    pub(crate) fn ahead(&mut self, page: usize, most: usize, there: impl Fn(usize) -> bool) -> Ahead {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        if let Some(stream) = self.table.iter_mut().find(|stream| stream.next == page && page != 0) {
            stream.window = (stream.window.max(1) * 2).min(most);
            stream.next = page + stream.window;
            stream.used = clock;
            stream.suggested += stream.window;
            return Ahead { pages: stream.window, sustained: stream.is_sustained() };
        }
        let leapt = self.leapt(page, there).copied();
        let window = leapt.map_or(1, |stream| stream.window.min(most));
        let suggested = leapt.map_or(0, |stream| stream.suggested) + window;
        let oldest = self
            .table
            .iter_mut()
            .max_by_key(|stream| clock.wrapping_sub(stream.used))
            .expect("there is more than one stream");
        *oldest = Stream { next: page + window, window, suggested, used: clock };
        Ahead { pages: window, sustained: oldest.is_sustained() }
    }

    /// The sequence that ended before the pages, all of them there, that lie before `page`.
    fn leapt(&self, page: usize, there: impl Fn(usize) -> bool) -> Option<&Stream> {
        let near = |stream: &&Stream| stream.next < page && page - stream.next <= stream.reach();
        let stream = self.table.iter().filter(near).max_by_key(|stream| stream.next)?;
        (stream.next..page).rev().all(there).then_some(stream)
    }

    /// Tells how many pages were really brought for the fault on `page`, of the window that was suggested.
    pub(crate) fn brought(&mut self, page: usize, window: usize, pages: usize) {
        if let Some(stream) = self.table.iter_mut().find(|stream| stream.next == page + window) {
            stream.next = page + pages;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: usize) -> bool {
        false
    }

    #[test]
    fn a_scan_grows_its_window_and_random_faults_do_not() {
        let mut streams = Streams::default();
        let mut page = 100;
        let mut windows = Vec::new();
        for _ in 0..7 {
            let window = streams.ahead(page, 16, nothing).pages;
            assert_eq!(streams.ahead(page * 7919 + 3, 16, nothing).pages, 1);
            page += window;
            windows.push(window);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_sequence_is_sustained_after_two_mebibytes() {
        let mut streams = Streams::default();
        let mut page = 100;
        while !streams.ahead(page, 16, nothing).sustained {
            page += streams.table.iter().find(|stream| stream.next > page).unwrap().window;
            assert!(page < 100 + SUSTAINED + 16, "after {page} pages");
        }
        assert!(page >= 100 + SUSTAINED - 16);
        assert!(!streams.ahead(7, 16, |_| true).sustained, "another");
        let end = page + 16;
        assert!(!streams.ahead(end + 1000, 16, |page| page != end + 500).sustained, "another");
        assert_eq!(streams.ahead(end + 900, 16, |_| true), Ahead { pages: 16, sustained: true });
        assert_eq!(streams.ahead(end + 916, 16, nothing), Ahead { pages: 16, sustained: true });
    }

    #[test]
    fn a_cut_window_is_continued_where_it_ended() {
        let mut streams = Streams::default();
        assert_eq!(streams.ahead(10, 16, nothing).pages, 1);
        assert_eq!(streams.ahead(11, 16, nothing).pages, 2);
        streams.brought(11, 2, 1);
        assert_eq!(streams.ahead(12, 16, nothing).pages, 4);
    }
}
