//! Made-up traces: `zipf:pages=65536,touches=1000000,skew=0.9,writes=30,seed=1`.
//!
//! | name | which page is touched next |
//! |---|---|
//! | `uniform` | any |
//! | `zipf` | one of rank k with a probability proportional to 1 / k^skew; ranks are strewn over the pages |
//! | `scan` | the next one, each once; then from the beginning |
//! | `loop` | the next one of a tenth of the pages, nine times of ten; else any other |
//! | `phases` | any of a tenth of the pages; another tenth after each tenth of the touches |
//!
//! All pages are written once at first, as a program builds its data. `writes` is the percentage of the touches that
//! write. A page compresses to between a tenth and two thirds of itself, 1.5 KiB on average.

use crate::random::{Random, Zipf, mix};
use crate::trace::Operation;

/// The names.
pub const NAMES: [&str; 5] = ["uniform", "zipf", "scan", "loop", "phases"];

/// A description of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Generator {
    name: &'static str,
    pages: u64,
    touches: u64,
    skew: f64,
    writes: u64,
    seed: u64,
}

/// Why a text describes no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeneratorError {
    /// no generator has this name
    #[error("no generator is called \"{0}\" (choose one of {names})", names = NAMES.join(", "))]
    Name(String),
    /// a setting is none, or out of its range
    #[error(
        "\"{0}\" is no setting of a generator (write pages=, touches= up to 10^8, skew=0..0.99, writes=0..100, seed=)"
    )]
    Setting(String),
}

impl Generator {
    /// `NAME` or `NAME:SETTING=VALUE,...`.
    ///
    /// # Errors
    /// [`GeneratorError`].
    pub fn parse(text: &str) -> Result<Self, GeneratorError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let known = NAMES.into_iter().find(|known| *known == name);
        let name = known.ok_or_else(|| GeneratorError::Name(name.to_owned()))?;
        let mut generator = Self { name, pages: 16_384, touches: 500_000, skew: 0.9, writes: 30, seed: 1 };
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            generator.set(setting).ok_or_else(|| GeneratorError::Setting(setting.to_owned()))?;
        }
        Ok(generator)
    }

    fn set(&mut self, setting: &str) -> Option<()> {
        let (name, value) = setting.split_once('=')?;
        let count = |range: std::ops::RangeInclusive<u64>| value.parse().ok().filter(|n| range.contains(n));
        match name {
            "pages" => self.pages = count(10..=100_000_000)?,
            "touches" => self.touches = count(0..=100_000_000)?,
            "skew" => self.skew = value.parse().ok().filter(|skew| (0.0..=0.99).contains(skew))?,
            "writes" => self.writes = count(0..=100)?,
            "seed" => self.seed = count(0..=u64::MAX)?,
            _ => return None,
        }
        Some(())
    }

    /// The operations.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let mut random = Random::new(self.seed);
        let zipf = (self.name == "zipf").then(|| Zipf::new(self.pages, self.skew));
        let build = (0..self.pages).map(|page| Operation::Write(page, Some(self.bytes(page))));
        let mut operations: Vec<Operation> = build.collect();
        for touch in 0..self.touches {
            let page = self.page(touch, &mut random, zipf.as_ref());
            let writes = random.below(100) < self.writes;
            operations.push(if writes {
                Operation::Write(page, Some(self.bytes(page)))
            } else {
                Operation::Read(page)
            });
        }
        operations
    }

    fn page(&self, touch: u64, random: &mut Random, zipf: Option<&Zipf>) -> u64 {
        let part = self.pages / 10;
        match (self.name, zipf) {
            // An odd multiplier would keep neighbours apart only for powers of two; mix does for any number.
            (_, Some(zipf)) => mix(zipf.rank(random)) % self.pages,
            ("scan", _) => touch % self.pages,
            ("loop", _) if touch % 10 != 9 => (touch - touch / 10) % part,
            ("loop", _) => part + random.below(self.pages - part),
            ("phases", _) => {
                let phase = touch / (self.touches / 10).max(1) % 10;
                phase * part + random.below(part)
            }
            _ => random.below(self.pages),
        }
    }

    /// Of this page, always the same: 410 to 2662.
    fn bytes(&self, page: u64) -> u16 {
        u16::try_from(410 + mix(page ^ self.seed) % 2253).expect("below a page")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn touched(text: &str) -> (u64, HashMap<u64, u64>) {
        let generator = Generator::parse(text).unwrap();
        let mut counts = HashMap::new();
        for operation in generator.operations().into_iter().skip(usize::try_from(generator.pages).unwrap()) {
            let (Operation::Read(page) | Operation::Write(page, _)) = operation else {
                panic!("{operation}")
            };
            assert!(page < generator.pages);
            *counts.entry(page).or_default() += 1;
        }
        (generator.touches, counts)
    }

    #[test]
    fn each_generator_touches_what_it_says() {
        let most = |counts: &HashMap<u64, u64>| *counts.values().max().unwrap();
        let (_, uniform) = touched("uniform:pages=100,touches=100000");
        assert!(uniform.len() == 100 && most(&uniform) < 1200);
        let (_, zipf) = touched("zipf:pages=1000,touches=100000,skew=0.99");
        assert!(most(&zipf) > 8000);
        let (_, scan) = touched("scan:pages=1000,touches=5000");
        assert!(scan.values().all(|count| *count == 5));
        let (_, looped) = touched("loop:pages=1000,touches=10000");
        assert!((0..100).all(|page| looped[&page] == 90));
        let (touches, phases) = touched("phases:pages=1000,touches=100000");
        let first: u64 = (0..100).map(|page| phases[&page]).sum();
        assert_eq!(first * 10, touches);
    }

    #[test]
    fn the_same_text_is_the_same_trace() {
        let operations = |text| Generator::parse(text).unwrap().operations();
        assert_eq!(operations("zipf:touches=1000"), operations("zipf:touches=1000"));
        assert_ne!(operations("zipf:touches=1000"), operations("zipf:touches=1000,seed=2"));
    }

    #[test]
    fn nonsense_is_told() {
        assert_eq!(Generator::parse("zip"), Err(GeneratorError::Name("zip".into())));
        for wrong in ["pages", "pages=1", "skew=1", "skew=nan", "writes=101", "size=3"] {
            let text = format!("zipf:{wrong}");
            assert_eq!(Generator::parse(&text), Err(GeneratorError::Setting(wrong.into())));
        }
    }
}
