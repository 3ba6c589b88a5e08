//! Real programs in a mounted directory, which holds more than its memory does.

use crate::mounted::{MIB, Place, binary, can_mount, content, need, run, shell, wait_for};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Files of some kinds and sizes, in directories.
fn tree(at: &Path, files: u64) {
    for number in 0..files {
        let directory = at.join(format!("d{}", number % 7)).join(format!("e{}", number % 3));
        fs::create_dir_all(&directory).unwrap();
        let len = number.pow(3) % 60_007;
        fs::write(directory.join(format!("f{number}")), content(number, usize::try_from(len).unwrap()))
            .unwrap();
    }
}

#[test]
fn git_finds_its_objects_whole() {
    if !(can_mount() && need::programs(&["git"])) {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(16, &[]);
    let repository = mounted.point().join("repository");
    fs::create_dir(&repository).unwrap();
    let git = "git() { command git -c user.name=t -c user.email=t@example.invalid -c gc.auto=0 \"$@\"; }\n";
    shell(&repository, &format!("{git} git init -q ."));
    for turn in 1..=4 {
        tree(&repository, 100 * turn);
        shell(
            &repository,
            &format!("{git} git add -A; git commit -qm {turn}; test -z \"$(git status --short)\""),
        );
    }
    for lines in [
        "git fsck --full --strict",
        "git clone -q --no-hardlinks . ../clone; git -C ../clone fsck --full; git -C ../clone gc -q --prune=now",
        "git gc -q --aggressive --prune=now; git fsck --full",
        "git clone -q . ../linked; git -C ../linked fsck",
        "git checkout -qb side HEAD~2; test \"$(find d* -type f | wc -l)\" = 200; git checkout -q -",
        "git -C ../clone fetch -q; git -C ../clone pull -q; git diff --quiet HEAD; git repack -adq",
    ] {
        shell(&repository, &format!("{git} {lines}"));
    }
    assert_eq!(run(&repository, &["git", "rev-list", "--count", "HEAD"]).trim(), "4");
    // Whoever looks at the source sees the same.
    let behind = place.source();
    let seen =
        |from: &Path| shell(from, "cd clone; git -c safe.directory='*' fsck --full; find . -type f | wc -l");
    assert_eq!(seen(mounted.point()), seen(&behind));
    run(place.path(), &["diff", "-r", "mount", "source"]);
    mounted.stop();
}

#[test]
fn make_builds_what_changed() {
    if !(can_mount() && need::programs(&["make", "gcc"])) {
        return;
    }
    const FILES: u64 = 150;
    let place = Place::new();
    let mounted = place.mount(16, &[]);
    let point = mounted.point();
    let mut main = String::from("#include <stdio.h>\n#include \"common.h\"\n");
    for number in 0..FILES {
        let text = format!("#include \"common.h\"\nlong f{number}(long x) {{ return x * K + {number}; }}\n");
        fs::write(point.join(format!("f{number}.c")), text).unwrap();
        writeln!(main, "long f{number}(long);").unwrap();
    }
    main += "int main(void) { unsigned long sum = 0;\n";
    (0..FILES).for_each(|number| writeln!(main, "sum = sum * 31 + f{number}({number});").unwrap());
    main += "printf(\"%lu\\n\", sum); return 0; }\n";
    fs::write(point.join("main.c"), main).unwrap();
    fs::write(point.join("common.h"), "#define K 7\n").unwrap();
    let rules = "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\t@gcc -o $@ $^\n\
        %.o: %.c common.h\n\t@gcc -c -o $@ $<; echo $< >>built\n";
    fs::write(point.join("Makefile"), rules).unwrap();
    let sum = |k: u64| {
        (0..FILES)
            .fold(0_u64, |sum, number| sum.wrapping_mul(31).wrapping_add(number * k + number))
            .to_string()
    };
    let built = || fs::read_to_string(point.join("built")).unwrap().lines().count();
    run(point, &["make", "-s", "-j4"]);
    assert_eq!((run(point, &["./program"]).trim(), built()), (sum(7).as_str(), 151));
    run(point, &["make", "-q"]);
    fs::write(point.join("f7.c"), "#include \"common.h\"\nlong f7(long x) { return x * K + 7 + 0; }\n")
        .unwrap();
    run(point, &["make", "-s", "-j4"]);
    assert_eq!((run(point, &["./program"]).trim(), built()), (sum(7).as_str(), 152));
    // Changed behind the mount, and built through it.
    let changed = "#define K 9\n";
    fs::write(place.source().join("common.h"), changed).unwrap();
    wait_for("the change", || fs::read(point.join("common.h")).unwrap() == changed.as_bytes());
    run(point, &["make", "-s", "-j4"]);
    assert_eq!((run(point, &["./program"]).trim(), built()), (sum(9).as_str(), 303));
    run(point, &["make", "-q"]);
    run(place.path(), &["diff", "-r", "mount", "source"]);
    mounted.stop();
}

/// Ends them if the test does not get to the end.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn sqlite_with_many_writers() {
    if !(can_mount() && need::programs(&["sqlite3"])) {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(16, &[]);
    let point = mounted.point();
    let query = |at: &Path, text: &str| {
        run(at, &["sqlite3", "-cmd", ".timeout 120000", "base", text]).trim().to_owned()
    };
    assert_eq!(query(point, "pragma journal_mode=wal; create table t(writer, number, filler);"), "wal");
    let insert = |writer: u32| {
        let text = (0..25).fold(String::new(), |text, number| {
            text + &format!("insert into t values({writer}, {number}, hex(randomblob(200)));\n")
        });
        let mut command = Command::new("sqlite3");
        command.args(["-cmd", ".timeout 120000", "base", &text]).current_dir(point).stdin(Stdio::null());
        command.spawn().unwrap()
    };
    let mut writers = Children((0..80).map(insert).collect());
    for child in &mut writers.0 {
        assert!(child.wait().unwrap().success());
    }
    writers.0.clear();
    let counts = "select count(*), count(distinct writer), sum(number), sum(length(filler)) from t;";
    assert_eq!(query(point, counts), "2000|80|24000|800000");
    assert_eq!(query(point, "pragma integrity_check;"), "ok");
    query(
        point,
        "create index i on t(filler); delete from t where writer % 2; vacuum; pragma wal_checkpoint;",
    );
    assert_eq!(query(point, "pragma integrity_check;"), "ok");
    assert_eq!(query(point, counts), "1000|40|12000|400000");
    mounted.stop();
    assert_eq!(query(&place.source(), "pragma integrity_check;"), "ok");
    assert_eq!(query(&place.source(), counts), "1000|40|12000|400000");
}

#[test]
fn rsync_finds_no_difference() {
    if !(can_mount() && need::programs(&["rsync"])) {
        return;
    }
    let place = Place::new();
    let tree_at = place.path().join("tree");
    tree(&tree_at, 400);
    fs::copy(binary(), tree_at.join("program")).unwrap();
    let more = "ln d1/e1/f1 linked; ln -s d1 link; mkfifo fifo; truncate -s 3M sparse; chmod 4711 d1/e1/f1; \
        chown 77:88 d2; touch -d 2001-02-03T04:05:06.789012345 d3/e0/f3";
    shell(&tree_at, more);
    let mounted = place.mount(16, &[]);
    let same = |from: &str, to: &str| {
        let told = shell(place.path(), &format!("rsync -aHXc --numeric-ids --delete -ni {from}/ {to}/"));
        assert_eq!(told, "", "{from} and {to}");
    };
    run(place.path(), &["rsync", "-aHXS", "--numeric-ids", "tree/", "mount/"]);
    for _ in 0..2 {
        same("tree", "mount");
        same("mount", "source");
    }
    // Changed on one side, brought over in place.
    tree(&tree_at.join("d4"), 150);
    fs::write(tree_at.join("d2/e2/f2"), content(99, 70_000)).unwrap();
    shell(&tree_at, "rm -r d5; mv d6 moved; echo x >>d1/e1/f1");
    run(place.path(), &["rsync", "-aHX", "--numeric-ids", "--delete", "--inplace", "tree/", "mount/"]);
    same("tree", "mount");
    same("tree", "source");
    mounted.stop();
    same("tree", "source");
}

#[test]
fn sixteen_writers_at_once() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 5 << 20;
    let place = Place::new();
    let mounted = place.mount(32, &[]);
    let point = mounted.point();
    std::thread::scope(|scope| {
        for writer in 0..16_u64 {
            scope.spawn(move || {
                let path = point.join(format!("writer-{writer}"));
                let expected = content(writer, LEN);
                let file =
                    fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
                let file = file.unwrap();
                // From the last piece to the first, so that the file has holes meanwhile.
                let step = 50_000 + usize::try_from(writer).unwrap() * 1111;
                for from in (0..LEN).step_by(step).rev() {
                    let piece = &expected[from..LEN.min(from + step)];
                    file.write_all_at(piece, from as u64).unwrap();
                    let mut seen = vec![0; piece.len()];
                    file.read_exact_at(&mut seen, from as u64).unwrap();
                    assert!(seen == piece, "writer {writer}, {from}");
                }
                file.sync_all().unwrap();
                assert!(fs::read(&path).unwrap() == expected, "writer {writer}");
            });
        }
    });
    for writer in 0..16_u64 {
        let name = format!("writer-{writer}");
        assert!(fs::read(place.source().join(&name)).unwrap() == content(writer, LEN), "{name}");
        assert!(fs::read(point.join(&name)).unwrap() == content(writer, LEN), "{name}");
    }
    let sums = |at: &Path| shell(at, "cksum writer-*");
    assert_eq!(sums(point), sums(&place.source()));
    assert!(mounted.most() > MIB, "the memory that was seen is {} KiB", mounted.most() >> 10);
    mounted.stop();
}
