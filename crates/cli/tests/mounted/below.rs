//! What is mounted below the source: what its mount withholds, the mount of it withholds.

use crate::mounted::{Mounted, Place, as_user, can_mount, need, run, shell};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// A capability that a file lends.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A program that lends its owner's rights, a script and a device.
fn fill(directory: &Path) {
    shell(
        directory,
        "chmod 755 .; cp \"$(command -v id)\" id; chown 55:55 id; chmod 6755 id; mknod -m 666 null c 1 3
         printf '#!/bin/sh\necho ran\n' >script; chmod 755 script; mkdir -m 2755 directory
         cp script listed; chmod 700 listed; setfacl -m u:1234:rx listed",
    );
    setxattr(directory.join("script"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
}

/// Whether a program has its owner's rights, whoever runs it.
fn lends_rights(directory: &Path) -> bool {
    let outcome = as_user(directory, 1234, "", "./id -u; ./id -g");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    match outcome.stdout.as_str() {
        "55\n55\n" => true,
        "1234\n1234\n" => false,
        other => panic!("{other}"),
    }
}

/// Through the mount a directory of the source lends rights, has devices, and runs programs; or does not.
fn check(mounted: &Mounted, name: &str, lends: bool, has_devices: bool, runs: bool) {
    let (directory, source) = (mounted.point().join(name), mounted.source().join(name));
    let mode = |name: &str| fs::metadata(directory.join(name)).unwrap().mode() & 0o7777;
    assert_eq!(mode("directory"), 0o2755, "of a directory the bit says whose is what is made there");
    let mut bytes = [0; 64];
    let capability = getxattr(directory.join("script"), "security.capability", &mut bytes);
    assert_eq!(capability, if lends { Ok(CAPABILITY.len()) } else { Err(Errno::NODATA) }, "{name}");
    let listed = as_user(&directory, 1234, "", "./listed").code == Some(0);
    assert_eq!(listed, runs, "{name}: who is in the list");
    let run = Command::new(directory.join("script")).output();
    assert_eq!(run.is_ok_and(|it| it.status.success()), runs, "{name}");
    if runs {
        assert_eq!(mode("id"), if lends { 0o6755 } else { 0o755 }, "{name}");
        assert_eq!(lends_rights(&directory), lends, "{name}");
    } else {
        assert_eq!(mode("id") & 0o111, 0, "{name}");
    }
    assert!(fs::metadata(directory.join("null")).unwrap().file_type().is_char_device(), "{name}");
    assert_eq!(File::open(directory.join("null")).is_ok(), has_devices, "{name}");
    // The source is what it was.
    assert_eq!(fs::metadata(source.join("id")).unwrap().mode() & 0o7777, 0o6755, "{name}");
    assert_eq!(fs::metadata(source.join("null")).unwrap().rdev(), libc::makedev(1, 3), "{name}");
}

#[test]
fn what_is_mounted_below_the_source_keeps_its_flags() {
    if !can_mount() || !need::programs(&["setfacl"]) {
        return;
    }
    let place = Place::new();
    let source = place.source();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    let medium = |name: &str, flags: &str| {
        let at = source.join(name);
        fs::create_dir(&at).unwrap();
        let flags = format!("{flags},size=16M");
        run(place.path(), &["mount", "-t", "tmpfs", "-o", &flags, "tmpfs", at.to_str().unwrap()]);
        fill(&at);
    };
    // The same file system as the source, shown again without what its own mount has.
    let bound = |name: &str| {
        let (from, at) = (place.path().join(format!("from-{name}")), source.join(name));
        [&from, &at].iter().for_each(|directory| fs::create_dir(directory).unwrap());
        fill(&from);
        let (from, at) = (from.to_str().unwrap(), at.to_str().unwrap());
        run(place.path(), &["mount", "--bind", from, at]);
        run(place.path(), &["mount", "-o", "remount,bind,nosuid,nodev", at]);
    };
    let all = [
        ("suid", "rw", true, true, true),
        ("nosuid", "nosuid", false, true, true),
        ("nodev", "nodev", true, false, true),
        ("noexec", "noexec", true, true, false),
        ("none", "nosuid,nodev,noexec", false, false, false),
    ];
    all.iter().for_each(|(name, flags, ..)| medium(name, flags));
    bound("bound");
    let mounted = place.mount(32, &[]);
    let later: Vec<_> = all.iter().map(|it| (format!("{}-later", it.0), it)).collect();
    later.iter().for_each(|(name, it)| medium(name, it.1));
    bound("bound-later");
    for name in ["bound", "bound-later"] {
        check(&mounted, name, false, false, true);
    }
    let all = all.iter().map(|it| (it.0.to_owned(), it));
    for (name, (_, _, lends, has_devices, runs)) in
        all.chain(later.iter().map(|(name, it)| (name.clone(), *it)))
    {
        check(&mounted, &name, *lends, *has_devices, *runs);
    }
    // On the source itself nothing is withheld.
    fs::create_dir(source.join("own")).unwrap();
    fill(&source.join("own"));
    check(&mounted, "own", true, true, true);
    mounted.stop();
}
