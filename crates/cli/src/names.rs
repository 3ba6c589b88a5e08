//! Names on the command line, checked before anything is started.

/// A compressor that exists, with a level that it has.
pub fn compressor(name: &str) -> Result<String, String> {
    ramfold::codec::by_name(name).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

/// A compressor that exists, or none.
pub fn recompressor(name: &str) -> Result<String, String> {
    if name == "none" { Ok(name.to_owned()) } else { compressor(name) }
}

/// A compressor that exists, and for zstd a dictionary: `zstd:9,dict=auto`. What that names is looked for later.
pub fn compressor_of_disk(text: &str) -> Result<String, String> {
    with_dictionary(text, compressor)
}

/// The same, or none.
pub fn recompressor_of_disk(text: &str) -> Result<String, String> {
    with_dictionary(text, recompressor)
}

fn with_dictionary(text: &str, check: fn(&str) -> Result<String, String>) -> Result<String, String> {
    match apart(text) {
        (name, Some("")) => Err(format!("{name}: which dictionary? (give dict=auto or dict=PATH)")),
        (name, Some(_)) if name.split(':').next() != Some("zstd") => {
            Err(format!("{name} has no dictionaries (give zstd, or no dict=)"))
        }
        (name, _) => check(name).map(|_| text.to_owned()),
    }
}

/// A compressor and its dictionary.
pub fn apart(text: &str) -> (&str, Option<&str>) {
    text.split_once(",dict=").map_or((text, None), |(name, dictionary)| (name, Some(dictionary)))
}

/// A zpool that exists.
pub fn zpool(name: &str) -> Result<String, String> {
    let names = ramfold::zpool::NAMES;
    let known = names.contains(&name).then(|| name.to_owned());
    known.ok_or_else(|| format!("no zpool is called \"{name}\" (choose one of {})", names.join(", ")))
}
/// What was asked for, or all there is.
pub fn chosen<'a>(asked: &'a [String], all: &'a [&'a str]) -> Vec<&'a str> {
    if asked.is_empty() { all.to_vec() } else { asked.iter().map(String::as_str).collect() }
}
