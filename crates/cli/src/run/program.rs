//! Which programs the preload library cannot be put into.
//!
//! The dynamic loader loads it, so a program without one (static), with another one (musl, another
//! architecture), or for which the loader ignores the environment (setuid) runs as without ramfold. So does one that is
//! linked with a sanitizer: the library is there, and keeps apart. This looks at the program that the command names;
//! what it starts later is up to the loader.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreters are scripts: as deep as the kernel follows.
const MAX_SCRIPTS: usize = 5;
/// The most that is read of a table, in bytes.
const MAX_TABLE: usize = 1 << 20;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// How the names of libraries begin in whose company ramfold's passes everything on (`apart.c` has the same).
const SANITIZERS: [&str; 6] = [
    "libasan.so",
    "libtsan.so",
    "libhwasan.so",
    "libclang_rt.asan",
    "libclang_rt.tsan",
    "libclang_rt.hwasan",
];

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Why the program that `name` stands for cannot be managed. `None` if it can, and if it cannot be read or
/// executed at all: exec knows better what to say then.
pub fn unmanageable(name: &OsStr) -> Option<&'static str> {
    let mut path = find(name)?;
    for _ in 0..MAX_SCRIPTS {
        if gains_privileges(&path) {
            return Some("it is setuid, setgid or has capabilities, so the loader ignores ramfold's library");
        }
        let file = File::open(&path).ok()?;
        let mut front = Vec::new();
        (&file).take(4096).read_to_end(&mut front).ok()?;
        match interpreter(&front) {
            Some(next) => path = next,
            None => return elf_reason(&file, &front),
        }
    }
    None
}

/// The file that execvp would take.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let executable = |file: &PathBuf| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(executable)
}

/// The path after `#!`. A text without it is run by the shell, as execvp does.
fn interpreter(front: &[u8]) -> Option<PathBuf> {
    if front.starts_with(b"\x7fELF") {
        return None;
    }
    let Some(line) = front.strip_prefix(b"#!") else { return Some("/bin/sh".into()) };
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let (program, argument) = (words.next()?, words.next());
    // `#!/usr/bin/env python3` is about python3.
    match argument.filter(|a| program.ends_with(b"/env") && !a.starts_with(b"-") && !a.contains(&b'=')) {
        Some(name) => find(OsStr::from_bytes(name)),
        None => Some(OsStr::from_bytes(program).into()),
    }
}

/// Whether exec would set AT_SECURE.
fn gains_privileges(path: &Path) -> bool {
    let Ok(meta) = path.metadata() else { return false };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let setuid = meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid;
    let setgid = meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid;
    let mut value = [0; 64];
    let capable = uid != 0 && rustix::fs::getxattr(path, c"security.capability", &mut value).is_ok();
    setuid || setgid || capable
}

/// A program header of an ELF file, as far as it is wanted here.
struct Part {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

/// Reads the ELF header, its program headers, and which libraries it needs.
fn elf_reason(file: &File, front: &[u8]) -> Option<&'static str> {
    const CLASS_64: u8 = 2;
    if *front.get(4)? != CLASS_64 {
        return Some("it is a 32-bit program, and ramfold's library has 64");
    }
    if u16_at(front, 18)? != MACHINE {
        return Some("it is made for another processor than ramfold's library");
    }
    let parts = parts(file, front)?;
    let Some(loader) = parts.iter().find(|part| part.kind == PT_INTERP) else {
        return Some("it is statically linked, so no loader can put ramfold's library into it");
    };
    if contents(file, loader.offset, loader.len)?.windows(7).any(|bytes| bytes == b"ld-musl") {
        return Some("it uses musl, and ramfold's library is made for glibc");
    }
    let is_sanitizer = |name: &[u8]| SANITIZERS.iter().any(|library| name.starts_with(library.as_bytes()));
    needed(file, &parts)?.iter().any(|name| is_sanitizer(name)).then_some(
        "it is linked with the library of a sanitizer, which has a malloc and an address space of its own",
    )
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn contents(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?.min(MAX_TABLE)];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn parts(file: &File, front: &[u8]) -> Option<Vec<Part>> {
    let (table, size, count) = (u64_at(front, 32)?, u16_at(front, 54)?, u16_at(front, 56)?);
    (0..u64::from(count))
        .map(|index| {
            let header = contents(file, table + index * u64::from(size), 56)?;
            let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
            let [offset, address, len] = [8, 16, 32].map(|at| u64_at(&header, at));
            Some(Part { kind, offset: offset?, address: address?, len: len? })
        })
        .collect()
}

/// The names of the libraries that it is linked with.
fn needed(file: &File, parts: &[Part]) -> Option<Vec<Vec<u8>>> {
    let dynamic = parts.iter().find(|part| part.kind == PT_DYNAMIC)?;
    let entries = contents(file, dynamic.offset, dynamic.len)?;
    let entries: Vec<(u64, u64)> =
        entries.chunks_exact(16).filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?))).collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (address, len) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let holds =
        |part: &&Part| part.kind == PT_LOAD && (part.address..part.address + part.len).contains(&address);
    let part = parts.iter().find(holds)?;
    let names = contents(file, part.offset + (address - part.address), len)?;
    let name = |at: u64| names.get(usize::try_from(at).ok()?..)?.split(|byte| *byte == 0).next();
    Some(
        entries
            .iter()
            .filter(|(tag, _)| *tag == DT_NEEDED)
            .filter_map(|(_, at)| Some(name(*at)?.to_vec()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_found_as_exec_finds_them() {
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#! /opt/x y"), Some("/opt/x".into()));
        assert_eq!(interpreter(b"echo"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"\x7fELF\x02"), None);
        assert_eq!(interpreter(b"#!/usr/bin/env sh\n"), find(OsStr::new("sh")));
        assert_eq!(interpreter(b"#!/usr/bin/env -S sh -e\n"), Some("/usr/bin/env".into()));
    }

    #[test]
    fn ordinary_programs_are_manageable() {
        assert_eq!(unmanageable(OsStr::new("sh")), None);
        assert_eq!(unmanageable(OsStr::new("/proc/self/exe")), None);
        assert_eq!(unmanageable(OsStr::new("no-such-program")), None);
    }

    /// The header of an ELF file for this machine.
    fn header() -> Vec<u8> {
        let mut elf = vec![0u8; 64];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        elf[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        elf
    }

    #[test]
    fn a_header_without_a_loader_is_static() {
        let directory = tempfile::tempdir().unwrap();
        let mut elf = header();
        let reason = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            unmanageable(path.as_os_str()).unwrap_or_default()
        };
        assert!(reason("static", &elf).contains("statically linked"));
        elf[18] = 3;
        assert!(reason("other", &elf).contains("another processor"));
        elf[4] = 1;
        assert!(reason("small", &elf).contains("32-bit"));
        assert_eq!(reason("cut", &elf[..10]), "it is a 32-bit program, and ramfold's library has 64");
        assert_eq!(reason("script", b"#!/bin/sh\n"), "");
    }

    /// An ELF file of one program header: of the loader, whose path follows.
    fn with_loader(loader: &[u8]) -> Vec<u8> {
        let mut elf = header();
        elf.resize(120, 0);
        (elf[32], elf[54], elf[56]) = (64, 56, 1);
        (elf[64], elf[72], elf[96]) = (3, 120, u8::try_from(loader.len()).unwrap());
        elf.extend_from_slice(loader);
        elf
    }

    #[test]
    fn other_loaders_and_more_rights_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, loader: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, with_loader(loader)).unwrap();
            path
        };
        let reason = |path: &Path| unmanageable(path.as_os_str()).unwrap_or_default();
        assert!(reason(&write("musl", b"/lib/ld-musl-x86_64.so.1\0")).contains("musl"));
        let glibc = write("glibc", b"/lib64/ld-linux-x86-64.so.2\0");
        let set = |mode| std::fs::set_permissions(&glibc, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o6755);
        assert_eq!(reason(&glibc), "", "who is its owner already gains nothing");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (mode, user, group) in [(0o4755, 65534, 0), (0o2755, 0, 65534)] {
            std::os::unix::fs::chown(&glibc, Some(user), Some(group)).unwrap();
            set(mode);
            assert!(reason(&glibc).contains("setuid, setgid"), "{mode:o}");
            set(0o755);
            assert_eq!(reason(&glibc), "", "{mode:o}");
        }
    }
}
