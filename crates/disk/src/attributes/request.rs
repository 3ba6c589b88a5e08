//! Requests: one line of text, understood as a whole before anything is done.
//!
//! `ATTRIBUTE` reads, `ATTRIBUTE VALUE` writes; the words are zram's. What is malformed, out of its range or said twice
//! is told, and nothing of the line has taken place. Any bytes are safe to parse.

use ramfold_budget::control::request::parse;
pub use ramfold_budget::control::request::{MOST_BYTES, Named, RequestError};
use ramfold_budget::control::values::{number, once, pairs, size, switch, trigger};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Compressors beside the first that a disk can have.
pub const PRIORITIES: RangeInclusive<usize> = 1..=3;

ramfold_budget::attributes! {
    /// Something that can be read or written of a disk that runs, by zram's names.
    pub enum Attribute {
        AlgorithmParams = "algorithm_params" Both,
        BackingDev = "backing_dev" Read,
        BdStat = "bd_stat" Read,
        BlockState = "block_state" Read,
        CompAlgorithm = "comp_algorithm" Both,
        Compact = "compact" Write,
        CompressedWriteback = "compressed_writeback" Both,
        DebugStat = "debug_stat" Read,
        Disksize = "disksize" Both,
        FreshEnabled = "fresh_enabled" Both,
        FreshStat = "fresh_stat" Read,
        Idle = "idle" Write,
        Initstate = "initstate" Read,
        IoStat = "io_stat" Read,
        MemLimit = "mem_limit" Both,
        MemUsedMax = "mem_used_max" Write,
        MmStat = "mm_stat" Read,
        RecompAlgorithm = "recomp_algorithm" Both,
        Recompress = "recompress" Write,
        Reset = "reset" Write,
        ShrinkerEnabled = "shrinker_enabled" Both,
        Writeback = "writeback" Write,
        WritebackBatchSize = "writeback_batch_size" Both,
        WritebackLimit = "writeback_limit" Both,
        WritebackLimitEnable = "writeback_limit_enable" Both,
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// To tell an attribute.
    Show(Attribute),
    /// To change something.
    Set(Setting),
}

/// What is to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are zram's")]
pub enum Setting {
    AlgorithmParams {
        algorithm: Algorithm,
        level: Option<i32>,
        dictionary: Option<Wish>,
    },
    CompAlgorithm(String),
    Compact,
    CompressedWriteback(bool),
    Disksize(u64),
    FreshEnabled(bool),
    /// Pages that were not used for so long; zero: all.
    Idle(Duration),
    MemLimit(u64),
    MemUsedMax,
    RecompAlgorithm {
        name: String,
        priority: usize,
    },
    Recompress(Recompress),
    Reset,
    ShrinkerEnabled(bool),
    Writeback(Vec<Chosen>),
    WritebackBatchSize(usize),
    /// Pages.
    WritebackLimit(u64),
    WritebackLimitEnable(bool),
}

/// One of the compressors of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Algorithm {
    /// By its priority; 0: the first.
    Priority(usize),
    /// By its name.
    Name(String),
}

/// The dictionary that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// None.
    None,
    /// One that the disk makes of its own pages.
    Auto,
    /// That of a file.
    File(PathBuf),
}

impl From<&str> for Wish {
    fn from(text: &str) -> Self {
        match text {
            "none" => Self::None,
            "auto" => Self::Auto,
            path => Self::File(PathBuf::from(path)),
        }
    }
}

/// What is to be compressed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recompress {
    /// Which pages.
    pub kind: Kind,
    /// The least bytes that they take now.
    pub threshold: usize,
    /// Pages at most.
    pub max_pages: u64,
    /// By which compressor.
    pub algorithm: Algorithm,
}

/// Pages by what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All.
    Any,
    /// Marked idle.
    Idle,
    /// Kept as they are.
    Huge,
    /// Both.
    HugeIdle,
    /// Kept as they are after a denser compressor was tried.
    Incompressible,
}

/// Pages to be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// By what is known of them.
    Kind(Kind),
    /// By their numbers.
    Pages(RangeInclusive<u64>),
}

impl Request {
    /// Understands a line, without its end.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        match parse(line)? {
            (attribute, None) => Ok(Self::Show(attribute)),
            (attribute, Some(value)) => setting(attribute, value).map(Self::Set),
        }
    }
}

/// What the value of an attribute says.
fn setting(attribute: Attribute, value: &str) -> Result<Setting, RequestError> {
    let (setting, hint) = match attribute {
        Attribute::AlgorithmParams => {
            (algorithm_params(value), "priority=0 to 3 or algo=NAME, and level=N or dict=PATH, auto or none")
        }
        Attribute::CompAlgorithm => (Some(Setting::CompAlgorithm(value.to_owned())), ""),
        Attribute::Compact => (trigger(value).map(|()| Setting::Compact), "1"),
        Attribute::CompressedWriteback => (switch(value).map(Setting::CompressedWriteback), "0 or 1"),
        Attribute::Disksize => (size(value).map(Setting::Disksize), "bytes, or a size such as 512M"),
        Attribute::FreshEnabled => (switch(value).map(Setting::FreshEnabled), "0 or 1"),
        Attribute::Idle => (idle(value).map(Setting::Idle), "all, or an age in seconds"),
        Attribute::MemLimit => {
            (size(value).map(Setting::MemLimit), "bytes, or a size such as 512M; 0: no limit")
        }
        Attribute::MemUsedMax => ((value == "0").then_some(Setting::MemUsedMax), "0"),
        Attribute::RecompAlgorithm => (recomp_algorithm(value), "algo=NAME, priority=1 to 3"),
        Attribute::Recompress => {
            let hint = "type=idle, huge or huge_idle, threshold=BYTES, max_pages=N, priority=1 to 3";
            (recompress(value).map(Setting::Recompress), hint)
        }
        Attribute::Reset => (trigger(value).map(|()| Setting::Reset), "1"),
        Attribute::ShrinkerEnabled => (switch(value).map(Setting::ShrinkerEnabled), "0 or 1"),
        Attribute::Writeback => {
            let hint = "type=huge, idle, huge_idle or incompressible, page_index=N, page_indexes=LOW-HIGH";
            (writeback(value).map(Setting::Writeback), hint)
        }
        Attribute::WritebackBatchSize => (batch(value).map(Setting::WritebackBatchSize), "1 to 65536"),
        Attribute::WritebackLimit => (number(value).map(Setting::WritebackLimit), "a number of pages"),
        Attribute::WritebackLimitEnable => (switch(value).map(Setting::WritebackLimitEnable), "0 or 1"),
        Attribute::BackingDev
        | Attribute::BdStat
        | Attribute::BlockState
        | Attribute::DebugStat
        | Attribute::FreshStat
        | Attribute::Initstate
        | Attribute::IoStat
        | Attribute::MmStat => return Err(RequestError::ReadOnly(attribute.name())),
    };
    setting.ok_or_else(|| RequestError::value(attribute, value, hint))
}

fn batch(text: &str) -> Option<usize> {
    usize::try_from(number(text)?).ok().filter(|size| (1..=65_536).contains(size))
}

fn idle(text: &str) -> Option<Duration> {
    if text == "all" { Some(Duration::ZERO) } else { number(text).map(Duration::from_secs) }
}

fn priority(text: &str) -> Option<usize> {
    usize::try_from(number(text)?).ok().filter(|priority| PRIORITIES.contains(priority))
}

fn algorithm_params(text: &str) -> Option<Setting> {
    let (mut algorithm, mut level, mut dictionary) = (None, None, None);
    for word in pairs(text) {
        match word? {
            ("priority", "0") => once(&mut algorithm, Some(Algorithm::Priority(0)))?,
            ("priority", value) => once(&mut algorithm, priority(value).map(Algorithm::Priority))?,
            ("algo", name) => once(&mut algorithm, Some(Algorithm::Name(name.to_owned())))?,
            ("level", value) => once(&mut level, value.parse().ok())?,
            ("dict", value) => once(&mut dictionary, Some(Wish::from(value)))?,
            _ => return None,
        }
    }
    let algorithm = algorithm.unwrap_or(Algorithm::Priority(0));
    (level.is_some() || dictionary.is_some()).then_some(Setting::AlgorithmParams {
        algorithm,
        level,
        dictionary,
    })
}

fn recomp_algorithm(text: &str) -> Option<Setting> {
    let (mut name, mut rank) = (None, None);
    for word in pairs(text) {
        match word? {
            ("algo", value) => once(&mut name, Some(value.to_owned()))?,
            ("priority", value) => once(&mut rank, priority(value))?,
            _ => return None,
        }
    }
    Some(Setting::RecompAlgorithm { name: name?, priority: rank.unwrap_or(1) })
}

fn recompress(text: &str) -> Option<Recompress> {
    let (mut kind, mut threshold, mut max_pages, mut algorithm) = (None, None, None, None);
    for word in pairs(text) {
        match word? {
            ("type", "idle") => once(&mut kind, Some(Kind::Idle))?,
            ("type", "huge") => once(&mut kind, Some(Kind::Huge))?,
            ("type", "huge_idle") => once(&mut kind, Some(Kind::HugeIdle))?,
            ("threshold", value) => once(&mut threshold, threshold_of(value))?,
            ("max_pages", value) => once(&mut max_pages, number(value))?,
            ("priority", value) => once(&mut algorithm, priority(value).map(Algorithm::Priority))?,
            ("algo", name) => once(&mut algorithm, Some(Algorithm::Name(name.to_owned())))?,
            _ => return None,
        }
    }
    Some(Recompress {
        kind: kind.unwrap_or(Kind::Any),
        threshold: threshold.unwrap_or(0),
        max_pages: max_pages.unwrap_or(u64::MAX),
        algorithm: algorithm.unwrap_or(Algorithm::Priority(1)),
    })
}

fn threshold_of(text: &str) -> Option<usize> {
    usize::try_from(number(text)?).ok().filter(|bytes| *bytes <= ramfold::PAGE_SIZE)
}

fn writeback(text: &str) -> Option<Vec<Chosen>> {
    text.split_whitespace().map(chosen).collect()
}

/// A word of `writeback`; the kinds may stand alone, as in older kernels.
fn chosen(word: &str) -> Option<Chosen> {
    match word.split_once('=').unwrap_or(("type", word)) {
        ("type", "huge") => Some(Chosen::Kind(Kind::Huge)),
        ("type", "idle") => Some(Chosen::Kind(Kind::Idle)),
        ("type", "huge_idle") => Some(Chosen::Kind(Kind::HugeIdle)),
        ("type", "incompressible") => Some(Chosen::Kind(Kind::Incompressible)),
        ("page_index", value) => number(value).map(|page| Chosen::Pages(page..=page)),
        ("page_indexes", value) => {
            let (low, high) = value.split_once('-')?;
            let pages = number(low)?..=number(high)?;
            (!pages.is_empty()).then_some(Chosen::Pages(pages))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(line: &str) -> Setting {
        match Request::parse(line.as_bytes()) {
            Ok(Request::Set(setting)) => setting,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_words_of_zram_are_understood() {
        assert_eq!(Request::parse(b" mm_stat \n".trim_ascii()), Ok(Request::Show(Attribute::MmStat)));
        assert_eq!(set("disksize 1G"), Setting::Disksize(1 << 30));
        assert_eq!(set("mem_limit 0"), Setting::MemLimit(0));
        assert_eq!(set("idle all"), Setting::Idle(Duration::ZERO));
        assert_eq!(set("idle 86400"), Setting::Idle(Duration::from_secs(86400)));
        let name = "zstd".to_owned();
        assert_eq!(
            set("recomp_algorithm algo=zstd priority=2"),
            Setting::RecompAlgorithm { name, priority: 2 }
        );
        let expected = Recompress {
            kind: Kind::HugeIdle,
            threshold: 3000,
            max_pages: 42,
            algorithm: Algorithm::Priority(1),
        };
        assert_eq!(
            set("recompress type=huge_idle threshold=3000 max_pages=42"),
            Setting::Recompress(expected)
        );
        let pages = vec![Chosen::Pages(1..=1), Chosen::Pages(5..=9), Chosen::Kind(Kind::Huge)];
        assert_eq!(set("writeback page_index=1 page_indexes=5-9 type=huge"), Setting::Writeback(pages));
        assert_eq!(set("writeback idle"), Setting::Writeback(vec![Chosen::Kind(Kind::Idle)]));
        let algorithm = Algorithm::Priority(0);
        let expected = Setting::AlgorithmParams { algorithm, level: Some(-7), dictionary: None };
        assert_eq!(set("algorithm_params level=-7"), expected);
        for (word, dictionary) in
            [("auto", Wish::Auto), ("none", Wish::None), ("/etc/dict", Wish::File("/etc/dict".into()))]
        {
            let algorithm = Algorithm::Priority(2);
            let expected = Setting::AlgorithmParams { algorithm, level: None, dictionary: Some(dictionary) };
            assert_eq!(set(&format!("algorithm_params priority=2 dict={word}")), expected);
        }
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line() {
        for (line, part) in [
            ("", "no attribute \"\""),
            ("colour", "no attribute \"colour\""),
            ("mm_stat 1", "only be read"),
            ("reset", "only be written"),
            ("reset 0", "cannot be \"0\""),
            ("disksize -1", "512M"),
            ("disksize 99999999999T", "512M"),
            ("disksize 18446744073709551616", "512M"),
            ("mem_limit 1.5G", "512M"),
            ("idle yesterday", "age in seconds"),
            ("writeback type=warm", "type=huge"),
            ("writeback page_indexes=9-5", "LOW-HIGH"),
            ("writeback_batch_size 0", "65536"),
            ("recompress type=idle type=huge", "type=idle"),
            ("recompress threshold=4097", "threshold"),
            ("recompress priority=4", "priority=1 to 3"),
            ("recomp_algorithm priority=1", "algo=NAME"),
            ("algorithm_params priority=1", "level=N"),
            ("algorithm_params dict=", "dict=PATH"),
            ("algorithm_params dict=auto dict=none", "dict=PATH"),
        ] {
            let error = Request::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part) && error.lines().count() == 1, "{line}: {error}");
        }
        assert_eq!(Request::parse(b"idle all\nreset 1"), Err(RequestError::NoText));
        assert_eq!(Request::parse(&[0xff]), Err(RequestError::NoText));
        assert_eq!(Request::parse(&[b' '; MOST_BYTES + 1]), Err(RequestError::NoText));
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in prop::collection::vec(any::<u8>(), 0..200), text in "[a-z_]{1,12} .{0,60}") {
            let _ = (Request::parse(&line), Request::parse(text.as_bytes()));
        }
    }
}
