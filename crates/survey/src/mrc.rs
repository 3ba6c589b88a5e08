//! Miss-ratio curves: how often an LRU of any size would miss, from one pass over a trace.
//!
//! A touch hits in an LRU of n pages if fewer than n other pages were touched since the last touch of the same page:
//! that number is its reuse distance (Mattson et al., IBM Systems Journal 9(2), 1970). Distances are counted with a
//! Fenwick tree over times of last touch. For long traces only some pages are followed, chosen by a hash of their
//! number, so that all touches of a page are seen or none; distances and sizes are then scaled by the share of pages
//! that is followed, and what the sample has too few or too many of goes to the smallest distance (SHARDS with its
//! adjustment: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). With some thousand pages the error is about a
//! percent.

use crate::random::mix;
use crate::trace::{Operation, given_up};
use serde::Serialize;
use std::collections::HashMap;

/// Pages that are followed, about.
const FOLLOWED: u64 = 16_384;
/// Points of the curve.
const POINTS: u64 = 64;

/// A point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Pages that fit.
    pub pages: u64,
    /// Share of the touches that miss.
    pub miss_ratio: f64,
}

/// The curve of a trace, from no page to all of them, and the share of pages that was followed. First touches count as
/// misses; a page that was given up begins anew.
#[must_use]
pub fn curve(operations: &[Operation]) -> (Vec<Point>, f64) {
    let pages = distinct(operations);
    let rate = if pages <= FOLLOWED { 1.0 } else { FOLLOWED as f64 / pages as f64 };
    (curve_at(operations, pages, rate), rate)
}

/// How many pages are touched.
#[must_use]
pub fn distinct(operations: &[Operation]) -> u64 {
    let mut pages: Vec<u64> = operations.iter().filter_map(touched).collect();
    pages.sort_unstable();
    pages.dedup();
    pages.len() as u64
}

fn touched(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Read(page) | Operation::Write(page, _) => Some(*page),
        Operation::Size(..) | Operation::Discard(..) | Operation::Work(_) => None,
    }
}

/// With a share of the pages, above 0 and up to 1.
#[must_use]
pub fn curve_at(operations: &[Operation], pages: u64, rate: f64) -> Vec<Point> {
    // The hash is uniform in 0..2^32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let threshold = (rate * (1u64 << 32) as f64) as u64;
    let follows = |page: u64| mix(page) >> 32 < threshold;
    let touches = operations.iter().filter_map(touched).count() as f64;
    let followed = operations.iter().filter_map(touched).filter(|page| follows(*page)).count();
    let mut stack = Stack::new(followed);
    let mut hits: HashMap<u64, f64> = HashMap::new();
    for operation in operations {
        match operation {
            Operation::Read(page) | Operation::Write(page, _) if follows(*page) => {
                if let Some(distance) = stack.touch(*page) {
                    *hits.entry(distance).or_default() += 1.0;
                }
            }
            Operation::Discard(from, count) => {
                given_up(*from, *count, &stack.last).into_iter().for_each(|page| stack.forget(page));
            }
            _ => {}
        }
    }
    let expected = touches * rate;
    *hits.entry(0).or_default() += expected - followed as f64;
    accumulate(hits, pages, rate, expected)
}

fn accumulate(hits: HashMap<u64, f64>, pages: u64, rate: f64, touches: f64) -> Vec<Point> {
    let mut hits: Vec<(u64, f64)> = hits.into_iter().collect();
    hits.sort_unstable_by_key(|(distance, _)| *distance);
    let (mut next, mut sum) = (0, 0.0);
    let mut points = Vec::new();
    for index in 0..=POINTS {
        let size = pages * index / POINTS;
        while next < hits.len() && ((hits[next].0 as f64) / rate) < size as f64 {
            sum += hits[next].1;
            next += 1;
        }
        let miss_ratio = 1.0 - (sum / touches.max(1.0)).clamp(0.0, 1.0);
        points.push(Point { pages: size, miss_ratio: if size == 0 { 1.0 } else { miss_ratio } });
    }
    points
}

/// Last touches by time, and how many of them lie after any time.
struct Stack {
    last: HashMap<u64, usize>,
    /// A Fenwick tree; slot t counts the pages that were last touched at time t, which begins with 1.
    tree: Vec<u32>,
    now: usize,
}

impl Stack {
    fn new(touches: usize) -> Self {
        Self { last: HashMap::new(), tree: vec![0; touches + 1], now: 0 }
    }

    /// How many other pages were touched since the page's last touch; None at the first.
    fn touch(&mut self, page: u64) -> Option<u64> {
        self.now += 1;
        let last = self.last.insert(page, self.now);
        let distance = last.map(|time| {
            let others = self.last.len() as u64 - self.upto(time);
            self.add(time, -1);
            others
        });
        self.add(self.now, 1);
        distance
    }

    fn forget(&mut self, page: u64) {
        if let Some(time) = self.last.remove(&page) {
            self.add(time, -1);
        }
    }

    fn add(&mut self, mut time: usize, change: i32) {
        while time < self.tree.len() {
            self.tree[time] = self.tree[time].wrapping_add_signed(change);
            time += time & time.wrapping_neg();
        }
    }

    fn upto(&self, mut time: usize) -> u64 {
        let mut sum = 0;
        while time > 0 {
            sum += u64::from(self.tree[time]);
            time &= time - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Generator;
    use std::collections::VecDeque;

    /// The obvious LRU.
    fn misses(operations: &[Operation], size: usize) -> f64 {
        let mut lru = VecDeque::new();
        let (mut misses, mut touches) = (0.0, 0.0);
        for page in operations.iter().filter_map(touched) {
            touches += 1.0;
            match lru.iter().position(|other| *other == page) {
                Some(at) => drop(lru.remove(at)),
                None => misses += 1.0,
            }
            lru.push_front(page);
            lru.truncate(size);
        }
        misses / touches
    }

    #[test]
    fn the_curve_is_that_of_an_lru() {
        for text in
            ["zipf:pages=320,touches=5000", "scan:pages=320,touches=2000", "loop:pages=640,touches=5000"]
        {
            let operations = Generator::parse(text).unwrap().operations();
            let (points, rate) = curve(&operations);
            assert_eq!(rate, 1.0);
            for point in points.iter().skip(1).step_by(9) {
                let exact = misses(&operations, usize::try_from(point.pages).unwrap());
                assert!((point.miss_ratio - exact).abs() < 1e-9, "{text} {point:?} {exact}");
            }
        }
    }

    #[test]
    fn a_sample_of_pages_gives_about_the_same_curve() {
        let operations = Generator::parse("zipf:pages=40000,touches=300000,skew=0.8").unwrap().operations();
        let (whole, part) = (curve_at(&operations, 40_000, 1.0), curve_at(&operations, 40_000, 0.2));
        let error = whole.iter().zip(&part).map(|(a, b)| (a.miss_ratio - b.miss_ratio).abs());
        let (mean, most) = error.fold((0.0, 0.0), |(sum, most): (f64, f64), e| (sum + e / 65.0, most.max(e)));
        assert!(mean < 0.02 && most < 0.05, "{mean} {most}");
    }

    #[test]
    fn a_page_that_was_given_up_begins_anew() {
        let operations =
            [Operation::Read(1), Operation::Discard(1, 1), Operation::Read(1), Operation::Read(1)];
        let (points, _) = curve(&operations);
        assert!((points.last().unwrap().miss_ratio - 2.0 / 3.0).abs() < 1e-9);
    }
}
