//! What pages are, before anything is compressed: same-filled, duplicates, where they lie; and a sample of them.
//!
//! Up to [`LOOKED_AT`] pages every one is read and hashed, and the counts are exact. Of larger memory so many are
//! chosen at random, and read in random order: where reading is slow (a file on a disk), it ends after [`READING`], and
//! what was read until then is the sample. Shares of same-filled pages then have the error of a sample; duplicates need
//! care, because a sample sees few pairs: of two equal pages both are in a sample of one in k only once in k². Two
//! bounds are reported. What is repeated within the sample is the least, since taking more pages only shows more
//! repeats. The most comes from the pairs: `pairs · (N / n)²` is an unbiased estimate of all pairs of equal pages (each
//! pair is in the sample with that probability), and a content that c pages have makes c − 1 duplicates and
//! c(c − 1)/2 ≥ c − 1 pairs. For contents that are there twice the bounds' upper end is right, for those that are there
//! very often the lower. (The pairs are the second frequency moment: Alon, Matias, Szegedy, STOC 1996.)
//!
//! Two pages are the same if their XXH3 hashes of 64 bits are: among 10^7 pages one false duplicate is to be
//! expected once in 370 000 surveys.

use crate::population::{OpenError, PageAt, Population};
use crate::random::Random;
use crate::statistics::Estimate;
use ramfold::page::same_filled;
use ramfold::{PAGE_SIZE, Page};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// The most pages that are read and hashed: 1 GiB.
pub const LOOKED_AT: u64 = 1 << 18;
/// How many pages before it is read each is announced.
const AHEAD: usize = 128;
/// The longest that a sample is read for.
const READING: Duration = Duration::from_secs(2);
/// Pages that are compressed.
pub const MEASURED: usize = 1 << 13;
/// The choice has no meaning beside being random, so surveys of the same memory choose the same pages.
const SEED: u64 = 1;

/// A page that was chosen for measuring. It is not same-filled.
#[derive(Debug)]
pub struct Sampled {
    /// Its contents when it was read.
    pub page: Box<Page>,
    /// Its rank in the population.
    pub rank: u64,
    /// Where it is.
    pub at: PageAt,
    /// How many of the pages that were looked at have this content.
    pub copies: u32,
    /// Of its contents.
    pub hash: u64,
}

/// What was seen.
#[derive(Debug)]
pub struct Look {
    /// Pages of the population.
    pub pages: u64,
    /// Those that were read.
    pub looked_at: u64,
    /// Of these: zero pages.
    pub zero: u64,
    /// Of these: filled with one word, zero pages included.
    pub same_filled: u64,
    /// Of these: not same-filled, and equal to an earlier one of the same source.
    pub duplicates_within: u64,
    /// Of these: not same-filled, equal to one of an earlier source, and the first such of their own.
    pub duplicates_across: u64,
    /// Pairs of equal pages among these.
    pub pairs: f64,
    /// Pages that went away between listing and reading.
    pub vanished: u64,
    /// Pages looked at, and same-filled ones among them, by place.
    pub places: Vec<(u64, u64)>,
    /// A random sample of those that are not same-filled, by rank.
    pub sample: Vec<Sampled>,
}

/// A page that is not same-filled.
#[derive(Debug, Clone, Copy)]
struct Seen {
    hash: u64,
    rank: u64,
    at: PageAt,
}

/// Looks at the population. `progress` is told how many of how many pages were read.
///
/// # Errors
/// [`OpenError`]: a process has ended meanwhile, or a file cannot be read.
pub fn look(population: &Population, mut progress: impl FnMut(u64, u64)) -> Result<Look, OpenError> {
    let ranks = order(population);
    let (total, mut page, started) = (ranks.len() as u64, [0; PAGE_SIZE], Instant::now());
    let mut look = Look::empty(population);
    let mut seen = Vec::new();
    for (done, rank) in ranks.iter().copied().enumerate() {
        if let Some(ahead) = ranks.get(done + AHEAD) {
            population.announce(population.at(*ahead));
        }
        if done % 1024 == 0 {
            progress(done as u64, total);
            if total < population.pages() && started.elapsed() > READING {
                break;
            }
        }
        let at = population.at(rank);
        if population.read(at, &mut page)? {
            let word = same_filled(&page);
            look.count(at, word);
            if word.is_none() {
                seen.push(Seen { hash: XxHash3_64::oneshot(&page), rank, at });
            }
        } else {
            look.vanished += 1;
        }
    }
    seen.sort_unstable_by_key(|page| page.rank);
    let copies = look.count_duplicates(&seen);
    look.sample = sample(population, &seen, &copies)?;
    Ok(look)
}

/// The ranks to read: of a census in order, neighbours are read quickest; of a sample in random order, so that the
/// first of them are a random sample too (Fisher and Yates; Knuth, The Art of Computer Programming 2, 3.4.2,
/// Algorithm P).
fn order(population: &Population) -> Vec<u64> {
    let mut ranks = population.choose(LOOKED_AT, SEED);
    if (ranks.len() as u64) < population.pages() {
        let mut random = Random::new(SEED + 2);
        for last in (1..ranks.len()).rev() {
            ranks.swap(last, random.index(last + 1));
        }
    }
    ranks
}

impl Look {
    fn empty(population: &Population) -> Self {
        Self {
            pages: population.pages(),
            looked_at: 0,
            zero: 0,
            same_filled: 0,
            duplicates_within: 0,
            duplicates_across: 0,
            pairs: 0.0,
            vanished: 0,
            places: vec![(0, 0); population.places().len()],
            sample: vec![],
        }
    }

    fn count(&mut self, at: PageAt, word: Option<u64>) {
        self.looked_at += 1;
        self.zero += u64::from(word == Some(0));
        self.same_filled += u64::from(word.is_some());
        let place = &mut self.places[at.place as usize];
        *place = (place.0 + 1, place.1 + u64::from(word.is_some()));
    }

    /// Returns how many pages have each content.
    fn count_duplicates(&mut self, seen: &[Seen]) -> HashMap<u64, u32> {
        let mut copies = HashMap::with_capacity(seen.len());
        let mut own = HashMap::with_capacity(seen.len());
        for page in seen {
            let earlier = copies.entry(page.hash).or_insert(0u32);
            let earlier_here = own.entry((page.hash, page.at.source)).or_insert(false);
            self.pairs += f64::from(*earlier);
            self.duplicates_within += u64::from(*earlier_here);
            self.duplicates_across += u64::from(*earlier > 0 && !*earlier_here);
            *earlier += 1;
            *earlier_here = true;
        }
        copies
    }

    /// Whether every page was looked at.
    #[must_use]
    pub fn is_census(&self) -> bool {
        self.looked_at + self.vanished == self.pages
    }

    /// Share of same-filled pages.
    #[must_use]
    pub fn same_filled_share(&self) -> f64 {
        self.share(self.same_filled)
    }

    /// How far that share may be off, at 95 %; 0 if all were looked at.
    #[must_use]
    pub fn same_filled_error(&self) -> f64 {
        Estimate::share(self.same_filled, self.looked_at, self.pages - self.vanished).error95
    }

    /// The least and the most share of all pages that are duplicates; equal if all were looked at.
    #[must_use]
    pub fn duplicate_share(&self) -> (f64, f64) {
        let least = self.share(self.duplicates_within + self.duplicates_across);
        if self.is_census() {
            return (least, least);
        }
        let scale = self.pages as f64 / self.looked_at.max(1) as f64;
        let most = self.pairs * scale * scale / self.pages as f64;
        (least, most.clamp(least, 1.0 - self.same_filled_share()))
    }

    /// How many pages of the population are not same-filled.
    #[must_use]
    pub fn filled_pages(&self) -> f64 {
        self.pages as f64 * (1.0 - self.same_filled_share())
    }

    /// A part of the pages looked at as a share.
    #[must_use]
    pub fn share(&self, part: u64) -> f64 {
        part as f64 / self.looked_at.max(1) as f64
    }
}

/// Reads the chosen pages again; those that are same-filled or gone by now are left out.
fn sample(
    population: &Population,
    seen: &[Seen],
    copies: &HashMap<u64, u32>,
) -> Result<Vec<Sampled>, OpenError> {
    let mut sample = Vec::new();
    for chosen in pick(seen, MEASURED) {
        let mut page = Box::new([0; PAGE_SIZE]);
        if population.read(chosen.at, &mut page)? && same_filled(&page).is_none() {
            let hash = XxHash3_64::oneshot(&*page);
            let copies = copies.get(&hash).copied().unwrap_or(1);
            sample.push(Sampled { page, rank: chosen.rank, at: chosen.at, copies, hash });
        }
    }
    Ok(sample)
}

/// `count` of them in order, every set equally likely (Algorithm S again).
fn pick(seen: &[Seen], count: usize) -> Vec<Seen> {
    let (mut random, mut wanted) = (Random::new(SEED + 1), count.min(seen.len()));
    let take = |(index, seen): (usize, &Seen)| {
        let taken = random.index(index) < wanted;
        wanted -= usize::from(taken);
        taken.then_some(*seen)
    };
    // Counted down: how many are left, this one included.
    seen.iter().enumerate().map(|(index, one)| (seen.len() - index, one)).filter_map(take).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::population::{Source, Target};
    use std::path::PathBuf;

    /// A file of these pages, removed with the directory.
    pub(crate) fn file(pages: &[Page]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        std::fs::write(&path, pages.concat()).unwrap();
        (directory, path)
    }

    /// A page whose first bytes are the number, and which is not same-filled.
    pub(crate) fn numbered(number: u32) -> Page {
        let mut page = [0; PAGE_SIZE];
        page[..4].copy_from_slice(&number.to_le_bytes());
        page[PAGE_SIZE - 1] = 1;
        page
    }

    fn looked(files: &[&PathBuf]) -> Look {
        let targets: Vec<_> = files.iter().map(|path| Target::File((*path).clone())).collect();
        look(&Population::open(&targets, false).unwrap(), |_, _| {}).unwrap()
    }

    #[test]
    fn a_census_is_exact_within_and_across_sources() {
        let first: Vec<Page> = [numbered(1), numbered(1), numbered(2), [0; PAGE_SIZE], [7; PAGE_SIZE]].into();
        let second: Vec<Page> = [numbered(1), numbered(1), numbered(3), [0; PAGE_SIZE]].into();
        let ((_a, first), (_b, second)) = (file(&first), file(&second));
        let look = looked(&[&first, &second]);
        assert!(look.is_census());
        assert_eq!((look.pages, look.zero, look.same_filled), (9, 2, 3));
        assert_eq!((look.duplicates_within, look.duplicates_across), (2, 1));
        assert_eq!(look.duplicate_share(), (3.0 / 9.0, 3.0 / 9.0));
        assert_eq!(look.sample.len(), 6);
        assert_eq!(look.sample.iter().map(|sampled| sampled.copies).collect::<Vec<_>>(), [4, 4, 1, 4, 4, 1]);
    }

    #[test]
    fn a_sample_is_read_in_random_order_and_a_census_in_its_own() {
        let of = |pages: u64| {
            let mut population = Population::default();
            let null = std::fs::File::open("/dev/null").unwrap();
            let source = population.add_source(Source::file("null".into(), null));
            let place = population.place("file");
            (0..pages).for_each(|page| population.add_page(source, place, page * PAGE_SIZE as u64));
            population
        };
        assert!(order(&of(LOOKED_AT)).iter().copied().eq(0..LOOKED_AT));
        let pages = LOOKED_AT * 4;
        let population = of(pages);
        let mut sample = order(&population);
        // 10 000 expected below a quarter of what was read first, standard deviation 87.
        let low = sample[..40_000].iter().filter(|rank| **rank < pages / 4).count();
        assert!((9_600..10_400).contains(&low), "{low}");
        sample.sort_unstable();
        assert_eq!(sample, population.choose(LOOKED_AT, SEED));
    }

    #[test]
    fn the_bounds_of_a_sample_hold_the_truth() {
        // One page in eight of 80 000, of which 10 000 have a twin.
        let mut random = Random::new(3);
        for often in [2u64, 200] {
            let contents = 10_000 / (often - 1);
            let all: Vec<u64> =
                (0..contents).flat_map(|content| vec![content; usize::try_from(often).unwrap()]).collect();
            let rest = 80_000 - all.len() as u64;
            let all: Vec<u64> = all.into_iter().chain((0..rest).map(|n| 1_000_000 + n)).collect();
            let truth = (contents * (often - 1)) as f64 / 80_000.0;
            let seen: Vec<Seen> = all
                .iter()
                .filter(|_| random.below(8) == 0)
                .map(|hash| Seen { hash: *hash, rank: 0, at: PageAt { source: 0, place: 0, offset: 0 } })
                .collect();
            let mut look = Look::empty(&Population::default());
            (look.pages, look.looked_at) = (80_000, seen.len() as u64);
            look.count_duplicates(&seen);
            let (least, most) = look.duplicate_share();
            assert!(least <= truth && truth <= most * 1.25, "{least} {truth} {most}");
            let near = if often == 2 { most } else { least };
            assert!((near / truth - 1.0).abs() < 0.25, "{often}: {near} for {truth}");
        }
    }
}
