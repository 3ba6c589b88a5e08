//! Files that are made through the mount, where somebody makes one of that name behind it at the same time.

use crate::behind::with_mount;
use crate::mounted::{Mounted, Outcome, as_user, shell};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Longer than a program takes to begin and ask for a file.
const ASKED: Duration = Duration::from_millis(700);

/// What a user does in the directory `d` of the mount, to whom nothing was told yet of what `appear` does behind it.
fn before_it_is_told(mounted: &Mounted, lines: &str, appear: impl FnOnce(&Path)) -> Outcome {
    let (point, source) = (mounted.point().join("d"), mounted.source().join("d"));
    let user = |lines: &str| as_user(&point, 1234, "", lines);
    // The kernel believes from here on that the name is not there.
    assert_eq!(user("test ! -e name").code, Some(0));
    mounted.stand_still();
    thread::scope(|scope| {
        let asks = scope.spawn(|| user(lines));
        thread::sleep(ASKED);
        appear(&source);
        mounted.signal(libc::SIGCONT);
        asks.join().unwrap()
    })
}

fn with_directory(test: impl Fn(&Mounted, &Path)) {
    with_mount(|mounted, source, _| {
        shell(source, "mkdir -m 777 d");
        test(mounted, &source.join("d"));
    });
}

fn put(directory: &Path, mode: u32) {
    let other = directory.join("other");
    fs::write(&other, "theirs\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(other, directory.join("name")).unwrap();
}

#[test]
fn what_appears_meanwhile_is_opened_by_who_may() {
    with_directory(|mounted, source| {
        for (mode, lines, told) in [
            (0o600, "exec 3<>name; cat <&3", None),
            (0o644, "exec 3<>name; cat <&3", None),
            (0o644, "exec 3>>name; cat name", None),
            (0o666, "exec 3<>name; cat <&3; echo mine >&3", Some("theirs\n")),
            (0o666, "echo mine >>name; cat name", Some("theirs\nmine\n")),
            (0o666, "set -C; echo mine >name", None),
        ] {
            let outcome = before_it_is_told(mounted, lines, |directory| put(directory, mode));
            let found = (outcome.code == Some(0)).then_some(outcome.stdout.as_str());
            assert_eq!(found, told, "{mode:o}, {lines}: {outcome:?}");
            let error = if lines.contains("-C") { "" } else { "ermission denied" };
            assert!(told.is_some() || outcome.stderr.contains(error), "{mode:o}, {lines}: {outcome:?}");
            fs::remove_file(source.join("name")).unwrap();
            shell(mounted.point(), "until ! test -e d/name; do sleep 0.01; done");
        }
    });
}

#[test]
fn a_pipe_that_appears_meanwhile_keeps_nobody_waiting() {
    with_directory(|mounted, _| {
        let make = |directory: &Path| drop(shell(directory, "mkfifo -m 600 name"));
        let outcome = before_it_is_told(mounted, "echo mine >name", make);
        assert!(outcome.code != Some(0) && outcome.stderr.contains("ermission denied"), "{outcome:?}");
        shell(mounted.point(), "echo more >d/more; ls d");
    });
}

#[test]
fn all_who_make_one_name_at_once_have_it() {
    with_mount(|_, source, point| {
        let open = |directory: &Path, name: &str| {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(directory.join(name));
            file.unwrap_or_else(|error| panic!("{name} in {}: {error}", directory.display()));
        };
        for round in 0..300 {
            thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| (0..4).for_each(|number| open(point, &format!("{round}-{number}"))));
                }
                scope.spawn(|| (0..4).for_each(|number| open(source, &format!("{round}-{number}"))));
            });
        }
        // One of them alone makes it, where each insists on that.
        let make =
            |directory: &Path, number: usize| match File::create_new(directory.join(format!("one-{number}")))
            {
                Ok(_) => 1,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => 0,
                Err(error) => panic!("{error}"),
            };
        let made: usize = thread::scope(|scope| {
            let all = [point, point, source, point].map(|directory| {
                scope.spawn(move || (0..200).map(|number| make(directory, number)).sum::<usize>())
            });
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(made, 200);
    });
}
