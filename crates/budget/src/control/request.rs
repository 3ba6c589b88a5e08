//! Requests: `ATTRIBUTE` reads, `ATTRIBUTE VALUE` writes, in one line of text.
//!
//! The attributes are a door's own ([`crate::attributes`] names them). What a line says is told before anything is
//! done, and any bytes are safe to parse.

/// The longest line.
pub const MOST_BYTES: usize = 4096;

/// What can be done to an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It can be read.
    Read,
    /// It can be written.
    Write,
    /// It can be read and written.
    Both,
}

/// The attributes of a door.
pub trait Named: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The name of one.
    fn name(self) -> &'static str;

    /// What can be done to it.
    fn access(self) -> Access;
}

/// Names the attributes of a door: an enum that is [`Named`](crate::control::request::Named).
///
/// ```
/// ramfold_budget::attributes! {
///     /// Something that can be read or written of a door.
///     pub enum Attribute {
///         Memlimit = "memlimit" Both,
///         Stat = "stat" Read,
///     }
/// }
/// ```
#[macro_export]
macro_rules! attributes {
    ($(#[$about:meta])* $visible:vis enum $Attribute:ident { $($variant:ident = $name:literal $access:ident,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are users' words")]
        $visible enum $Attribute {
            $($variant,)+
        }

        impl $crate::control::request::Named for $Attribute {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            fn access(self) -> $crate::control::request::Access {
                match self {
                    $(Self::$variant => $crate::control::request::Access::$access,)+
                }
            }
        }
    };
}

/// Why a line is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// the line is too long, or no text
    #[error("the line is longer than {MOST_BYTES} bytes, or no text")]
    NoText,
    /// there is no such attribute
    #[error("there is no attribute \"{0}\" (see ramfold ctl --help)")]
    Unknown(String),
    /// the attribute can only be read
    #[error("{0} can only be read (leave the value out)")]
    ReadOnly(&'static str),
    /// the attribute can only be written
    #[error("{0} can only be written (give a value)")]
    WriteOnly(&'static str),
    /// the value is none that the attribute can have
    #[error("{attribute} cannot be \"{value}\" ({hint})")]
    Value {
        /// Its name.
        attribute: &'static str,
        /// As it was given.
        value: String,
        /// What it can be.
        hint: &'static str,
    },
}

impl RequestError {
    /// This attribute cannot have this value; `hint`: what it can be.
    pub fn value(attribute: impl Named, value: &str, hint: &'static str) -> Self {
        Self::Value { attribute: attribute.name(), value: value.to_owned(), hint }
    }
}

impl From<RequestError> for super::Refusal {
    fn from(error: RequestError) -> Self {
        Self::Wrong(error.to_string())
    }
}

/// The attribute that a line names, and the value that it is to have; `None`: it is to be read. The line has no end.
///
/// # Errors
/// [`RequestError`], but that a value is not looked at.
pub fn parse<A: Named>(line: &[u8]) -> Result<(A, Option<&str>), RequestError> {
    let text = std::str::from_utf8(line).ok().filter(|text| text.len() <= MOST_BYTES);
    let text = text.filter(|text| !text.chars().any(|c| c.is_control() && c != '\t'));
    let text = text.ok_or(RequestError::NoText)?.trim();
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let named = A::ALL.iter().find(|attribute| attribute.name() == name);
    let attribute = *named.ok_or_else(|| RequestError::Unknown(name.to_owned()))?;
    match (value.trim(), attribute.access()) {
        ("", Access::Write) => Err(RequestError::WriteOnly(attribute.name())),
        ("", Access::Read | Access::Both) => Ok((attribute, None)),
        (_, Access::Read) => Err(RequestError::ReadOnly(attribute.name())),
        (value, Access::Write | Access::Both) => Ok((attribute, Some(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    attributes! {
        enum Attribute {
            Compact = "compact" Write,
            Memlimit = "memlimit" Both,
            Stat = "stat" Read,
        }
    }

    #[test]
    fn a_line_reads_or_writes() {
        let parse = |line: &'static str| parse::<Attribute>(line.as_bytes());
        assert_eq!(parse("  stat "), Ok((Attribute::Stat, None)));
        assert_eq!(parse("memlimit"), Ok((Attribute::Memlimit, None)));
        assert_eq!(parse("memlimit\t 1G  2G "), Ok((Attribute::Memlimit, Some("1G  2G"))));
        assert_eq!(parse("stat 1"), Err(RequestError::ReadOnly("stat")));
        assert_eq!(parse("compact"), Err(RequestError::WriteOnly("compact")));
        assert_eq!(parse("Stat"), Err(RequestError::Unknown("Stat".to_owned())));
        assert_eq!(parse("stat\nstat"), Err(RequestError::NoText));
    }
}
