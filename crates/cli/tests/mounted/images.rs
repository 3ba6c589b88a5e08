//! Sources on file systems of their own: two that are copies of each other.

use crate::behind::{BOUND, all, within};
use crate::mounted::need;
use crate::mounted::{Place, can_mount, finish, shell};
use std::fs::{self, File};
use std::process::Command;

/// Makes an ext4 with this feature on a file, and mounts it at `source`, which is empty. Says so if that is not to be
/// had.
fn has_ext4(place: &Place, feature: &str) -> bool {
    if !need::programs(&["mkfs.ext4"]) {
        return false;
    }
    let lines = format!("truncate -s 64M image; mkfs.ext4 -q -O {feature} image; mount -o loop image source");
    let made = finish(Command::new("sh").args(["-euc", &lines]).current_dir(place.path()), 60);
    made.code == Some(0) || need::skip(&format!("ext4 with {feature}: {}", made.stderr.trim()))
}

/// Two file systems of one image have files with the same handles, and events of the same file system.
#[test]
fn changes_are_told_of_the_file_of_either_of_two_copies() {
    let place = Place::new();
    if !(can_mount() && has_ext4(&place, "extent")) {
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
