//! Codecs by name: `lz4`, `lz4:8`, `zstd:-1`.

use super::{Codec, deflate::Deflate, lz4::Lz4, lz4hc::Lz4Hc, lzo::Lzo, zstd::Zstd};
use std::ops::RangeInclusive;

/// The names that [`by_name`] knows, in the order in which they are offered.
pub const NAMES: &[&str] = &["lz4", "lz4hc", "zstd", "deflate", "lzo", "lzo-rle"];

/// One codec to choose.
struct Choice {
    name: &'static str,
    /// Empty if it has none.
    levels: RangeInclusive<i32>,
    default: i32,
    make: fn(i32) -> Box<dyn Codec>,
}

#[allow(clippy::reversed_empty_ranges, reason = "it is to be empty")]
const NO_LEVELS: RangeInclusive<i32> = 1..=0;

/// What there is to choose, in the order of [`NAMES`].
const CHOICES: &[Choice] = &[
    Choice { name: "lz4", levels: Lz4::LEVELS, default: 1, make: |level| Box::new(Lz4::new(level)) },
    Choice { name: "lz4hc", levels: Lz4Hc::LEVELS, default: 9, make: |level| Box::new(Lz4Hc::new(level)) },
    Choice { name: "zstd", levels: Zstd::LEVELS, default: -1, make: |level| Box::new(Zstd::new(level)) },
    Choice {
        name: "deflate",
        levels: Deflate::LEVELS,
        default: 6,
        make: |level| Box::new(Deflate::new(level)),
    },
    Choice { name: "lzo", levels: NO_LEVELS, default: 0, make: |_| Box::new(Lzo::plain()) },
    Choice { name: "lzo-rle", levels: NO_LEVELS, default: 0, make: |_| Box::new(Lzo::with_zeros()) },
];

/// The codec called `NAME` or `NAME:LEVEL`.
///
/// Without a level `lz4` has acceleration 1, `lz4hc` 9, `zstd` -1 and `deflate` 6. A larger level of `lz4` is
/// faster and packs worse; of all others, slower and better. `lzo` and `lzo-rle` have no levels.
///
/// ```
/// let codec = ramfold::codec::by_name("zstd:-1")?;
/// assert_eq!((codec.name(), codec.level()), ("zstd", Some(-1)));
/// # Ok::<(), ramfold::codec::CodecNameError>(())
/// ```
///
/// # Errors
/// [`CodecNameError`], in one line that lists the choices.
pub fn by_name(text: &str) -> Result<Box<dyn Codec>, CodecNameError> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    let choice = CHOICES.iter().find(|choice| choice.name == name);
    let choice =
        choice.ok_or_else(|| CodecNameError::Unknown { name: name.to_owned(), choices: choices() })?;
    let Some(level) = level else { return Ok((choice.make)(choice.default)) };
    match level.parse() {
        Ok(level) if choice.levels.contains(&level) => Ok((choice.make)(level)),
        _ if choice.levels.is_empty() => Err(CodecNameError::NoLevels { name: choice.name }),
        _ => Err(CodecNameError::Level {
            name: choice.name,
            level: level.to_owned(),
            least: *choice.levels.start(),
            most: *choice.levels.end(),
        }),
    }
}

/// `lz4[:1..65537], lz4hc[:2..9], ...`.
fn choices() -> String {
    let one = |choice: &Choice| match choice.levels.is_empty() {
        true => choice.name.to_owned(),
        false => format!("{}[:{}..{}]", choice.name, choice.levels.start(), choice.levels.end()),
    };
    CHOICES.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why a text names no codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecNameError {
    /// no compressor has this name
    #[error("no compressor is called \"{name}\" (choose one of {choices})")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names and levels there are.
        choices: String,
    },
    /// the compressor has no levels
    #[error("{name} has no levels (give the name alone)")]
    NoLevels {
        /// The compressor.
        name: &'static str,
    },
    /// the compressor has no such level
    #[error("{name} has no level \"{level}\" (choose a number from {least} to {most})")]
    Level {
        /// The compressor.
        name: &'static str,
        /// The level that was asked for.
        level: String,
        /// The smallest level.
        least: i32,
        /// The largest level.
        most: i32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_its_codec() {
        let known: Vec<_> = CHOICES.iter().map(|choice| choice.name).collect();
        assert_eq!(known, NAMES);
        for choice in CHOICES {
            assert_eq!(by_name(choice.name).unwrap().name(), choice.name);
            if choice.levels.is_empty() {
                continue;
            }
            for level in [*choice.levels.start(), *choice.levels.end()] {
                let codec = by_name(&format!("{}:{level}", choice.name)).unwrap();
                assert_eq!((codec.name(), codec.level()), (choice.name, Some(level)));
            }
        }
    }

    #[test]
    fn wrong_names_and_levels_say_what_there_is() {
        let message = by_name("lzma").unwrap_err().to_string();
        assert!(
            message.starts_with("no compressor is called \"lzma\" (choose one of lz4[:1..65537], lz4hc"),
            "{message}"
        );
        for (text, level) in [("zstd:23", "23"), ("zstd:", ""), ("lz4:0", "0"), ("deflate:6x", "6x")] {
            let message = by_name(text).unwrap_err().to_string();
            assert!(message.contains(&format!("no level \"{level}\" (choose a number from ")), "{message}");
            assert_eq!(message.lines().count(), 1);
        }
        let message = by_name("lzo:1").unwrap_err().to_string();
        assert_eq!(message, "lzo has no levels (give the name alone)");
        assert!(by_name("").is_err() && by_name(":").is_err() && by_name("zstd:99999999999").is_err());
    }
}
