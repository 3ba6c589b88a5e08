//! A server's stop that is killed, finds no room, or is watched, at every one of its system calls.

use super::*;
use crate::trace::{CHANGES, Fate, TAKE_ROOM, stop_and_record, stop_at};

/// Served from the old bytes, with the new ones written, of another image than before.
fn changed(old: &Path, new: &[u8]) -> (Place, Disk) {
    let place = Place::new();
    fs::copy(old, place.image()).unwrap();
    let disk = place.serve(&[]);
    write(&disk, new);
    (place, disk)
}

#[test]
fn a_stop_that_is_killed_at_any_step_leaves_one_whole_image() {
    let (old, new, place) = (bytes(1), bytes(2), kept(&bytes(1)));
    let (mut refused, mut served, mut step) = (0, 0, 0);
    loop {
        step += 1;
        let (place, mut disk) = changed(&place.image(), &new);
        let was_killed = stop_at(disk.process.id(), CHANGES, step, Fate::Kill);
        let _ = disk.process.wait();
        drop(disk);
        let (disk, is_stale) = match place.try_serve(&[]) {
            Ok(disk) => (disk, false),
            Err(line) => {
                assert!(line.contains("--accept-stale"), "step {step}: {line}");
                (place.serve(&["--accept-stale"]), true)
            }
        };
        let found = disk.contents();
        assert!(found == if is_stale { &old } else { &new }[..], "step {step}, stale: {is_stale}");
        assert_eq!(disk.end(libc::SIGTERM), Some(0));
        assert_eq!(place.files(), ["image"], "step {step}");
        refused += usize::from(is_stale);
        served += usize::from(!is_stale);
        if !was_killed {
            break;
        }
    }
    eprintln!(
        "of {step} stops {refused} were killed before the image was there, {served} after or not at all"
    );
    assert!(refused > 8 && served > 2);
}

#[test]
fn a_durable_disk_that_is_killed_at_any_step_of_its_stop_has_all_that_was_flushed() {
    let (old, new, mut step) = (kept(&bytes(1)), bytes(2), 0);
    loop {
        step += 1;
        let place = Place::new();
        fs::copy(old.image(), place.image()).unwrap();
        let mut disk = place.serve(&["--durable"]);
        write(&disk, &new);
        assert_eq!(disk.client().flush(), 0);
        let was_killed = stop_at(disk.process.id(), CHANGES, step, Fate::Kill);
        let _ = disk.process.wait();
        drop(disk);
        let disk = place.serve(&["--durable"]);
        assert!(disk.contents() == new, "step {step}");
        assert_eq!((disk.end(libc::SIGTERM), place.files()), (Some(0), vec!["image".to_owned()]));
        if !was_killed {
            break;
        }
    }
    eprintln!("{step} stops");
    assert!(step > 8);
}

/// What a power cut leaves: the bytes are on disk before the name leads to them, and the name before the end.
#[test]
fn what_is_kept_is_synced_before_and_after_it_takes_its_place() {
    let (_place, disk) = changed(&kept(&bytes(1)).image(), &bytes(2));
    let renames = [libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2];
    let made =
        stop_and_record(disk.process.id(), &[&renames[..], &[libc::SYS_pwrite64, libc::SYS_fsync]].concat());
    let at = made.iter().position(|call| renames.contains(call)).expect("the image takes its place");
    let syncs: Vec<usize> = (0..made.len()).filter(|it| made[*it] == libc::SYS_fsync).collect();
    let [before, after] = syncs[..] else { panic!("{made:?}") };
    assert!(made[..before].contains(&libc::SYS_pwrite64), "the pages");
    assert!(!made[before..at].contains(&libc::SYS_pwrite64) && before < at && at < after, "{made:?}");
}

#[test]
fn a_stop_that_finds_no_room_at_any_step_loses_nothing() {
    let (new, place) = (bytes(2), kept(&bytes(1)));
    let (mut gone_on, mut ended, mut step) = (0, 0, 0);
    loop {
        step += 1;
        let (place, mut disk) = changed(&place.image(), &new);
        disk.line();
        disk.line();
        if !stop_at(disk.process.id(), TAKE_ROOM, step, Fate::NoSpace) {
            break;
        }
        // Either it did without, or it goes on with all its pages, and the next stop works.
        let line = disk.line();
        if line.is_empty() {
            ended += 1;
        } else {
            assert!(line.contains("No space left") && line.contains("it goes on"), "step {step}: {line}");
            assert!(disk.contents() == new);
            gone_on += 1;
        }
        assert_eq!(disk.end(libc::SIGTERM), Some(0), "step {step}");
        assert!(place.serve(&[]).contents() == new, "step {step}");
        assert_eq!(place.files(), ["image"], "step {step}");
    }
    eprintln!("of {step} stops {gone_on} found no room and went on, {ended} did without");
    assert!(gone_on > 6);
}

#[test]
fn the_second_stop_without_room_ends_it_and_says_what_is_lost() {
    let (old, place) = (bytes(1), kept(&bytes(1)));
    let mut disk = place.serve(&[]);
    write(&disk, &bytes(2));
    disk.line();
    disk.line();
    for part in ["it goes on", "is lost"] {
        // The first that takes room: the file of the new image.
        assert!(stop_at(disk.process.id(), &[libc::SYS_openat, libc::SYS_open], 1, Fate::NoSpace));
        let line = disk.line();
        assert!(line.contains("No space left") && line.contains(part), "{line}");
    }
    assert_eq!((disk.process.wait().unwrap().code(), disk.line().as_str()), (Some(125), ""));
    place.refused(&[], 125, "--accept-stale");
    assert!(place.serve(&["--accept-stale"]).contents() == old);
}
