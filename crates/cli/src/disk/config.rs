//! Disks of a file, and of the words of `hot_add`: by the options of the command line.
//!
//! A table `[[disk]]` is turned into the arguments that say the same, and these are parsed as the command's own are. So
//! what an option is called, what it can be and what it goes together with is told in one place. Its name may have `_`
//! where the command line has `-`, as zram's attributes have.

use super::Options;
use crate::failure::{Failure, line_of};
use clap::{Args, FromArgMatches};
use ramfold_budget::control::values::switch;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Options that each disk has its own of; those of a socket and the name beside them.
pub const OF_A_DISK: [&str; 17] = [
    "size",
    "mem_limit",
    "backing_dev",
    "backing_size",
    "persist",
    "durable",
    "accept_stale",
    "comp_algorithm",
    "recomp_algorithm",
    "zpool",
    "accept_threshold_percent",
    "no_same_filled",
    "no_duplicates",
    "no_fresh",
    "tls_certificates",
    "tls_verify_peer",
    "no_tls",
];
const NAMED: [&str; 5] = ["name", "unix", "tcp", "vhost_user", "ublk"];

/// The disks that a file wants. All of it is wrong usage, but that the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<Options>, Failure> {
    let file = format!("--config {}", path.display());
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| Failure::failed(format!("{file}: {error} (give another file)")))?;
    let wrong = |what: String| Failure::usage(what).within(&file);
    let mut disks: Vec<Options> = Vec::new();
    for (number, table) in tables(&text).map_err(wrong)?.iter().enumerate() {
        let disk = of_table(table).and_then(|disk| apart(&disk, &disks).map(|()| disk));
        disks.push(disk.map_err(|error| error.within(&format!("disk {}", number + 1)).within(&file))?);
    }
    Ok(disks)
}

/// The disk that the words of a request want: `size=1G unix=/run/disk.sock persist`.
pub fn of_words(words: &str) -> Result<Options, Failure> {
    let value = |word: &str| match word.split_once('=') {
        Some((key, value)) => (key.to_owned(), Value::String(value.to_owned())),
        None => (word.to_owned(), Value::Boolean(true)),
    };
    let words: Vec<_> = words.split_whitespace().map(value).collect();
    of_options(words.iter().map(|(key, value)| (&**key, value)))
}

fn tables(text: &str) -> Result<Vec<Table>, String> {
    let file: Table = text.parse().map_err(|error| not_toml(text, &error))?;
    let mut tables = Vec::new();
    for (key, value) in file {
        let Value::Array(array) = value else { return Err(unknown(&key)) };
        if key != "disk" {
            return Err(unknown(&key));
        }
        for table in array {
            let Value::Table(table) = table else { return Err(unknown(&key)) };
            tables.push(table);
        }
    }
    Ok(tables)
}

fn unknown(key: &str) -> String {
    format!("{key}: there is no such thing in it (write a table [[disk]] for each disk)")
}

fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    format!("line {line}: {}", error.message().split_whitespace().collect::<Vec<_>>().join(" "))
}

fn of_table(table: &Table) -> Result<Options, Failure> {
    of_options(table.iter().map(|(key, value)| (&**key, value)))
}

fn of_options<'a>(options: impl Iterator<Item = (&'a str, &'a Value)>) -> Result<Options, Failure> {
    let command = Options::augment_args(clap::Command::new("disk").no_binary_name(true));
    let mut arguments = Vec::new();
    for (key, value) in options {
        arguments.extend(argument(&command, key, value).map_err(|why| Failure::usage(why).within(key))?);
    }
    let parsed = command.try_get_matches_from(arguments).and_then(|it| Options::from_arg_matches(&it));
    let options = parsed.map_err(|error| Failure::usage(line_of(&error)))?;
    options.settings()?;
    Ok(options)
}

/// What says on the command line that an option has this value; None: that it is off.
fn argument(command: &clap::Command, key: &str, value: &Value) -> Result<Option<String>, &'static str> {
    let (id, name) = (key.replace('-', "_"), key.replace('_', "-"));
    let known = |arg: &&clap::Arg| *arg.get_id() == id && OF_A_DISK.iter().chain(&NAMED).any(|it| *it == id);
    let option =
        command.get_arguments().find(known).ok_or("a disk has no such option (see ramfold disk --help)")?;
    let is_switch = !option.get_action().takes_values();
    let may_be_alone = option.get_num_args().is_some_and(|values| values.min_values() == 0);
    if is_switch || may_be_alone && matches!(value, Value::Boolean(_)) {
        let on = match value {
            Value::Boolean(on) => Some(*on),
            Value::String(text) => switch(text),
            _ => None,
        };
        return on.map(|on| on.then(|| format!("--{name}"))).ok_or("it is on or off (give true or false)");
    }
    match value {
        Value::String(text) => Ok(Some(format!("--{name}={text}"))),
        Value::Integer(number) => Ok(Some(format!("--{name}={number}"))),
        _ => Err("it has a value (give a text or a number)"),
    }
}

/// Two disks of one name or one socket are a mistake that would be told late.
fn apart(disk: &Options, others: &[Options]) -> Result<(), Failure> {
    let absolute = |path: &Option<PathBuf>| path.as_ref().and_then(|path| std::path::absolute(path).ok());
    for (number, other) in others.iter().enumerate() {
        let alike = [
            ("name", disk.name.is_some() && disk.name == other.name),
            ("unix", disk.unix.is_some() && absolute(&disk.unix) == absolute(&other.unix)),
            (
                "vhost-user",
                disk.vhost_user.is_some() && absolute(&disk.vhost_user) == absolute(&other.vhost_user),
            ),
            ("ublk", disk.ublk.flatten().is_some_and(|number| other.ublk.flatten() == Some(number))),
            ("tcp", disk.tcp.is_some_and(|address| address.port() != 0) && disk.tcp == other.tcp),
        ];
        if let Some((key, _)) = alike.iter().find(|(_, is_so)| *is_so) {
            let why = format!("{key}: disk {} has the same (give each its own)", number + 1);
            return Err(Failure::usage(why));
        }
    }
    Ok(())
}
