//! The compressors of a disk: the first, and up to three denser ones by their priorities.
//!
//! The one of priority 1 also works by itself, while nothing else is to be done. Pages stay readable whatever is chosen
//! later, so a choice may change at any time; a store can have had 32 of them, levels included.

use super::AttributeError;
use super::request::{Algorithm, PRIORITIES};
use ramfold::codec::NAMES;
use ramfold::{Compressor, ConfigError, Store};
use ramfold_budget::control::values::{choice, without_level};

/// Names with levels, by priority; 0 is the first.
#[derive(Debug)]
pub(super) struct Compressors([Option<String>; 4]);

impl From<ConfigError> for AttributeError {
    fn from(error: ConfigError) -> Self {
        Self::Compressor(error.to_string())
    }
}

impl Compressors {
    pub(super) fn new(first: &str, second: Option<&str>) -> Self {
        Self([Some(first.to_owned()), second.map(str::to_owned), None, None])
    }

    pub(super) fn set_first(&mut self, store: &Store, name: String) -> Result<(), AttributeError> {
        store.set_compressor(&name)?;
        self.0[0] = Some(name);
        Ok(())
    }

    pub(super) fn set_other(
        &mut self,
        store: &Store,
        priority: usize,
        name: String,
    ) -> Result<(), AttributeError> {
        store.compressor(&name)?;
        if priority == *PRIORITIES.start() {
            store.set_recomp_algorithm(Some(&name))?;
        }
        self.0[priority] = Some(name);
        Ok(())
    }

    pub(super) fn set_level(
        &mut self,
        store: &Store,
        algorithm: &Algorithm,
        level: i32,
    ) -> Result<(), AttributeError> {
        let priority = self.find(algorithm).ok_or(AttributeError::NoAlgorithm)?;
        let name = self.0[priority].as_deref().map(without_level).ok_or(AttributeError::NoAlgorithm)?;
        let name = format!("{name}:{level}");
        if priority == 0 { self.set_first(store, name) } else { self.set_other(store, priority, name) }
    }

    /// The denser compressor that is meant.
    pub(super) fn of(&self, store: &Store, algorithm: &Algorithm) -> Result<Compressor, AttributeError> {
        let priority = self.find(algorithm).filter(|priority| PRIORITIES.contains(priority));
        let name = priority.and_then(|priority| self.0[priority].as_deref());
        Ok(store.compressor(name.ok_or(AttributeError::NoAlgorithm)?)?)
    }

    /// All denser ones.
    pub(super) fn dense(&self, store: &Store) -> Vec<Compressor> {
        let names = self.0[1..].iter().flatten();
        names.filter_map(|name| store.compressor(name).ok()).collect()
    }

    /// By its name the densest that has it, as zram counts: the first is asked last.
    fn find(&self, algorithm: &Algorithm) -> Option<usize> {
        match algorithm {
            Algorithm::Priority(priority) => Some(*priority),
            Algorithm::Name(wanted) => {
                let has = |priority: &usize| {
                    self.0[*priority]
                        .as_deref()
                        .is_some_and(|name| name == wanted || without_level(name) == wanted)
                };
                PRIORITIES.chain([0]).find(has)
            }
        }
    }

    /// All names in one line, the chosen one in brackets.
    pub(super) fn show_first(&self) -> String {
        self.show(0)
    }

    /// A line for each priority that has one.
    pub(super) fn show_others(&self) -> String {
        let chosen = PRIORITIES.filter(|priority| self.0[*priority].is_some());
        chosen.map(|priority| format!("#{priority}: {}\n", self.show(priority))).collect()
    }

    fn show(&self, priority: usize) -> String {
        choice(NAMES, self.0[priority].as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_one_stands_in_brackets() {
        let mut compressors = Compressors::new("lz4", Some("zstd:1"));
        assert_eq!(compressors.show_first(), "[lz4] lz4hc zstd deflate lzo lzo-rle");
        assert_eq!(compressors.show_others(), "#1: lz4 lz4hc [zstd:1] deflate lzo lzo-rle\n");
        let store = Store::new(&ramfold::Config::default(), None).unwrap();
        compressors.set_other(&store, 3, "deflate".to_owned()).unwrap();
        compressors.set_level(&store, &Algorithm::Name("zstd".to_owned()), 9).unwrap();
        assert!(compressors.show_others().starts_with("#1: lz4 lz4hc [zstd:9]"));
        assert!(compressors.show_others().ends_with("#3: lz4 lz4hc zstd [deflate] lzo lzo-rle\n"));
        assert!(compressors.of(&store, &Algorithm::Priority(3)).is_ok());
        for nobody in [Algorithm::Priority(2), Algorithm::Name("lz4".to_owned())] {
            assert_eq!(compressors.of(&store, &nobody), Err(AttributeError::NoAlgorithm));
        }
        assert!(compressors.set_first(&store, "zip".to_owned()).is_err());
        assert!(compressors.set_level(&store, &Algorithm::Priority(1), 99).is_err());
        assert!(compressors.show_others().starts_with("#1: lz4 lz4hc [zstd:9]"), "it stays as it was");
    }
}
