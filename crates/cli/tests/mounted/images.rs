//! Sources on file systems of their own: two that are copies of each other, and directories whose names are not what
//! the kernel takes them for.

use crate::behind::{BOUND, LATEST, all, within};
use crate::mounted::need;
use crate::mounted::{Place, can_mount, finish, shell};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Makes an ext4 with this feature on a file, and mounts it at `source`, which is empty; or tells why not.
fn ext4(place: &Place, feature: &str) -> Result<(), String> {
    let lines = format!("truncate -s 64M image; mkfs.ext4 -q -O {feature} image; mount -o loop image source");
    let made = finish(Command::new("sh").args(["-euc", &lines]).current_dir(place.path()), 60);
    if made.code == Some(0) { Ok(()) } else { Err(format!("ext4 with {feature}: {}", made.stderr.trim())) }
}

/// Says that a kernel was built without what a test is about: no machine that has it can make up for that.
fn not_in_kernel(why: &str) {
    println!("not run: {why}");
}

/// Two file systems of one image have files with the same handles, and events of the same file system.
#[test]
fn changes_are_told_of_the_file_of_either_of_two_copies() {
    let place = Place::new();
    if !(can_mount() && need::programs(&["mkfs.ext4"])) {
        return;
    }
    if let Err(why) = ext4(&place, "extent") {
        need::skip(&why);
        return;
    }
    let source = place.source();
    fs::write(source.join("x"), "0").unwrap();
    shell(place.path(), "umount source; cp image copy; mkdir source/a source/b");
    shell(place.path(), "mount -o loop image source/a; mount -o loop copy source/b");
    let mounted = place.mount(32, &[]);
    let files = ["a/x", "b/x"].map(|name| (source.join(name), File::open(place.point().join(name)).unwrap()));
    for turn in 0..9 {
        for (number, (behind, through)) in files.iter().enumerate() {
            assert!(files.iter().all(|(_, through)| all(through).1 > 0));
            let text = format!("{turn} of {number}, {}", ".".repeat(turn));
            fs::write(behind, &text).unwrap();
            let wanted = (text.as_bytes().to_vec(), text.len() as u64);
            within(BOUND, &text, || all(through) == wanted);
        }
    }
    drop(files);
    mounted.stop();
    shell(place.path(), "umount source/a source/b");
}

/// Adds a key to the file system at `place`, has the names in `directory` encrypted by it if there is one, or takes it
/// away: struct fscrypt_add_key_arg, fscrypt_policy_v2 and fscrypt_remove_key_arg.
const FSCRYPT: &str = r"
import fcntl, os, struct, sys
what, place, directory = sys.argv[1:]
place = os.open(place, os.O_RDONLY)
key = bytearray(struct.pack('II32xI36x', 2, 0, 64) + bytes(range(64)))
fcntl.ioctl(place, 0xC0506617, key)
name = bytes(key[8:24])
if what == 'encrypt':
    fcntl.ioctl(os.open(directory, os.O_RDONLY), 0x800C6613, struct.pack('4B4x16s', 2, 1, 4, 0, name))
if what == 'lock':
    fcntl.ioctl(place, 0xC0406618, bytearray(struct.pack('II16s40x', 2, 0, name)))
";

#[test]
fn of_names_that_a_key_uncovers() {
    let place = Place::new();
    if !(can_mount() && need::programs(&["python3", "mkfs.ext4"])) {
        return;
    }
    if let Err(why) = ext4(&place, "encrypt") {
        return not_in_kernel(&why);
    }
    let directory = place.source().join("d");
    let fscrypt = |what: &str| {
        let mut python = Command::new("python3");
        finish(python.args(["-c", FSCRYPT, what]).args([&place.source(), &directory]), 60)
    };
    fs::create_dir(&directory).unwrap();
    let encrypted = fscrypt("encrypt");
    if encrypted.code != Some(0) {
        shell(place.path(), "umount source");
        return not_in_kernel(encrypted.stderr.lines().last().unwrap_or_default());
    }
    fs::write(directory.join("secret"), "here").unwrap();
    assert_eq!(fscrypt("lock").code, Some(0));
    let through = place.point().join("d").join("secret");
    let mounted = place.mount(32, &[]);
    assert!((0..3).all(|_| !through.exists()), "it has another name");
    assert_eq!(fscrypt("unlock").code, Some(0));
    assert!(directory.join("secret").exists());
    within(LATEST, "the name that is there now", || through.exists());
    assert_eq!(fs::read(through).unwrap(), b"here");
    mounted.stop();
    shell(place.path(), "umount source");
}

/// The names of a file that were not asked for behind the mount.
fn other_spellings(source: &Path, point: &Path) {
    let (behind, through) = (source.join("d"), point.join("d"));
    let has = |name: &str| through.join(name).exists();
    assert!((0..3).all(|_| !has("NAME") && !has("name")));
    fs::write(behind.join("name"), "").unwrap();
    within(LATEST, "what came", || has("name") && has("NAME") && has("Name"));
    fs::remove_file(behind.join("nAME")).unwrap();
    within(LATEST, "what went", || !has("name") && !has("NAME") && !has("Name"));
}

#[test]
fn of_names_that_are_one_in_upper_and_lower_case() {
    let place = Place::new();
    if !(can_mount() && need::programs(&["chattr", "mkfs.ext4"])) {
        return;
    }
    if let Err(why) = ext4(&place, "casefold") {
        return not_in_kernel(&why);
    }
    shell(place.path(), "mkdir source/d; chattr +F source/d");
    let mounted = place.mount(32, &[]);
    other_spellings(&place.source(), &place.point());
    mounted.stop();
    shell(place.path(), "umount source");
}
