//! Sequential use, recognised from the faults, so that a fault can bring its neighbours along.
//!
//! The idea is that of the page cache's readahead (`mm/readahead.c`): a fault where one was expected doubles
//! the window, any other fault starts a new stream with a window of one page. A few streams are followed at a
//! time, so that a merge of several sequences, or two threads, do not disturb each other. The price of a wrong
//! guess is some pages brought back in vain; random use never gets there, because a second fault has to hit the
//! very page expected.

const STREAMS: usize = 8;

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
    used: u32,
}

impl Streams {
    /// How many pages, from this one on, to bring for a fault on `page`; 1..=`most`.
    pub(crate) fn window(&mut self, page: usize, most: usize) -> usize {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        if let Some(stream) = self.table.iter_mut().find(|stream| stream.next == page && page != 0) {
            stream.window = (stream.window.max(1) * 2).min(most);
            stream.next = page + stream.window;
            stream.used = clock;
            return stream.window;
        }
        let oldest = self
            .table
            .iter_mut()
            .max_by_key(|stream| clock.wrapping_sub(stream.used))
            .expect("there is more than one stream");
        *oldest = Stream { next: page + 1, window: 1, used: clock };
        1
    }

    /// Tells how many pages were really brought for the fault on `page`, where that is less than the window.
    pub(crate) fn brought(&mut self, page: usize, window: usize, pages: usize) {
        if let Some(stream) = self.table.iter_mut().find(|stream| stream.next == page + window) {
            stream.next = page + pages;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_grows_its_window_and_random_faults_do_not() {
        let mut streams = Streams::default();
        let mut page = 100;
        let mut windows = Vec::new();
        for _ in 0..7 {
            let window = streams.window(page, 16);
            assert_eq!(streams.window(page * 7919 + 3, 16), 1);
            page += window;
            windows.push(window);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_cut_window_is_continued_where_it_ended() {
        let mut streams = Streams::default();
        assert_eq!(streams.window(10, 16), 1);
        assert_eq!(streams.window(11, 16), 2);
        streams.brought(11, 2, 1);
        assert_eq!(streams.window(12, 16), 4);
    }
}
