//! What file systems do, in a plain directory and through the mount: names, owners, rights, attributes, locks, times.

use crate::mounted::{as_user, both, need, run, shell};
use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::fs::{
    getxattr, lgetxattr, listxattr, lsetxattr, removexattr, renameat_with, setxattr, utimensat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Owner and group.
fn owner(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid())
}

/// A file whose first bytes another user may or may not read, write and so on.
fn can(directory: &Path, user: u32, groups: &str, lines: &str) -> bool {
    as_user(directory, user, groups, lines).code == Some(0)
}

fn size_of_attribute(file: &Path, name: &CStr) -> isize {
    let file = CString::new(file.as_os_str().as_bytes()).unwrap();
    // SAFETY: both strings end with a zero, and nothing is written where there is no room.
    unsafe { libc::getxattr(file.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }
}

#[test]
fn extended_attributes() {
    both(|directory| {
        let file = directory.join("file");
        fs::write(&file, "x").unwrap();
        symlink("file", directory.join("link")).unwrap();
        let value = |path: &Path, name: &str| {
            let mut bytes = vec![0; 4096];
            lgetxattr(path, name, &mut bytes[..]).map(|len| bytes[..len].to_vec())
        };
        let (any, create, replace) = (XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE);
        assert_eq!(value(&file, "user.none").unwrap_err(), Errno::NODATA);
        assert_eq!(setxattr(&file, "user.a", b"1", replace).unwrap_err(), Errno::NODATA);
        setxattr(&file, "user.a", b"with\0zero", create).unwrap();
        assert_eq!(setxattr(&file, "user.a", b"1", create).unwrap_err(), Errno::EXIST);
        setxattr(&file, "user.empty", b"", any).unwrap();
        setxattr(&file, "user.large", &[0xaa; 3000], any).unwrap();
        setxattr(&file, "trusted.b", b"2", any).unwrap();
        lsetxattr(directory.join("link"), "trusted.c", b"of the link", any).unwrap();
        setxattr(directory, "user.of.directory", b"3", any).unwrap();
        assert_eq!(value(&file, "user.a").unwrap(), b"with\0zero");
        assert_eq!(value(&file, "user.empty").unwrap(), b"");
        assert_eq!(value(&file, "user.large").unwrap(), [0xaa; 3000]);
        assert_eq!(value(&directory.join("link"), "trusted.c").unwrap(), b"of the link");
        assert_eq!(getxattr(&file, "user.large", &mut [0_u8; 10][..]).unwrap_err(), Errno::RANGE);
        assert_eq!(size_of_attribute(&file, c"user.large"), 3000);
        let mut names = vec![0; 4096];
        let len = listxattr(&file, &mut names[..]).unwrap();
        let mut names: Vec<&[u8]> =
            names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort();
        assert_eq!(names, [&b"trusted.b"[..], b"user.a", b"user.empty", b"user.large"]);
        setxattr(&file, "user.a", b"2", replace).unwrap();
        assert_eq!(value(&file, "user.a").unwrap(), b"2");
        removexattr(&file, "user.a").unwrap();
        assert_eq!(removexattr(&file, "user.a").unwrap_err(), Errno::NODATA);
        let wrong = setxattr(directory.join("link"), "strange.name", b"", any).unwrap_err();
        assert_eq!(wrong, Errno::OPNOTSUPP);
        // Capabilities of a file end with a write, whoever writes.
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        setxattr(&file, "security.capability", &capability, any).unwrap();
        assert_eq!(value(&file, "security.capability").unwrap(), capability);
        fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"y").unwrap();
        assert_eq!(value(&file, "security.capability").unwrap_err(), Errno::NODATA);
    });
}

#[test]
fn access_control_lists() {
    if !need::programs(&["setfacl", "getfacl"]) {
        return;
    }
    both(|directory| {
        chmod(directory, 0o755);
        shell(
            directory,
            "umask 022; echo secret >file; chmod 600 file; setfacl -m u:1234:r file
             mkdir shared; chmod 700 shared; setfacl -m u:1234:rwx -d -m u:1234:rwx,g::---,o::--- shared
             echo inherited >shared/file; mkdir shared/below",
        );
        assert!(can(directory, 1234, "", "cat file"));
        assert!(!can(directory, 1234, "", "echo >>file"));
        assert!(!can(directory, 1235, "", "cat file"));
        assert!(can(directory, 1234, "", "cat shared/file; echo mine >>shared/file; touch shared/below/new"));
        assert!(!can(directory, 1235, "", "ls shared/below"));
        let lists = run(directory, &["getfacl", "-nEp", "file", "shared", "shared/file", "shared/below"]);
        let expected = "# file: file\n# owner: 0\n# group: 0\nuser::rw-\nuser:1234:r--\ngroup::---\nmask::r--\n\
            other::---\n\n# file: shared\n# owner: 0\n# group: 0\nuser::rwx\nuser:1234:rwx\ngroup::---\nmask::rwx\n\
            other::---\ndefault:user::rwx\ndefault:user:1234:rwx\ndefault:group::---\ndefault:mask::rwx\n\
            default:other::---\n\n# file: shared/file\n# owner: 0\n# group: 0\nuser::rw-\n\
            user:1234:rwx\ngroup::---\nmask::rw-\nother::---\n\n# file: shared/below\n# owner: 0\n\
            # group: 0\nuser::rwx\nuser:1234:rwx\ngroup::---\nmask::rwx\nother::---\ndefault:user::rwx\n\
            default:user:1234:rwx\ndefault:group::---\ndefault:mask::rwx\ndefault:other::---\n\n";
        assert_eq!(lists, expected);
        // The mask is the group's part of the mode.
        shell(directory, "chmod g= file");
        assert!(!can(directory, 1234, "", "cat file"));
        shell(directory, "setfacl -b file");
        assert_eq!(mode(&directory.join("file")), 0o600);
    });
}

/// As chmod(2) does: who is not in the file's group takes its bit away.
#[test]
fn a_list_lends_no_rights_of_a_group() {
    if !need::programs(&["setfacl"]) {
        return;
    }
    both(|directory| {
        chmod(directory, 0o755);
        for (name, made) in [("file", "echo text >file"), ("directory", "mkdir directory")] {
            shell(directory, made);
            let path = directory.join(name);
            chown(&path, Some(1234), Some(88)).unwrap();
            for (groups, as_root, after) in
                [("", false, 0o0750), ("88", false, 0o2750), ("", true, 0o2750), ("99,88,77", false, 0o2750)]
            {
                chmod(&path, 0o2750);
                assert_eq!(mode(&path), 0o2750);
                let lines = format!("setfacl -m u:55:rx {name}");
                match as_root {
                    true => drop(shell(directory, &lines)),
                    false => assert!(can(directory, 1234, groups, &lines), "{name}, {groups}"),
                }
                assert_eq!(mode(&path), after, "{name}, {groups:?}, {as_root}: {:o}", mode(&path));
                assert!(shell(directory, &format!("getfacl -n {name}")).contains("user:55:r-x"));
            }
            chmod(&path, 0o2750);
            let lines = format!("setfacl -m u::rwx,g::rx,o::- {name}; setfacl -b {name}");
            assert!(can(directory, 1234, "", &lines), "{name}");
            assert_eq!(mode(&path), 0o750, "a list that says what the mode says");
            chmod(&path, 0o2750);
            if name == "directory" {
                assert!(can(directory, 1234, "", "setfacl -d -m u:55:rx directory"));
                assert_eq!(mode(&path), 0o2750, "a list for what is made there is none of its own");
            }
        }
    });
}

#[test]
fn files_belong_to_who_makes_them() {
    both(|directory| {
        chmod(directory, 0o777);
        assert!(can(
            directory,
            1234,
            "",
            "umask 027; echo mine >file; mkdir sub; ln -s file link; mkfifo fifo"
        ));
        for name in ["file", "sub", "link", "fifo"] {
            assert_eq!(owner(&directory.join(name)), (1234, 1234), "{name}");
        }
        assert_eq!((mode(&directory.join("file")), mode(&directory.join("sub"))), (0o640, 0o750));
        assert!(!can(directory, 1235, "", "cat file"));
        assert!(!can(directory, 1235, "", "ls sub"));
        assert!(!can(directory, 1235, "", "chmod 666 file"));
        assert!(!can(directory, 1235, "", "touch -d 2001-01-01 file"));
        assert!(can(directory, 1235, "1234", "cat file; ls sub"), "further groups count");
        assert!(!can(directory, 1235, "1234", "echo >file"));
        assert!(can(directory, 1234, "2345", "chgrp 2345 file"), "the owner gives it to a group of his");
        assert!(!can(directory, 1234, "2345", "chgrp 3456 file"));
        assert!(!can(directory, 1234, "", "chown 1235 file"));
        assert_eq!(owner(&directory.join("file")), (1234, 2345));
        chown(directory.join("file"), Some(77), Some(88)).unwrap();
        assert_eq!(owner(&directory.join("file")), (77, 88));
        // In a sticky directory only the owner removes.
        chmod(directory, 0o1777);
        assert!(!can(directory, 1235, "", "rm -f fifo"));
        assert!(!can(directory, 1235, "", "mv fifo other"));
        assert!(can(directory, 1234, "", "rm fifo"));
        chmod(directory, 0o755);
        assert!(!can(directory, 1234, "", "touch new"));
        assert!(!can(directory, 1234, "", "rm -f link"));
    });
}

#[test]
fn groups_of_directories_are_inherited() {
    both(|directory| {
        let shared = directory.join("shared");
        fs::create_dir(&shared).unwrap();
        chown(&shared, None, Some(4321)).unwrap();
        chmod(&shared, 0o2777);
        shell(&shared, "umask 022; echo x >file; mkdir sub; ln -s x link");
        assert!(can(&shared, 1234, "", "umask 022; echo x >theirs; mkdir their-sub"));
        for name in ["file", "sub", "link", "theirs", "their-sub"] {
            assert_eq!(owner(&shared.join(name)).1, 4321, "{name}");
        }
        assert_eq!((mode(&shared.join("sub")), mode(&shared.join("their-sub"))), (0o2755, 0o2755));
        assert_eq!(mode(&shared.join("file")), 0o644);
        // Who is not in the group cannot give a file its rights.
        assert!(can(&shared, 1234, "", "chmod 2755 theirs"));
        assert_eq!(mode(&shared.join("theirs")), 0o755);
    });
}

#[test]
fn rights_of_programs_end_when_they_change() {
    both(|directory| {
        let file = directory.join("file");
        let set = |with: u32| {
            fs::write(&file, "some text").unwrap();
            chmod(&file, with);
        };
        for (lines, after) in [
            ("echo more >>file", 0o777),
            ("echo less >file", 0o777),
            ("truncate -s 3 file", 0o777),
            ("dd if=/dev/zero of=file bs=1 count=1 conv=notrunc 2>/dev/null", 0o777),
            ("cat file >/dev/null", 0o6777),
            ("fallocate -l 100000 file", 0o777),
        ] {
            set(0o6777);
            assert!(can(directory, 1234, "", lines), "{lines}");
            assert_eq!(mode(&file), after, "{lines}: {:o}", mode(&file));
        }
        // A group's bit without the right to execute is of another kind, and stays with who is in the group.
        set(0o4666);
        assert!(can(directory, 1234, "", "echo more >>file"));
        assert_eq!(mode(&file), 0o666);
        for (groups, lines, after) in [
            ("", "echo more >>file", 0o666),
            ("", "truncate -s 3 file", 0o666),
            ("", "fallocate -l 100000 file", 0o666),
            ("88", "echo more >>file", 0o2666),
            ("88", "truncate -s 3 file", 0o2666),
            ("88", "fallocate -l 100000 file", 0o2666),
        ] {
            chown(&file, None, Some(88)).unwrap();
            set(0o6666);
            assert!(can(directory, 1234, groups, lines), "{lines}");
            assert_eq!(mode(&file), after, "{groups}, {lines}: {:o}", mode(&file));
        }
        chown(&file, None, Some(0)).unwrap();
        // Root may, if it has the capability.
        set(0o4755);
        shell(directory, "echo more >>file");
        assert_eq!(mode(&file), 0o4755);
        let incapable = "setpriv --bounding-set -fsetid --inh-caps -fsetid -- sh -euc";
        for lines in ["echo more >>file", "truncate -s 3 file", "fallocate -l 100000 file"] {
            set(0o6755);
            shell(directory, lines);
            assert_eq!(mode(&file), 0o6755, "{lines}");
            shell(directory, &format!("{incapable} '{lines}'"));
            assert_eq!(mode(&file), 0o755, "{lines}");
        }
        // It has it in a namespace of its own, where it is none of the file's.
        if need::user_namespace() {
            set(0o6755);
            shell(directory, "unshare -U -r sh -euc 'echo more >>file'");
            assert_eq!(mode(&file), 0o755);
        }
        // A new owner takes them.
        chown(&file, Some(1234), Some(1234)).unwrap();
        assert_eq!(mode(&file), 0o755);
    });
}

/// A program that lends its owner's rights lends them no more from the write on, whatever was believed of it.
#[test]
fn nobody_has_the_rights_of_a_program_that_he_changed() {
    both(|directory| {
        chmod(directory, 0o777);
        shell(
            directory,
            "cp \"$(command -v id)\" program; chown 55:55 program; chmod 6777 program; ./program",
        );
        let uses = |lines: &str| as_user(directory, 1234, "", lines).stdout;
        assert_eq!(uses("./program -u; ./program -g"), "55\n55\n");
        assert_eq!(uses("./program -u; printf x >>program; ./program -u; ./program -g"), "55\n1234\n1234\n");
        // With what was written going by the kernel's copy, and by none.
        for how in ["", "oflag=direct"] {
            shell(directory, "chmod 6777 program");
            let lines = format!(
                "./program -u; dd if=program of=program bs=4096 count=1 conv=notrunc {how} 2>/dev/null; ./program -u"
            );
            assert_eq!(uses(&lines), "55\n1234\n", "{how}");
        }
    });
}

#[test]
fn links_of_both_kinds() {
    both(|directory| {
        let (one, two) = (directory.join("one"), directory.join("two"));
        fs::write(&one, "first").unwrap();
        fs::hard_link(&one, &two).unwrap();
        let (a, b) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
        assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
        fs::write(&two, "second, and longer").unwrap();
        assert_eq!(fs::read(&one).unwrap(), b"second, and longer");
        fs::remove_file(&one).unwrap();
        assert_eq!(fs::metadata(&two).unwrap().nlink(), 1);
        assert_eq!(fs::read(&two).unwrap(), b"second, and longer");
        let long = "x/".repeat(2000);
        for (target, name) in [("two", "good"), ("nowhere", "dangling"), (&long, "long")] {
            symlink(target, directory.join(name)).unwrap();
            assert_eq!(fs::read_link(directory.join(name)).unwrap(), Path::new(target));
        }
        assert_eq!(fs::symlink_metadata(directory.join("long")).unwrap().len(), 4000);
        assert_eq!(fs::read(directory.join("good")).unwrap(), b"second, and longer");
        assert!(!directory.join("dangling").exists());
        fs::create_dir(directory.join("sub")).unwrap();
        assert_eq!(fs::metadata(directory).unwrap().nlink(), 3);
        fs::hard_link(directory.join("good"), directory.join("sub/link")).unwrap();
        assert!(fs::symlink_metadata(directory.join("sub/link")).unwrap().is_symlink());
        assert!(fs::hard_link(directory.join("sub"), directory.join("other")).is_err());
    });
}

#[test]
fn pipes_sockets_and_devices() {
    both(|directory| {
        shell(directory, "mkfifo -m 600 fifo; mknod -m 666 null c 1 3; mknod -m 660 block b 7 200");
        shell(directory, "cat fifo >out & echo through >fifo; wait");
        assert_eq!(fs::read(directory.join("out")).unwrap(), b"through\n");
        let kind = |name: &str| fs::metadata(directory.join(name)).unwrap();
        assert!(kind("fifo").file_type().is_fifo() && mode(&directory.join("fifo")) == 0o600);
        assert!(kind("null").file_type().is_char_device());
        assert_eq!(kind("null").rdev(), libc::makedev(1, 3));
        assert!(kind("block").file_type().is_block_device());
        assert_eq!(kind("block").rdev(), libc::makedev(7, 200));
        fs::write(directory.join("null"), "gone").unwrap();
        assert_eq!(fs::read(directory.join("null")).unwrap(), b"");
        let path = directory.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let mut heard = String::new();
        listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
        assert!(heard == "hello" && kind("socket").file_type().is_socket());
    });
}

#[test]
fn renames_of_every_kind() {
    both(|directory| {
        let at = |name: &str| directory.join(name);
        let rename = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("b"), "b").unwrap();
        fs::create_dir_all(at("full/inside")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        let held = File::open(at("a")).unwrap();
        assert_eq!(rename("a", "b", RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
        rename("a", "c", RenameFlags::NOREPLACE).unwrap();
        rename("c", "a", RenameFlags::NOREPLACE).unwrap();
        rename("a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!((fs::read(at("a")).unwrap(), fs::read(at("b")).unwrap()), (b"b".to_vec(), b"a".to_vec()));
        rename("a", "full", RenameFlags::EXCHANGE).unwrap();
        assert!(at("a/inside").is_dir() && at("full").is_file());
        rename("a", "full", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(rename("a", "none", RenameFlags::EXCHANGE).unwrap_err(), Errno::NOENT);
        let mut bytes = [0];
        held.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"a", "who has it open has the same file");
        fs::rename(at("a"), at("b")).unwrap();
        assert_eq!((fs::read(at("b")).unwrap(), at("a").exists()), (b"b".to_vec(), false));
        assert_eq!(held.metadata().unwrap().nlink(), 0);
        let failed = |from: &str, to: &str| fs::rename(at(from), at(to)).unwrap_err().raw_os_error();
        assert_eq!(failed("empty", "full"), Some(libc::ENOTEMPTY));
        assert_eq!(failed("full", "full/inside/x"), Some(libc::EINVAL));
        assert_eq!(failed("b", "empty"), Some(libc::EISDIR));
        assert_eq!(failed("empty", "b"), Some(libc::ENOTDIR));
        fs::write(at("full/inside/file"), "deep").unwrap();
        fs::rename(at("full"), at("empty")).unwrap();
        assert_eq!(fs::read(at("empty/inside/file")).unwrap(), b"deep");
        fs::rename(at("empty/inside"), at("moved")).unwrap();
        assert_eq!(fs::read(at("moved/file")).unwrap(), b"deep");
        assert_eq!(fs::remove_dir(at("moved")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        assert!(fs::read_dir(at("empty")).unwrap().next().is_none());
    });
}

#[test]
fn names_of_every_kind() {
    both(|directory| {
        let long = "n".repeat(255);
        let names: [&[u8]; 5] =
            [long.as_bytes(), b"line\nbreak", b"\xff\xfe", b" ", "\u{fc}n\u{ef}code".as_bytes()];
        for name in names {
            fs::write(directory.join(OsStr::from_bytes(name)), name).unwrap();
        }
        let mut found: Vec<Vec<u8>> =
            fs::read_dir(directory).unwrap().map(|it| it.unwrap().file_name().as_bytes().to_vec()).collect();
        let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        for name in names {
            assert_eq!(fs::read(directory.join(OsStr::from_bytes(name))).unwrap(), name);
        }
        let failed = File::create(directory.join("n".repeat(256))).unwrap_err().raw_os_error();
        assert_eq!(failed, Some(libc::ENAMETOOLONG));
        // As deep as a path can name.
        let deep = directory.join("d/".repeat(400));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "deep").unwrap();
        assert_eq!(fs::read(deep.join("file")).unwrap(), b"deep");
        fs::remove_dir_all(directory.join("d")).unwrap();
    });
}

#[test]
fn times_to_the_nanosecond() {
    both(|directory| {
        let file = directory.join("file");
        fs::write(&file, "x").unwrap();
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let set = |last_access, last_modification| {
            let times = Timestamps { last_access, last_modification };
            utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
            let now = fs::metadata(&file).unwrap();
            ((now.atime(), now.atime_nsec()), (now.mtime(), now.mtime_nsec()))
        };
        let (omit, now) = (rustix::fs::UTIME_OMIT, rustix::fs::UTIME_NOW);
        let (a, m) = (time(1_234_567_891, 987_654_321), time(-77, 0));
        assert_eq!(set(a, m), ((1_234_567_891, 987_654_321), (-77, 0)));
        assert_eq!(set(time(0, omit), time(5, 5)), ((1_234_567_891, 987_654_321), (5, 5)));
        assert!(set(time(0, omit), time(0, now)).1.0 > 1_700_000_000);
        set(time(5, 5), time(5, 5));
        let before = fs::metadata(&file).unwrap();
        let handle = File::options().append(true).open(&file).unwrap();
        (&handle).write_all(b"more").unwrap();
        let after = fs::metadata(&file).unwrap();
        assert!(after.mtime() > 1_700_000_000, "a write is told at once");
        assert!((after.ctime(), after.ctime_nsec()) >= (before.ctime(), before.ctime_nsec()));
        // Nor does what follows the write change it.
        drop(handle);
        let later = fs::metadata(&file).unwrap();
        assert_eq!((after.mtime(), after.mtime_nsec()), (later.mtime(), later.mtime_nsec()));
        let above = fs::metadata(directory).unwrap();
        File::create(directory.join("new")).unwrap();
        let now = fs::metadata(directory).unwrap();
        assert!((above.mtime(), above.mtime_nsec()) < (now.mtime(), now.mtime_nsec()));
        let link = directory.join("link");
        symlink("file", &link).unwrap();
        let times = Timestamps { last_access: time(9, 9), last_modification: time(9, 9) };
        utimensat(CWD, &link, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let of_link = fs::symlink_metadata(&link).unwrap();
        assert_eq!((of_link.mtime(), of_link.mtime_nsec()), (9, 9));
    });
}

#[test]
fn times_before_1970() {
    both(|directory| {
        let file = directory.join("file");
        fs::write(&file, "x").unwrap();
        for (tv_sec, tv_nsec) in [(-2, 800_000_000), (-1, 1), (-1, 999_999_999), (-9, 0), (0, 1), (-4000, 5)]
        {
            let time = Timespec { tv_sec, tv_nsec };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
            let now = fs::metadata(&file).unwrap();
            assert_eq!((now.mtime(), now.mtime_nsec()), (tv_sec, tv_nsec));
            assert_eq!((now.atime(), now.atime_nsec()), (tv_sec, tv_nsec));
        }
    });
}

/// Sets or clears a lock on ten bytes: whether nobody else has one.
fn lock(file: &File, command: i32, kind: i32, from: i64) -> bool {
    // SAFETY: all fields are integers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = i16::try_from(kind).unwrap();
    wanted.l_whence = i16::try_from(libc::SEEK_SET).unwrap();
    (wanted.l_start, wanted.l_len) = (from, 10);
    // SAFETY: the structure is what the call takes.
    unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const wanted) == 0 }
}

#[test]
fn locks_of_all_three_kinds() {
    if !need::programs(&["python3", "flock"]) {
        return;
    }
    both(|directory| {
        let path = directory.join("file");
        fs::write(&path, [0; 100]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        // Of an open file: two in one process.
        let (one, two) = (open(), open());
        let (set, of_file) = (libc::F_SETLK, libc::F_OFD_SETLK);
        assert!(lock(&one, of_file, libc::F_WRLCK, 0));
        assert!(!lock(&two, of_file, libc::F_RDLCK, 5));
        assert!(lock(&two, of_file, libc::F_WRLCK, 10));
        assert!(lock(&one, of_file, libc::F_UNLCK, 0));
        assert!(lock(&two, of_file, libc::F_RDLCK, 5));
        drop((one, two));
        // Of a process: another tries, and waits.
        let script = "import fcntl, sys\nf = open('file', 'r+b')\n\
            try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)\n\
            except OSError: print('taken', flush=True)\n\
            fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)\nprint('mine', flush=True)\n";
        let file = open();
        assert!(lock(&file, set, libc::F_WRLCK, 0));
        let mut python = Command::new("timeout");
        python.args(["60", "python3", "-c", script]).current_dir(directory).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut told = child.stdout.take().unwrap();
        let mut first = [0; 6];
        told.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"taken\n");
        // Closing any descriptor of the file gives the lock up.
        drop(open());
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), child.wait().unwrap().success()), ("mine\n", true));
        // Of the whole file.
        let told = shell(
            directory,
            "exec 8>lock 9>lock; flock -n 8; flock -n 9 || echo taken; flock -u 8; flock -n 9 && echo free",
        );
        assert_eq!(told, "taken\nfree\n");
    });
}
