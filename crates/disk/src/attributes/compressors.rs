//! The compressors of a disk: the first, and up to three denser ones by their priorities.
//!
//! The one of priority 1 also works by itself, while nothing else is to be done. Each may have a dictionary, of a file
//! or of the disk's own, which is one for all that ask for it ([`super::trainer`] makes it; until then they work
//! without). Pages stay readable whatever is chosen later, so a choice may change at any time; a store can have had 32
//! of them, levels and dictionaries included.

use super::AttributeError;
use super::request::{Algorithm, PRIORITIES, Wish};
use ramfold::codec::{Dictionary, MOST_DICTIONARY, NAMES, Zstd, by_name};
use ramfold::{Compressor, ConfigError, Store};
use ramfold_budget::control::values::{choice, without_level};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// By priority; 0 is the first.
#[derive(Debug)]
pub(super) struct Compressors {
    chosen: [Option<Chosen>; 4],
    own: Option<Arc<Dictionary>>,
    /// Dictionaries of its own that the disk has had.
    made: usize,
}

/// One that was chosen.
#[derive(Debug, Clone)]
struct Chosen {
    /// With the level.
    name: String,
    dictionary: Held,
}

/// The dictionary of one.
#[derive(Debug, Clone)]
enum Held {
    None,
    Own,
    Of(Arc<Dictionary>),
}

impl From<ConfigError> for AttributeError {
    fn from(error: ConfigError) -> Self {
        Self::Compressor(error.to_string())
    }
}

impl Chosen {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), dictionary: Held::None }
    }

    /// What the store calls it, if `own` is the disk's dictionary.
    fn compressor(&self, store: &Store, own: Option<&Arc<Dictionary>>) -> Result<Compressor, AttributeError> {
        let dictionary = match &self.dictionary {
            Held::None => None,
            Held::Own => own,
            Held::Of(dictionary) => Some(dictionary),
        };
        match dictionary {
            None => Ok(store.compressor(&self.name)?),
            Some(dictionary) => {
                let codec = with_dictionary(&self.name, dictionary)
                    .map_err(|why| AttributeError::Compressor(format!("{}: {why}", self.name)))?;
                Ok(store.add_codec(Arc::new(codec))?)
            }
        }
    }
}

/// The compressor of this name, which has dictionaries, with this one.
pub(super) fn with_dictionary(name: &str, dictionary: &Arc<Dictionary>) -> Result<Zstd, String> {
    let plain = by_name(name).map_err(|error| error.to_string())?;
    Zstd::with_dictionary(plain.level().unwrap_or_default(), Arc::clone(dictionary))
        .map_err(|error| error.to_string())
}

impl Compressors {
    pub(super) fn new(first: &str, second: Option<&str>) -> Self {
        let chosen = [Some(Chosen::new(first)), second.map(Chosen::new), None, None];
        Self { chosen, own: None, made: 0 }
    }

    pub(super) fn set_first(&mut self, store: &Store, name: &str) -> Result<(), AttributeError> {
        self.choose(store, 0, Chosen::new(name))
    }

    pub(super) fn set_other(
        &mut self,
        store: &Store,
        priority: usize,
        name: &str,
    ) -> Result<(), AttributeError> {
        self.choose(store, priority, Chosen::new(name))
    }

    /// Changes the level or the dictionary of one.
    pub(super) fn set_params(
        &mut self,
        store: &Store,
        algorithm: &Algorithm,
        level: Option<i32>,
        dictionary: Option<Wish>,
    ) -> Result<(), AttributeError> {
        let priority = self.find(algorithm).ok_or(AttributeError::NoAlgorithm)?;
        let mut chosen = self.chosen[priority].clone().ok_or(AttributeError::NoAlgorithm)?;
        if let Some(level) = level {
            chosen.name = format!("{}:{level}", without_level(&chosen.name));
        }
        match dictionary {
            None => {}
            Some(Wish::None) => chosen.dictionary = Held::None,
            Some(_) if without_level(&chosen.name) != "zstd" => return Err(AttributeError::NoDictionaries),
            Some(Wish::Auto) => chosen.dictionary = Held::Own,
            Some(Wish::File(path)) => chosen.dictionary = Held::Of(read(&path)?),
        }
        self.choose(store, priority, chosen)
    }

    /// Puts one to work.
    fn choose(&mut self, store: &Store, priority: usize, chosen: Chosen) -> Result<(), AttributeError> {
        let compressor = chosen.compressor(store, self.own.as_ref())?;
        if priority == 0 {
            store.select_compressor(compressor);
        } else if priority == *PRIORITIES.start() {
            store.set_recompressor(Some(compressor));
        }
        self.chosen[priority] = Some(chosen);
        Ok(())
    }

    /// The first that has the disk's own dictionary, and that.
    pub(super) fn own(&self) -> Option<(&str, Option<&Arc<Dictionary>>)> {
        let mut chosen = self.chosen.iter().flatten();
        let with_own = chosen.find(|chosen| matches!(chosen.dictionary, Held::Own))?;
        Some((&with_own.name, self.own.as_ref()))
    }

    /// Dictionaries of its own that the disk has had.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Has all that use the disk's own dictionary use this one from now on.
    pub(super) fn adopt(&mut self, store: &Store, dictionary: Arc<Dictionary>) -> Result<(), AttributeError> {
        (self.own, self.made) = (Some(dictionary), self.made + 1);
        for priority in 0..self.chosen.len() {
            let own = self.chosen[priority].clone().filter(|chosen| matches!(chosen.dictionary, Held::Own));
            own.map_or(Ok(()), |chosen| self.choose(store, priority, chosen))?;
        }
        Ok(())
    }

    /// The denser compressor that is meant.
    pub(super) fn of(&self, store: &Store, algorithm: &Algorithm) -> Result<Compressor, AttributeError> {
        let priority = self.find(algorithm).filter(|priority| PRIORITIES.contains(priority));
        let chosen = priority.and_then(|priority| self.chosen[priority].as_ref());
        chosen.ok_or(AttributeError::NoAlgorithm)?.compressor(store, self.own.as_ref())
    }

    /// All denser ones.
    pub(super) fn dense(&self, store: &Store) -> Vec<Compressor> {
        let chosen = self.chosen[1..].iter().flatten();
        chosen.filter_map(|chosen| chosen.compressor(store, self.own.as_ref()).ok()).collect()
    }

    /// By its name the densest that has it, as zram counts: the first is asked last.
    fn find(&self, algorithm: &Algorithm) -> Option<usize> {
        match algorithm {
            Algorithm::Priority(priority) => Some(*priority),
            Algorithm::Name(wanted) => {
                let has = |priority: &usize| {
                    self.chosen[*priority]
                        .as_ref()
                        .is_some_and(|chosen| chosen.name == *wanted || without_level(&chosen.name) == wanted)
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
        let chosen = PRIORITIES.filter(|priority| self.chosen[*priority].is_some());
        chosen.map(|priority| format!("#{priority}: {}\n", self.show(priority))).collect()
    }

    fn show(&self, priority: usize) -> String {
        choice(NAMES, self.chosen[priority].as_ref().map_or("", |chosen| &chosen.name))
    }

    /// A line for each, in the words that set it, and of a dictionary its bytes and, of the disk's own, how many it has
    /// had.
    pub(super) fn show_params(&self) -> String {
        let line = |(priority, chosen): (usize, &Option<Chosen>)| {
            let chosen = chosen.as_ref()?;
            let mut line = format!("priority={priority} algo={}", without_level(&chosen.name));
            if let Ok(Some(level)) = by_name(&chosen.name).map(|codec| codec.level()) {
                line += &format!(" level={level}");
            }
            let bytes = |dictionary: &Arc<Dictionary>| dictionary.bytes().len();
            match &chosen.dictionary {
                Held::None => {}
                Held::Own => {
                    let bytes = self.own.as_ref().map_or(0, bytes);
                    line += &format!(" dict=auto dict_bytes={bytes} dict_made={}", self.made);
                }
                Held::Of(dictionary) => line += &format!(" dict=file dict_bytes={}", bytes(dictionary)),
            }
            Some(line + "\n")
        };
        self.chosen.iter().enumerate().filter_map(line).collect()
    }
}

/// The dictionary in a file.
fn read(path: &Path) -> Result<Arc<Dictionary>, AttributeError> {
    let wrong =
        |why: &dyn Display| AttributeError::Dictionary(format!("dictionary {}: {why}", path.display()));
    let read = || -> io::Result<Vec<u8>> {
        // Of what is no file an end may never come.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(MOST_DICTIONARY as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| wrong(&error))?;
    Dictionary::new(bytes).map(Arc::new).map_err(|error| wrong(&error))
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
        compressors.set_other(&store, 3, "deflate").unwrap();
        compressors.set_params(&store, &Algorithm::Name("zstd".to_owned()), Some(9), None).unwrap();
        assert!(compressors.show_others().starts_with("#1: lz4 lz4hc [zstd:9]"));
        assert!(compressors.show_others().ends_with("#3: lz4 lz4hc zstd [deflate] lzo lzo-rle\n"));
        assert!(compressors.of(&store, &Algorithm::Priority(3)).is_ok());
        for nobody in [Algorithm::Priority(2), Algorithm::Name("lz4".to_owned())] {
            assert_eq!(compressors.of(&store, &nobody), Err(AttributeError::NoAlgorithm));
        }
        assert!(compressors.set_first(&store, "zip").is_err());
        assert!(compressors.set_params(&store, &Algorithm::Priority(1), Some(99), None).is_err());
        assert!(compressors.show_others().starts_with("#1: lz4 lz4hc [zstd:9]"), "it stays as it was");
    }

    #[test]
    fn a_dictionary_is_part_of_a_compressor() {
        let store = Store::new(&ramfold::Config::default(), None).unwrap();
        let mut compressors = Compressors::new("lz4", Some("zstd:3"));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("dict");
        std::fs::write(&path, "some words that are in many pages").unwrap();
        let plain = compressors.of(&store, &Algorithm::Priority(1)).unwrap();
        let file = Some(Wish::File(path.clone()));
        compressors.set_params(&store, &Algorithm::Priority(1), None, file.clone()).unwrap();
        let with = compressors.of(&store, &Algorithm::Priority(1)).unwrap();
        assert_ne!(with, plain);
        let params = "priority=0 algo=lz4 level=1\npriority=1 algo=zstd level=3 dict=file dict_bytes=33\n";
        assert_eq!(compressors.show_params(), params);
        compressors.set_params(&store, &Algorithm::Priority(1), None, Some(Wish::Auto)).unwrap();
        assert_eq!(compressors.of(&store, &Algorithm::Priority(1)), Ok(plain), "there is none yet");
        let own = Arc::new(Dictionary::new(b"other words that are in many pages".to_vec()).unwrap());
        compressors.adopt(&store, own).unwrap();
        let with_own = compressors.of(&store, &Algorithm::Priority(1)).unwrap();
        assert!(with_own != plain && with_own != with);
        assert!(compressors.show_params().ends_with("level=3 dict=auto dict_bytes=34 dict_made=1\n"));
        compressors.set_params(&store, &Algorithm::Priority(1), Some(9), None).unwrap();
        assert!(compressors.show_params().ends_with("level=9 dict=auto dict_bytes=34 dict_made=1\n"));
        compressors.set_other(&store, 1, "zstd:3").unwrap();
        assert_eq!(compressors.of(&store, &Algorithm::Priority(1)), Ok(plain), "a new choice has none");
        let none = compressors.set_params(&store, &Algorithm::Priority(0), None, file);
        assert_eq!(none, Err(AttributeError::NoDictionaries));
    }

    #[test]
    fn a_file_that_is_no_dictionary_is_told_in_one_line() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = place.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let damaged = [&0xec30_a437_u32.to_le_bytes()[..], &[0xff; 100]].concat();
        for (path, why) in [
            (file("short", b"abc"), "8 to 1048576 bytes, and this has 3"),
            (file("long", &vec![1; MOST_DICTIONARY + 10]), "this has 1048577"),
            (file("damaged", &damaged), "it is damaged"),
            (place.path().join("nothing"), "No such file"),
            (place.path().to_path_buf(), "no regular file"),
            ("/dev/zero".into(), "no regular file"),
        ] {
            let error = read(&path).unwrap_err().to_string();
            let begins = format!("dictionary {}: ", path.display());
            assert!(
                error.starts_with(&begins) && error.contains(why) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
