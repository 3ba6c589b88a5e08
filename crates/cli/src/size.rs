//! Sizes as people write them: `512M`, `1.5G`, `4096`.

use std::ops::RangeInclusive;

const UNITS: &[(char, u32)] = &[('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Bytes in `text`: a number, with a decimal point if it likes, and K, M, G or T (powers of 1024). Without a
/// letter the number is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no size (write it like 512M, 1.5G or a number of bytes)");
    let unit = text.chars().last().and_then(|last| {
        UNITS.iter().find(|(letter, _)| letter.eq_ignore_ascii_case(&last)).map(|(_, shift)| *shift)
    });
    let number = if unit.is_some() { &text[..text.len() - 1] } else { text };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits =
        |part: &str| !part.is_empty() && part.len() <= 18 && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (unit.is_none() && number.contains('.')) {
        return Err(wrong());
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
    let value = |part: &str| part.parse::<u128>().map_err(|_| wrong());
    let bytes = ((value(whole)? * scale + value(fraction)?) << unit.unwrap_or(0)) / scale;
    u64::try_from(bytes).map_err(|_| format!("{text} is more than any machine has"))
}

/// A number within `range`; `what` it is, for the message.
pub fn within(text: &str, range: RangeInclusive<f64>, what: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("\"{text}\" is no {what} from {} to {}", range.start(), range.end()))
}

/// `bytes` for people: `1.5 GiB`.
pub fn display(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift != 0);
    match unit {
        Some((letter, shift)) => format!("{:.1} {letter}iB", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("0.25m", 1 << 18),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_told_in_one_line() {
        for text in [
            "",
            "M",
            "-1M",
            "1,5G",
            "1.5",
            "1.G",
            ".5G",
            "1e9",
            "5 M",
            "5MB",
            "0x10",
            "1.2.3M",
            "99999999999T",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        assert_eq!(display(1023), "1023 B");
        assert_eq!(display(3 << 29), "1.5 GiB");
        assert_eq!(display(512 << 20), "512.0 MiB");
    }
}
