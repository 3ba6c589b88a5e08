//! Several disks in one process: `ramfold disk --config`, `hot_add`, `hot_remove`, and who shows them.

#[path = "shared/client.rs"]
mod client;
mod command;
#[path = "common/patience.rs"]
mod patience;
#[path = "disks/server.rs"]
mod server;

use client::Client;
use patience::wait_for;
use server::{Place, Server};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// A quarter of a MiB that compresses to about two fifths.
fn piece(number: u64) -> Vec<u8> {
    let (mut bytes, mut random) = (vec![0; 256 << 10], (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for page in bytes.chunks_mut(4096) {
        page[..1600].fill_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random.to_le_bytes()[7]
        });
    }
    bytes
}

fn fill(client: &mut Client, mib: u64, version: u64) {
    (0..mib * 4).for_each(|at| assert_eq!(client.write(at << 18, &piece(at + version * 1000)), 0, "{at}"));
}

fn check(client: &mut Client, mib: u64, version: u64) {
    (0..mib * 4)
        .for_each(|at| assert!(client.read(at << 18, 256 << 10) == piece(at + version * 1000), "{at}"));
}

const TWO: &str = r#"
[[disk]]
name = "fast"
size = "64M"
unix = "@/fast.sock"
comp-algorithm = "lz4"
zpool = "zbud"

[[disk]]
name = "dense"
size = 67108864
unix = "@/dense.sock"
comp_algorithm = "zstd:3"
mem-limit = "4M"
backing-dev = "@"
no-duplicates = true
no-same-filled = false
"#;

#[test]
fn disks_of_a_file_have_their_own_options_and_names() {
    let place = Place::new();
    let config = place.config(TWO);
    let server = Server::start(&place, &["--config", &config], 2);
    assert_eq!(place.names(), ["dense.ctl", "disks0.ctl", "fast.ctl"]);
    let disks = place.here(
        "fast 67108864 nbd+unix:///?socket=@/fast.sock\ndense 67108864 nbd+unix:///?socket=@/dense.sock\n",
    );
    assert_eq!(place.ctl(&["disks0", "disks"]), disks);
    assert!(place.ctl(&["fast", "comp_algorithm"]).contains("[lz4]"));
    assert!(place.ctl(&["dense", "comp_algorithm"]).contains("[zstd:3]"));
    assert_eq!(place.ctl(&["fast", "mem_limit"]) + &place.ctl(&["dense", "mem_limit"]), "0\n4194304\n");
    assert!(place.ctl(&["dense", "backing_dev"]).contains(place.0.path().to_str().unwrap()));
    let (mut fast, mut dense) = (place.client("fast.sock"), place.client("dense.sock"));
    fill(&mut fast, 16, 1);
    fill(&mut dense, 16, 2);
    check(&mut fast, 16, 1);
    check(&mut dense, 16, 2);
    let stat = |name: &str| -> serde_json::Value {
        serde_json::from_str(&place.ctl(&[name, "mm_stat", "--json"])).unwrap()
    };
    let fresh = |name: &str| place.ctl(&[name, "fresh_stat"]).split_whitespace().next().map(str::to_owned);
    wait_for("all is compressed", || {
        ["fast", "dense"].iter().all(|name| fresh(name).as_deref() == Some("0"))
    });
    wait_for("it is within its own limit", || stat("dense")["mem_used_total"].as_u64() <= Some(4 << 20));
    assert!(stat("fast")["mem_used_total"].as_u64() > Some(5 << 20));
    // Each has a row of its own, and together they are what the server has.
    let shown = server.top(&place);
    let row = |name: &str| {
        let rows = shown["living"].as_array().unwrap();
        let mut found = rows.iter().filter(|row| row["command"] == name);
        let row = found.next().unwrap_or_else(|| panic!("{name}: {shown}")).clone();
        assert!(found.next().is_none(), "{shown}");
        row
    };
    assert_eq!(shown["living"].as_array().unwrap().len(), 2);
    assert_eq!(row("fast")["orig_data_size"].as_u64(), Some(16 << 20), "{shown}");
    assert!(row("dense")["tier_pages"].as_u64() > Some(1000), "{shown}");
    let pools = ["fast", "dense"].map(|name| row(name)["pool_total_size"].as_u64().unwrap());
    assert_eq!(shown["pool_total_size"].as_u64(), Some(pools.iter().sum()));
    drop((fast, dense));
    assert_eq!(server.stop(), Some(0));
    assert_eq!(place.names(), Vec::<String>::new());
    assert!(!place.path("fast.sock").exists() && !place.path("dense.sock").exists());
}

#[test]
fn one_limit_holds_for_all_of_them() {
    const LIMIT: u64 = 32 << 20;
    let place = Place::new();
    let disk = |name: &str| {
        format!("[[disk]]\nname = \"{name}\"\nsize = \"256M\"\nunix = \"@/{name}\"\nbacking-dev = \"@\"\n")
    };
    let config = place.config(&["a", "b", "c"].map(disk).concat());
    let metrics = place.here("unix:@/metrics");
    let server = Server::start(&place, &["--config", &config, "-m", "32M", "--metrics", &metrics], 3);
    let mut most = 0;
    for (version, name) in (1..).zip(["a", "b", "c"]) {
        let mut client = place.client(name);
        for at in 0..48 * 4 {
            assert_eq!(client.write(at << 18, &piece(at + version * 1000)), 0, "{name} {at}");
            most = most.max(server.anonymous());
        }
    }
    assert!(most <= LIMIT + (2 << 20), "{} KiB of {}", most >> 10, LIMIT >> 10);
    let shown = server.top(&place);
    assert_eq!(shown["limit"].as_u64(), Some(LIMIT));
    let in_use = shown["in_use_bytes"].as_u64().unwrap();
    let peak = shown["peak_bytes"].as_u64().unwrap();
    assert!(peak <= LIMIT + (2 << 20), "{} KiB in the account", peak >> 10);
    assert!(in_use <= LIMIT && in_use > LIMIT / 2, "{shown}");
    assert!(in_use.abs_diff(server.anonymous()) < 4 << 20, "what counts is what there is: {shown}");
    // The others had filled it: some came to who wrote last.
    let pool = |name: &str| {
        let rows = shown["living"].as_array().unwrap().iter();
        rows.filter(|row| row["command"] == name)
            .map(|row| row["pool_total_size"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(pool("c") > LIMIT / 8, "{shown}");
    assert_eq!(
        shown["living"].as_array().unwrap().len(),
        4,
        "each disk, and what the server has beside them"
    );
    for (version, name) in (1..).zip(["a", "b", "c"]) {
        check(&mut place.client(name), 48, version);
    }
    let told = told(&place.path("metrics"));
    for name in ["a", "b", "c"] {
        let line = format!("ramfold_stored_pages{{pid=\"{}\",command=\"{name}\"}} ", server.pid());
        assert_eq!(told.lines().filter(|it| it.starts_with(&line)).count(), 1, "{told}");
    }
    assert_eq!(server.stop(), Some(0));
}

/// It has nothing to give itself, and waits for the others instead of refusing what its clients write.
#[test]
fn a_disk_that_begins_while_others_fill_the_limit_finds_room() {
    let place = Place::new();
    let disk = |name: &str| {
        format!("[[disk]]\nname = \"{name}\"\nsize = \"128M\"\nunix = \"@/{name}\"\nbacking-dev = \"@\"\n")
    };
    let config = place.config(&["a", "b"].map(disk).concat());
    let server = Server::start(&place, &["--config", &config, "-m", "32M"], 2);
    // The time is for a test that fails.
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let goes_on = || !over.load(Ordering::Relaxed) && begun.elapsed().as_secs() < 60;
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (mut client, goes_on) = (place.client(name), &goes_on);
            scope.spawn(move || {
                for number in (0..64 * 4).cycle().take_while(|_| goes_on()) {
                    assert_eq!(client.write(number << 18, &piece(number)), 0, "{name} {number}");
                }
            });
        }
        wait_for("the limit is full", || server.top(&place)["tier_pages"].as_u64() > Some(1000));
        let refused = (0..10).map(|_| {
            let words = ["size=64M", &place.here("unix=@/new"), &place.here("backing-dev=@")];
            let name = place.ctl(&[&["disks0", "hot_add"], &words[..]].concat());
            let mut client = place.client("new");
            let refused = (0..16).filter(|at| client.write(at << 18, &piece(*at)) != 0).count();
            drop(client);
            let remove = ["ctl", "disks0", "hot_remove", name.trim()];
            wait_for("it is removed", || place.run(&remove).code == Some(0));
            refused
        });
        let refused: usize = refused.sum();
        over.store(true, Ordering::Relaxed);
        assert_eq!(refused, 0, "of 160 writes");
    });
    assert_eq!(server.stop(), Some(0));
}

fn told(path: &Path) -> String {
    let (mut stream, mut text) = (UnixStream::connect(path).unwrap(), String::new());
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn disks_come_and_go_while_the_others_are_served() {
    let place = Place::new();
    let config = place.config("[[disk]]\nsize = \"64M\"\nunix = \"@/first\"\n");
    let server = Server::start(&place, &["--config", &config, "-m", "128M", "--name", "house"], 1);
    let mut first = place.client("first");
    fill(&mut first, 8, 1);
    let before = server.anonymous();
    for round in 0..3 {
        let add = place.here("size=256M unix=@/second mem_limit=64M backing-dev=@ no-duplicates");
        let add: Vec<&str> = ["house", "hot_add"].into_iter().chain(add.split(' ')).collect();
        assert_eq!(place.ctl(&add), "disk1\n");
        assert_eq!(place.ctl(&["disk1", "mem_limit"]), "67108864\n");
        let mut second = place.client("second");
        fill(&mut second, 64, 2 + round);
        check(&mut second, 64, 2 + round);
        assert!(server.anonymous() > before + 20 * MIB);
        place.fails(&["ctl", "house", "hot_remove", "disk1"], 125, "has clients");
        check(&mut second, 8, 2 + round);
        drop(second);
        wait_for("the client is gone", || {
            place.run(&["ctl", "house", "hot_remove", "disk1"]).code == Some(0)
        });
        // At once: its memory, its name, its socket, its place in the account.
        let now = server.anonymous();
        assert!(now < before + 4 * MIB, "{} KiB before, {} after", before >> 10, now >> 10);
        assert_eq!(place.names(), ["disk0.ctl", "house.ctl"]);
        assert!(!place.path("second").exists());
        assert_eq!(server.top(&place)["living"].as_array().unwrap().len(), 2);
        place.fails(&["ctl", "disk1", "mm_stat"], 125, "nothing runs under the name disk1");
    }
    check(&mut first, 8, 1);
    place.fails(&["ctl", "house", "hot_remove", "disk1"], 125, "no disk disk1");
    drop(first);
    wait_for("the client is gone", || place.run(&["ctl", "house", "hot_remove", "disk0"]).code == Some(0));
    assert_eq!(place.ctl(&["house", "disks"]), "", "a server without a disk waits for one");
    place.ctl(&["house", "hot_add", "size=16M", &place.here("unix=@/first")]);
    fill(&mut place.client("first"), 1, 1);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn what_a_removed_disk_had_of_its_backing_is_given_back() {
    let place = Place::new();
    let server = Server::start(&place, &["--config", &place.config("")], 0);
    wait_for("it has begun", || place.path("ramfold/disks0.ctl").exists());
    let held = || {
        let files = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().flatten();
        let found = files.map(|it| fs::read_link(it.path()).unwrap_or_default().display().to_string());
        let mut found: Vec<String> = found.collect();
        found.retain(|it| it.starts_with(place.0.path().to_str().unwrap()) || it.contains("ramfold-segment"));
        found.len()
    };
    let before = held();
    for _ in 0..5 {
        let words = ["size=64M", "mem-limit=1M", &place.here("unix=@/it"), &place.here("backing-dev=@")];
        place.ctl(&[&["disks0", "hot_add"], &words[..]].concat());
        fill(&mut place.client("it"), 8, 1);
        assert!(held() > before);
        wait_for("it is removed", || place.run(&["ctl", "disks0", "hot_remove", "disk0"]).code == Some(0));
        assert_eq!(held(), before, "the backing has no name: with its descriptor its space is gone");
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_disk_that_is_kept_is_kept_when_it_is_removed() {
    let place = Place::new();
    let text = "[[disk]]\nname = \"kept\"\nsize = \"16M\"\nunix = \"@/kept\"\npersist = true\nbacking-dev = \"@/image\"\n";
    let config =
        place.config(&format!("[[disk]]\nname = \"gone\"\nsize = \"16M\"\nunix = \"@/gone\"\n{text}"));
    let server = Server::start(&place, &["--config", &config], 2);
    fill(&mut place.client("kept"), 4, 1);
    wait_for("it is removed", || place.run(&["ctl", "disks0", "hot_remove", "kept"]).code == Some(0));
    assert!(fs::metadata(place.path("image")).unwrap().len() > MIB);
    let add = ["name=kept", "size=16M", "persist"].map(str::to_owned);
    let add = [&add[..], &[place.here("unix=@/kept"), place.here("backing-dev=@/image")]].concat();
    let add: Vec<&str> = ["disks0", "hot_add"].into_iter().chain(add.iter().map(String::as_str)).collect();
    assert_eq!(place.ctl(&add), "kept\n");
    check(&mut place.client("kept"), 4, 1);
    fill(&mut place.client("kept"), 4, 2);
    assert_eq!(server.stop(), Some(0));
    let server = Server::start(&place, &["--config", &config], 2);
    check(&mut place.client("kept"), 4, 2);
    // Killed: refused, and the other disk is not served either.
    drop(server);
    place.fails(&["disk", "--config", &config], 125, "--accept-stale");
    assert!(!place.path("gone").exists() && !place.path("ramfold/gone.ctl").exists());
}

#[test]
fn a_disk_that_cannot_be_kept_goes_on_and_the_others_end() {
    let place = Place::new();
    let text = "[[disk]]\nname = \"kept\"\nsize = \"16M\"\nunix = \"@/kept\"\npersist = true\nbacking-dev = \"@/image\"\n";
    let config =
        place.config(&format!("{text}[[disk]]\nname = \"gone\"\nsize = \"16M\"\nunix = \"@/gone\"\n"));
    let mut server = Server::start(&place, &["--config", &config], 2);
    fill(&mut place.client("kept"), 4, 1);
    // Another file in the image's place is not written over.
    fs::rename(place.path("image"), place.path("aside")).unwrap();
    fs::write(place.path("image"), "mine").unwrap();
    wait_for("the client is gone", || {
        let told = place.run(&["ctl", "disks0", "hot_remove", "kept"]).stderr;
        assert!(told.contains("not kept") || told.contains("has clients"), "{told}");
        told.contains("not kept")
    });
    check(&mut place.client("kept"), 4, 1);
    server.signal();
    wait_for("the other has ended", || !place.path("gone").exists());
    wait_for("it goes on", || place.run(&["ctl", "disks0", "disks"]).stdout.starts_with("kept "));
    check(&mut place.client("kept"), 4, 1);
    assert_eq!(fs::read(place.path("image")).unwrap(), b"mine");
    fs::rename(place.path("aside"), place.path("image")).unwrap();
    server.signal();
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
    let _server = Server::start(&place, &["--config", &config], 2);
    check(&mut place.client("kept"), 4, 1);
}

#[test]
fn what_is_wrong_with_a_file_is_told_in_one_line_and_nothing_is_started() {
    let place = Place::new();
    let good = "[[disk]]\nsize = \"16M\"\nunix = \"@/a\"\nname = \"a\"\n";
    for (text, part) in [
        ("[[disk]\n", "line 1: "),
        ("[[disk]]\nsize = \"1M\"\nsize = \"2M\"\n", "line 7: duplicate key"),
        ("colour = \"red\"\n", "colour: "),
        ("[disk]\nsize = \"16M\"\n", "disk: "),
        ("disk = [1]\n", "disk: "),
        (
            "[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\ncolour = \"red\"\n",
            "disk 2: colour: a disk has no such option",
        ),
        (
            "[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\nstats = \"-\"\n",
            "disk 2: stats: a disk has no such option",
        ),
        ("[[disk]]\nunix = \"@/b\"\n", "disk 2: the following required arguments were not provided: --size"),
        ("[[disk]]\nsize = \"16M\"\n", "disk 2: the following required arguments were not provided: <--unix"),
        ("[[disk]]\nsize = \"lots\"\nunix = \"@/b\"\n", "--size"),
        ("[[disk]]\nsize = 1000\nunix = \"@/b\"\n", "--size 1000: not a multiple of 4096"),
        ("[[disk]]\nsize = 1.5\nunix = \"@/b\"\n", "size: it has a value"),
        (
            "[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\nno-duplicates = \"yes\"\n",
            "no-duplicates: it is on or off",
        ),
        ("[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\ncomp-algorithm = \"zip\"\n", "--comp-algorithm"),
        ("[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\npersist = true\n", "--backing-dev"),
        ("[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\ntcp = \"127.0.0.1:0\"\n", "--tcp"),
        ("[[disk]]\nsize = \"16M\"\nunix = \"@/b\"\nname = \"a\"\n", "disk 2: name: disk 1 has the same"),
        ("[[disk]]\nsize = \"16M\"\nunix = \"@/./a\"\n", "disk 2: unix: disk 1 has the same"),
        ("[[disk]]\nsize = \"16M\"\nvhost-user = 7.5\n", "vhost-user: it has a value"),
    ] {
        let config = place.config(&format!("{}{text}", if text.contains("[[disk]]\n") { good } else { "" }));
        place.fails(&["disk", "--config", &config], 2, &format!("--config {config}: "));
        place.fails(&["disk", "--config", &config], 2, part);
        assert!(!place.path("a").exists() && !place.path("ramfold").exists(), "{text}");
    }
    let config =
        place.config(&format!("{good}[[disk]]\nname = \"b\"\nsize = \"16M\"\nunix = \"@/disks.toml\"\n"));
    place.fails(&["disk", "--config", &config], 125, "the file there is no socket");
    assert!(!place.path("a").exists() && place.names().is_empty(), "{:?}", place.names());
    place.fails(&["disk", "--config", "/no/such/file"], 125, "--config /no/such/file: ");
    let config = place.config(good);
    place.fails(&["disk", "--config", &config, "--size", "1M"], 2, "--size");
    place.fails(&["disk", "--config", &config, "--unix", "/tmp/x"], 2, "--unix");
    place.fails(&["disk", "--config", &config, "-m", "1M"], 2, "too small");
    place.fails(&["disk", "--config", &config, "--share", &place.here("@/share")], 2, "give -m");
    place.fails(&["disk", "-m", "1G", "--size", "1M", "--unix", &place.here("@/x")], 2, "give --config");
}

#[test]
fn what_is_wrong_with_a_request_is_told_and_changes_nothing() {
    let place = Place::new();
    let config = place.config("[[disk]]\nsize = \"16M\"\nunix = \"@/a\"\n");
    let server = Server::start(&place, &["--config", &config], 1);
    let (a, b, file) = (place.here("unix=@/a"), place.here("unix=@/b"), place.here("unix=@/disks.toml"));
    for (words, code, part) in [
        (&["hot_add"][..], 2, "only be written"),
        (&["hot_remove"], 2, "only be written"),
        (&["disks", "1"], 2, "only be read"),
        (&["mm_stat"], 2, "no attribute"),
        (&["hot_add", "size=16M"], 2, "--unix"),
        (&["hot_add", &b], 2, "--size"),
        (&["hot_add", "size=16M", &b, "colour=red"], 2, "colour"),
        (&["hot_add", "size=16M", &b, "config=x"], 2, "config"),
        (&["hot_add", "size=16M", &b, "name=../x"], 2, "is no name"),
        (&["hot_add", "size=16M", &b, "name=disk0"], 125, "the name disk0 is taken"),
        (&["hot_add", "size=16M", &a], 125, "somebody serves there"),
        (&["hot_add", "size=16M", &file], 125, "no socket"),
        (&["hot_add", "size=16M", &b, "size=1M"], 2, "--size"),
        (&["hot_remove", "disk7"], 125, "no disk disk7"),
    ] {
        place.fails(&[&["ctl", "disks0"], words].concat(), code, part);
    }
    assert_eq!(place.names(), ["disk0.ctl", "disks0.ctl"]);
    assert!(!place.path("b").exists());
    place.fails(&["ctl", "disk0", "hot_add", "size=16M"], 2, "no attribute");
    fill(&mut place.client("a"), 1, 1);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn disks_of_a_file_join_the_limit_of_another() {
    let place = Place::new();
    let disk = |name: &str| format!("[[disk]]\nname = \"{name}\"\nsize = \"256M\"\nunix = \"@/{name}\"\n");
    let config = place.config(&["a", "b"].map(disk).concat());
    let share = place.here("@/budget");
    let options = ["--size", "64M", "--mem-limit", "32M", "--backing-dev", "/var/tmp", "--name", "sharer"];
    let at = ["--unix", &place.here("@/sharer"), "--share", &share];
    let sharer = Server::start(&place, &[&options[..], &at].concat(), 1);
    let server = Server::start(&place, &["--config", &config, "--budget", &share], 2);
    for (version, name) in (1..).zip(["a", "b"]) {
        fill(&mut place.client(name), 64, version);
    }
    let both = server.anonymous() + sharer.anonymous();
    assert!(both <= 34 * MIB, "{} KiB", both >> 10);
    let shown = sharer.top(&place);
    let rows = shown["living"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "the sharer, the two, and what their server has beside them: {shown}");
    let before = shown["swap_used_bytes"].as_u64().unwrap();
    assert!(before > 0, "what does not fit is in the sharer's swap file: {shown}");
    for (version, name) in (1..).zip(["a", "b"]) {
        check(&mut place.client(name), 64, version);
    }
    for name in ["a", "b"] {
        wait_for("it is removed", || place.run(&["ctl", "disks0", "hot_remove", name]).code == Some(0));
    }
    let shown = sharer.top(&place);
    assert_eq!(shown["living"].as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown["swap_used_bytes"].as_u64(), Some(0), "its extents were given back: {shown}");
    assert_eq!((server.stop(), sharer.stop()), (Some(0), Some(0)));
}
