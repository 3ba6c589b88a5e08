//! The rules of CONTRIBUTING.md that a program can see, and a test that it sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Characters in a line. What stands in a string may be longer.
const WIDTH: usize = 120;
/// Lines in a function.
const FUNCTION: usize = 70;
/// Lines in a file, without its tests.
const FILE: usize = 500;
/// Files with unsafe code, and folders; no other may have any.
const UNSAFE: &[&str] = &include!("tidy/unsafe.in");

/// A Rust file, by its path from the root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        self.path.contains("tests/")
            || self.path.ends_with("tests.rs")
            || self.path.starts_with("crates/bench/")
    }

    /// The lines before its tests.
    fn code(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
    }

    /// The lines with their numbers, strings emptied.
    fn lines(&self) -> impl Iterator<Item = (usize, String)> {
        without_strings(&self.text).into_iter().enumerate().map(|(at, line)| (at + 1, line))
    }
}

/// The lines of a text with nothing in their string literals.
fn without_strings(text: &str) -> Vec<String> {
    let (mut lines, mut raw) = (vec![], None::<String>);
    let mut inside = false;
    for line in text.lines() {
        let mut kept = String::new();
        let mut rest = line;
        while !rest.is_empty() {
            if let Some(end) = &raw {
                let Some(at) = rest.find(end.as_str()) else { break };
                rest = &rest[at + end.len()..];
                raw = None;
            } else if inside {
                let Some(at) = rest.find(['"', '\\']) else { break };
                inside = rest[at..].starts_with('\\');
                rest = rest.get(at + 1 + usize::from(inside)..).unwrap_or_default();
            } else if kept.trim_start().starts_with("//") {
                kept.push_str(rest);
                break;
            } else {
                let c = rest.chars().next().unwrap_or_default();
                let start = rest
                    .find('"')
                    .filter(|at| rest[..*at].trim_start_matches('r').bytes().all(|b| b == b'#'));
                if let Some(at) = start.filter(|_| c == 'r' || c == '"') {
                    match c {
                        'r' => raw = Some(format!("\"{}", "#".repeat(at - 1))),
                        _ => inside = true,
                    }
                    rest = &rest[at + 1..];
                } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
                    rest = &rest[3..];
                } else {
                    kept.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        lines.push(kept);
    }
    lines
}

/// All Rust files of the workspace.
fn sources(root: &Path) -> Vec<Source> {
    let mut found = vec![];
    let mut folders = ["src", "tests", "crates", "fuzz"].map(|name| root.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_symlink() {
                // What it leads to is met where it is.
            } else if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path: name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found
}

fn has_word(code: &str, wanted: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == wanted)
}

/// What is wrong with one file.
fn complaints(source: &Source) -> Vec<String> {
    let mut wrong = vec![];
    let path = &source.path;
    let opening = source.text.lines().find(|line| !line.starts_with("#!["));
    if !opening.is_some_and(|line| line.starts_with("//!")) {
        wrong.push(format!("{path}: opens with no text"));
    }
    let wide = source.lines().filter(|(_, line)| line.chars().count() > WIDTH);
    wrong.extend(wide.map(|(at, _)| format!("{path}:{at}: wider than {WIDTH}")));
    let count = source.code().lines().count();
    if !source.is_test() && count > FILE {
        wrong.push(format!("{path}: {count} lines without tests"));
    }
    let lines: Vec<(usize, String)> = source.lines().collect();
    if !UNSAFE.iter().any(|listed| path.starts_with(listed)) && !source.is_test() {
        let is_unsafe = |line: &str| has_word(line.split("//").next().unwrap_or_default(), "unsafe");
        let first = lines.iter().take(count).find(|(_, line)| is_unsafe(line));
        wrong.extend(first.map(|(at, _)| format!("{path}:{at}: unsafe, and not in tests/tidy/unsafe.in")));
    }
    for (index, (at, line)) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let is_function =
            line.trim_start().split(' ').take(6).any(|word| word == "fn") && !line.contains("//");
        let end = format!("{}}}", " ".repeat(indent));
        let len = lines[index..].iter().position(|(_, line)| *line == end).map_or(0, |lines| lines + 1);
        let in_one_line = line.ends_with('}') || line.ends_with(';');
        if is_function && !in_one_line && len > FUNCTION {
            wrong.push(format!("{path}:{at}: a function of {len} lines"));
        }
    }
    wrong
}

/// Which module of which crate a file is part of: the first name below `src`.
fn module(path: &str) -> Option<(&str, &str)> {
    let (package, inside) = match path.strip_prefix("src/") {
        Some(inside) => ("ramfold", inside),
        None => path.strip_prefix("crates/")?.split_once("/src/")?,
    };
    let name = inside.split('/').next()?.trim_end_matches(".rs");
    (!["lib", "main", "bin"].contains(&name)).then_some((package, name))
}

/// What follows `crate::`: a name, or several in braces.
fn named(text: &str) -> Vec<&str> {
    let first = |part: &'_ str| part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len());
    let Some(list) = text.strip_prefix('{') else { return vec![&text[..first(text)]] };
    let (mut depth, mut names, mut from) = (0, vec![], 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let part = list[from..at].trim_start();
                names.push(&part[..first(part)]);
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// Sets of modules of a crate that import each other, in one line each.
fn circles(sources: &[Source]) -> BTreeSet<String> {
    let mut imports: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some((package, name)) = module(&source.path) else { continue };
        let code = source.code().lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join(" ");
        for part in code.split("crate::").skip(1) {
            let names = named(part).into_iter().filter(|other| *other != name).map(str::to_owned);
            imports.entry((package, name)).or_default().extend(names);
        }
    }
    let reach = |from: (&str, &str)| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.1.to_owned()]);
        while let Some(at) = next.pop() {
            for other in imports.get(&(from.0, at.as_str())).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    next.push(other.clone());
                }
            }
        }
        seen
    };
    let mut found = BTreeSet::new();
    for (package, name) in imports.keys() {
        let reached = reach((package, name));
        if reached.contains(*name) {
            let circle = reached.iter().filter(|other| reach((package, other)).contains(*name));
            let names: Vec<&str> = circle.map(String::as_str).collect();
            found.insert(format!("{package}: {}", names.join(" ")));
        }
    }
    found
}

/// What CONTRIBUTING.md tells of a page's way and is not so: a file that is not there, a name that no file of its step
/// has. A file without a folder lies beside the one before.
fn astray(text: &str, sources: &[Source]) -> Vec<String> {
    let way = text.split("## A page's way").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut steps: Vec<String> = vec![];
    for line in way.unwrap_or_default().lines() {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            steps.push(String::new());
        }
        steps.last_mut().into_iter().for_each(|step| step.push_str(line));
    }
    let mut wrong = if steps.len() == 10 { vec![] } else { vec![format!("{} steps", steps.len())] };
    for step in &steps {
        let (files, names): (Vec<&str>, Vec<&str>) =
            step.split('`').skip(1).step_by(2).partition(|word| word.ends_with(".rs"));
        let (mut folder, mut code) = ("", String::new());
        for file in files {
            let path = if file.contains('/') { file.to_owned() } else { format!("{folder}/{file}") };
            folder = file.rsplit_once('/').map_or(folder, |(folder, _)| folder);
            match sources.iter().find(|source| source.path == path) {
                Some(source) => code.push_str(source.code()),
                None => wrong.push(format!("there is no {path}")),
            }
        }
        let unknown = names.iter().filter(|name| !name.split("::").all(|part| has_word(&code, part)));
        wrong.extend(unknown.map(|name| format!("no {name}: {step}")));
    }
    wrong
}

fn workspace() -> Vec<Source> {
    sources(Path::new(env!("CARGO_MANIFEST_DIR")))
}

#[test]
fn every_file_keeps_the_rules() {
    let wrong: Vec<String> = workspace().iter().flat_map(complaints).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    assert_eq!(circles(&workspace()), BTreeSet::new());
}

#[test]
fn the_way_of_a_page_is_as_it_is_told() {
    let told = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).unwrap();
    let sources = workspace();
    assert_eq!(astray(&told, &sources), Vec::<String>::new());
    for (true_word, wrong_word) in [("bring_back", "bring_bock"), ("streams.rs", "stream.rs"), ("\n9. ", " ")]
    {
        assert!(
            told.contains(true_word) && !astray(&told.replace(true_word, wrong_word), &sources).is_empty()
        );
    }
}

#[test]
fn what_breaks_a_rule_is_seen() {
    let told = |path: &str, text: &str| complaints(&Source { path: path.to_owned(), text: text.to_owned() });
    let sees = |text: &str, part: &str| {
        let told = told("src/some.rs", text);
        assert!(told.len() == 1 && told[0].contains(part), "{part}: {told:?}");
    };
    let line = |len: usize| format!("//! Text.\n// {}\n", "x".repeat(len - 3));
    assert_eq!(told("src/some.rs", &line(WIDTH)), Vec::<String>::new());
    sees(&line(WIDTH + 1), "some.rs:2: wider");
    assert_eq!(
        told("src/some.rs", &format!("//! Text.\nconst A: &str = \"{}\";\n", "x".repeat(200))).len(),
        0
    );
    sees("use std::fs;\n", "opens with no text");
    let function = |lines: usize| format!("//! Text.\npub fn f() {{\n{}}}\n", "    f();\n".repeat(lines - 2));
    assert_eq!(told("src/some.rs", &function(FUNCTION)), Vec::<String>::new());
    sees(&function(FUNCTION + 1), "a function of 71 lines");
    let file = |lines: usize| format!("//! Text.\n{}", "use a;\n".repeat(lines - 1));
    assert_eq!(told("src/some.rs", &file(FILE)), Vec::<String>::new());
    assert_eq!(
        told("src/some.rs", &format!("{}#[cfg(test)]\nmod tests {{\n}}\n", file(FILE))),
        Vec::<String>::new()
    );
    sees(&file(FILE + 1), "501 lines");
    sees("//! Text.\nfn f() { unsafe { g() } }\n", "some.rs:2: unsafe");
    assert_eq!(
        told("src/some.rs", "//! Text.\n// unsafe\nconst A: &str = \"unsafe\";\n"),
        Vec::<String>::new()
    );
}

#[test]
fn what_goes_round_is_seen() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let straight =
        [source("src/a.rs", "use crate::b::B;\n"), source("src/b.rs", "use crate::{c::{C, X}, d::D};\n")];
    assert_eq!(circles(&straight), BTreeSet::new());
    let [a, b] = straight;
    let round = circles(&[a, b, source("src/d/mod.rs", "fn f() -> crate::a::A\n")]);
    assert_eq!(round, BTreeSet::from(["ramfold: a b d".to_owned()]));
}
