//! A parallel build of real C code: the sources of zstd as Cargo unpacked them, a Makefile, and the objects.
//!
//! Each build has a directory of its own, always of the same name and with the sources under a relative name: objects
//! carry the paths of what they were made of, so only then can two builds be compared byte for byte. The compiler's
//! temporary files go there too, and all of it goes when the value is dropped.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// What is compiled, as directories under `zstd/lib`.
const PARTS: [&str; 5] = ["common", "compress", "decompress", "dictBuilder", "legacy"];

/// The same, to see that everything works.
const FEW_PARTS: [&str; 2] = ["common", "dictBuilder"];

/// Debugging information and optimization are what makes a compiler large.
const FLAGS: &str = "-O2 -g -DZSTD_DISABLE_ASM -DZSTD_LEGACY_SUPPORT=1";

/// The C files of zstd.
#[derive(Debug)]
pub struct Sources {
    root: PathBuf,
    /// Relative to the root, in the order in which make starts them.
    files: Vec<String>,
}

impl Sources {
    /// Those in `given`, a directory of the crate zstd-sys, or in the newest one that Cargo has unpacked.
    ///
    /// # Errors
    /// They are not there.
    pub fn find(given: Option<&Path>, few: bool) -> Result<Self> {
        let root = match given {
            Some(directory) => directory.to_owned(),
            None => unpacked(&cargo_home()?)?,
        };
        let parts: &[&str] = if few { &FEW_PARTS } else { &PARTS };
        let mut files = Vec::new();
        for part in parts {
            let part = format!("zstd/lib/{part}");
            let listed = c_files(&root.join(&part));
            let names = listed.with_context(|| {
                format!(
                    "{} has no C files in {part} (--source DIR: the crate zstd-sys, unpacked)",
                    root.display()
                )
            })?;
            files.extend(names.iter().map(|name| format!("{part}/{name}")));
        }
        Ok(Self { root: root.canonicalize()?, files })
    }

    /// How many objects a build makes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// The crate's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn makefile(&self) -> String {
        let objects: Vec<_> = self.files.iter().map(|file| object(file)).collect();
        let mut text = format!("all: {}\n", objects.join(" "));
        for (file, object) in self.files.iter().zip(&objects) {
            text += &format!("{object}: src/{file}\n\tcc {FLAGS} -c -o $@ $<\n");
        }
        text
    }
}

fn object(file: &str) -> String {
    let name = file.trim_start_matches("zstd/lib/").trim_end_matches(".c").replace('/', "-");
    name + ".o"
}

/// In the order of their names; an error if there is none.
fn c_files(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.ends_with(".c") {
            names.push(name);
        }
    }
    ensure!(!names.is_empty(), "no C files");
    names.sort();
    Ok(names)
}

fn cargo_home() -> Result<PathBuf> {
    let given = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    given.or_else(usual).context("neither CARGO_HOME nor HOME is set (use --source DIR)")
}

/// The directory of zstd-sys under `registry/src/*/`, of several the last by name.
fn unpacked(cargo_home: &Path) -> Result<PathBuf> {
    let sources = cargo_home.join("registry/src");
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let crates = entries(&sources).flat_map(|registry| entries(&registry.path()));
    let found = crates.filter(|entry| entry.file_name().to_string_lossy().starts_with("zstd-sys-"));
    let newest = found.map(|entry| entry.path()).max();
    newest.with_context(|| {
        format!("no zstd-sys in {} (cargo fetch unpacks it; or use --source DIR)", sources.display())
    })
}

/// Where one build takes place.
#[derive(Debug)]
pub struct BuildDirectory {
    path: PathBuf,
    kept: bool,
}

impl BuildDirectory {
    /// A fresh one with the Makefile.
    ///
    /// # Errors
    /// It cannot be made, or is there already.
    pub fn new(sources: &Sources) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ramfold-bench-build-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let made = Self { path, kept: false };
        fs::create_dir(made.path.join("tmp"))?;
        symlink(&sources.root, made.path.join("src"))?;
        fs::write(made.path.join("Makefile"), sources.makefile())?;
        Ok(made)
    }

    /// Makes `command` run here; what it says on stderr goes to a file here.
    ///
    /// # Errors
    /// That file cannot be made.
    pub fn place(&self, command: &mut Command) -> Result<()> {
        command.current_dir(&self.path).env("TMPDIR", self.path.join("tmp")).env("LC_ALL", "C");
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
            command.env_remove(name);
        }
        command.stdout(std::process::Stdio::null()).stderr(fs::File::create(self.log())?);
        Ok(())
    }

    /// What the build said on stderr.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read(self.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Leaves everything where it is, as evidence; where that is.
    pub fn keep(&mut self) -> &Path {
        self.kept = true;
        &self.path
    }

    /// What was built.
    ///
    /// # Errors
    /// Not every object is there.
    pub fn objects(&self, sources: &Sources) -> Result<Objects> {
        Objects::read(&self.path, sources.files.iter().map(|file| object(file)))
    }

    fn log(&self) -> PathBuf {
        self.path.join("stderr")
    }
}

impl Drop for BuildDirectory {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("ramfold-bench: {} is left behind: {error}", self.path.display());
        }
    }
}

/// Length and hash. What is compared comes from one compiler, not from somebody who looks for collisions.
fn fingerprint(content: &[u8]) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    (content.len(), hasher.finish())
}

/// The files that one build or another program made, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objects(BTreeMap<String, (usize, u64)>);

impl Objects {
    /// Those of these names in `directory`.
    ///
    /// # Errors
    /// Not every one is there.
    pub fn read(directory: &Path, names: impl Iterator<Item = String>) -> Result<Self> {
        let fingerprinted = |name: String| {
            let content = fs::read(directory.join(&name)).with_context(|| format!("no file {name}"))?;
            Ok((name, fingerprint(&content)))
        };
        names.map(fingerprinted).collect::<Result<_>>().map(Self)
    }

    /// That these are the same as `expected`.
    ///
    /// # Errors
    /// They differ: in which objects.
    pub fn same_as(&self, expected: &Self) -> Result<()> {
        let names = self.0.keys().chain(expected.0.keys());
        let mut differ: Vec<&str> =
            names.filter(|name| self.0.get(*name) != expected.0.get(*name)).map(String::as_str).collect();
        differ.sort_unstable();
        differ.dedup();
        if !differ.is_empty() {
            bail!("{} of {} files differ: {}", differ.len(), expected.0.len(), differ.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[&str]) -> Sources {
        Sources { root: "/nowhere".into(), files: files.iter().map(|file| (*file).to_owned()).collect() }
    }

    #[test]
    fn the_makefile_has_a_rule_for_each_file() {
        let text = sources(&["zstd/lib/common/debug.c", "zstd/lib/legacy/zstd_v01.c"]).makefile();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "all: common-debug.o legacy-zstd_v01.o");
        assert_eq!(lines[3], "legacy-zstd_v01.o: src/zstd/lib/legacy/zstd_v01.c");
        assert!(lines[4].starts_with("\tcc "));
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn one_other_byte_is_a_difference() {
        let objects = |bytes: [&[u8]; 2]| {
            Objects(["a.o", "b.o"].map(str::to_owned).into_iter().zip(bytes.map(fingerprint)).collect())
        };
        let expected = objects([b"one", b"two"]);
        assert!(objects([b"one", b"two"]).same_as(&expected).is_ok());
        let error = objects([b"one", b"twO"]).same_as(&expected).unwrap_err().to_string();
        assert_eq!(error, "1 of 2 files differ: b.o");
        assert!(Objects(BTreeMap::new()).same_as(&expected).is_err());
    }
}
