//! Values of attributes: what the words of a request say, and how a choice is shown.
//!
//! What is malformed is `None`; the attribute knows what it could have been.

/// Digits alone: no sign, no blank.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A number of bytes, with K, M, G or T for powers of 1024.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let units = ["kK", "mM", "gG", "tT"];
    let unit = units.iter().zip(1..).find(|(letters, _)| text.ends_with(|c| letters.contains(c)));
    let (digits, shift) = unit.map_or((text, 0), |(_, power)| (&text[..text.len() - 1], 10 * power));
    number(digits)?.checked_mul(1 << shift)
}

/// 0 or 1.
#[must_use]
pub fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// What the kernel's files take for "do it": a number that is not 0.
#[must_use]
pub fn trigger(text: &str) -> Option<()> {
    number(text).filter(|number| *number > 0).map(drop)
}

/// Sets what was not set before.
pub fn once<T>(slot: &mut Option<T>, value: Option<T>) -> Option<()> {
    match value {
        Some(value) if slot.is_none() => *slot = Some(value),
        _ => return None,
    }
    Some(())
}

/// The words of a value, each `key=value`.
pub fn pairs(text: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    text.split_whitespace().map(|word| word.split_once('=').filter(|(_, value)| !value.is_empty()))
}

/// The name of a compressor without its level.
#[must_use]
pub fn without_level(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

/// All names in one line, the chosen one in brackets, with its level if it has one: `lz4 [zstd:3]`.
#[must_use]
pub fn choice(names: &[&str], chosen: &str) -> String {
    let bare = without_level(chosen);
    let show = |name: &&str| if *name == bare { format!("[{chosen}]") } else { (*name).to_owned() };
    names.iter().map(show).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say() {
        assert_eq!(
            (size("4096"), size("2k"), size("1T"), size("0")),
            (Some(4096), Some(2048), Some(1 << 40), Some(0))
        );
        for wrong in ["", "K", "-1", "1.5G", "1 G", "99999999999T", "18446744073709551616", "G1"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
        assert_eq!((switch("1"), switch("2")), (Some(true), None));
        assert_eq!((trigger("1"), trigger("0"), trigger("yes")), (Some(()), None, None));
        assert_eq!(pairs("a=1 b c=").collect::<Vec<_>>(), [Some(("a", "1")), None, None]);
        let mut slot = None;
        assert_eq!((once(&mut slot, Some(1)), once(&mut slot, Some(2)), slot), (Some(()), None, Some(1)));
        assert_eq!(choice(&["lz4", "zstd"], "zstd:3"), "lz4 [zstd:3]");
    }
}
