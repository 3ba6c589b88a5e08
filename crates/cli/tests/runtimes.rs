//! Languages and a browser that manage memory in ways of their own: what they give without ramfold they give in less
//! memory than they want.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{Finished, MODES, Program, Ramfold, need, run, same_in_shares, scratch, test_file};

const MIB: u64 = 1 << 20;

/// Extensions are opened with RTLD_DEEPBIND, so that their malloc is another than the program's.
#[test]
fn php() {
    const LINES: &str = "$a = []; for ($i = 0; $i < 400000; $i++) $a[] = \"line $i\";
        usort($a, fn($x, $y) => strcmp(md5($x), md5($y))); echo md5(implode($a)), \"\\n\";";
    if need::userfaultfd() && need::programs(&["php"]) {
        let words = ["php", "-d", "memory_limit=-1", "-r", LINES];
        same_in_shares(&Program::new("php", &words), &[2], MODES);
    }
}

/// Compiled code must lie near the interpreter: memory is asked for at hints.
#[test]
fn luajit() {
    const TABLE: &str = "local t = {} for i = 1, 400000 do t[i] = 'line ' .. i * 7 end
        local s = 0 for r = 1, 4 do for i = 1, #t do s = (s * 33 + t[i]:byte(6) + #t[i] * i) % 1000003 end end print(s)";
    if need::userfaultfd() && need::programs(&["luajit"]) {
        same_in_shares(&Program::new("luajit", &["luajit", "-e", TABLE]), &[2], MODES);
    }
}

/// A collector whose heap lies at addresses that mean something, several times over: it is let through, and said.
#[test]
fn java_with_zgc() {
    if !(need::userfaultfd() && need::programs(&["java"])) {
        return;
    }
    let scratch = scratch();
    let words = ["java", "-XX:+UseZGC", "-Xmx256m", "-XX:+PrintFlagsFinal", "-version"];
    let ended =
        run(&Program::new("java", &words), Some(&Ramfold::new(256 * MIB, &[])), &scratch.path().join("run"));
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(ended.stdout().lines().any(|line| line.contains(" UseZGC ") && line.contains("true")));
    let told = ended.stderr.lines().filter(|line| line.starts_with("ramfold: "));
    assert!(told.clone().count() == 1 && told.clone().all(|line| line.contains("ZGC")), "{}", ended.stderr);
}

/// A Go program of these sources and what all have in common, with C or without.
fn go(scratch: &Path, name: &str, sources: &[&str], with_c: bool) -> String {
    let binary = scratch.join(name);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary);
    build.args(sources.iter().chain(&["each.go"]).map(|source| test_file(&format!("programs/{source}"))));
    build.envs([("CGO_ENABLED", if with_c { "1" } else { "0" }), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "")]);
    build.env("GOCACHE", scratch.join("cache"));
    assert!(build.status().unwrap().success());
    binary.to_str().unwrap().into()
}

#[test]
fn go_with_c() {
    if !(need::userfaultfd() && need::programs(&["go", "cc"])) {
        return;
    }
    let scratch = scratch();
    let programs = [
        ("blocks", &["blocks.go"][..], "400"),
        ("crossings", &["crossings.go"], "250"),
        ("maps", &["maps.go", "with_c.go"], "200000"),
    ];
    for (name, sources, size) in programs {
        let binary = go(scratch.path(), name, sources, true);
        same_in_shares(&Program::new(name, &[&binary, size]), &[2, 4], MODES);
    }
}

/// Go without C asks the kernel for all of its memory by its own instructions, and no loader comes before it: it is not
/// managed, and says so.
#[test]
fn go_alone() {
    if !(need::userfaultfd() && need::programs(&["go"])) {
        return;
    }
    let scratch = scratch();
    let line = format!("exec {} 200000", go(scratch.path(), "maps", &["maps.go"], false));
    let program = Program::new("go", &["sh", "-c", &line]);
    let plain = run(&program, None, &scratch.path().join("plain"));
    assert!(plain.status.success(), "{}", plain.stderr);
    for share in [2, 4] {
        let ramfold = Ramfold::new(plain.peak / share, &[]);
        let ended = run(&program, Some(&ramfold), &scratch.path().join(format!("in {share}")));
        assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
        assert_eq!(ended.stdout(), plain.stdout());
        assert!(ended.stderr.contains("is passed: programs that are not managed"), "{}", ended.stderr);
    }
}

const PAGE: &str =
    "<!DOCTYPE html><html><head><title>Rows</title></head><body><table id=\"table\"></table><script>
    for (let i = 0; i < 300; i++) {
        const row = document.getElementById('table').insertRow();
        row.insertCell().textContent = 'row ' + i; row.insertCell().textContent = String(i ** 3);
    }</script></body></html>";

/// A place where Chromium shows a page, with these words before it and these options.
struct Browser<'a> {
    place: tempfile::TempDir,
    before: &'a [&'a str],
    options: &'a [&'a str],
}

impl<'a> Browser<'a> {
    fn new(before: &'a [&'a str], options: &'a [&'a str]) -> Self {
        let place = scratch();
        fs::write(place.path().join("page.html"), PAGE).unwrap();
        // Another user may read the page, and has a home here.
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Self { place, before, options }
    }

    fn show(&self, ramfold: Option<&Ramfold>, name: &str) -> Finished {
        let home = self.place.path().display();
        let (profile, url) =
            (format!("--user-data-dir={home}/{name}.profile"), format!("file://{home}/page.html"));
        let chromium = ["chromium", "--headless", "--disable-gpu", &profile, "--dump-dom", &url];
        let program = Program::new(name, &[self.before, &chromium, self.options].concat());
        let home = home.to_string();
        // Its user may have no right to make sockets in the machine's /tmp.
        let program = program.variable("HOME", &home).variable("TMPDIR", &home);
        let shown = run(&program, ramfold, &self.place.path().join(name));
        common::report("chromium", name, &shown);
        shown
    }
}

/// Its processes share much, guard memory with keys, and have allocators of their own.
#[test]
fn chromium() {
    if !(need::userfaultfd() && need::programs(&["chromium"])) {
        return;
    }
    let browser = Browser::new(&[], &["--no-sandbox"]);
    let expected = browser.show(None, "plain");
    assert!(expected.stdout().contains("<td>row 299</td><td>26730899</td>"), "{}", expected.stderr);
    for limit in [4096, 300] {
        let name = format!("in {limit} MiB");
        let shown = browser.show(Some(&Ramfold::new(limit * MIB, &[])), &name);
        assert!(shown.status.success(), "{name}: {} {}", shown.status, shown.stderr);
        assert!(shown.stdout() == expected.stdout(), "{name}");
    }
}

/// An ordinary user's. The sandbox leaves those who draw no /proc: they are not held, and say so.
#[test]
fn chromium_in_its_sandbox() {
    if !(need::userfaultfd() && need::root() && need::programs(&["chromium", "setpriv"])) {
        return;
    }
    let browser = Browser::new(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], &[]);
    let expected = browser.show(None, "plain");
    if !expected.stdout().contains("<td>row 299</td>") {
        need::skip(&format!("Chromium has no sandbox here: {}", expected.stderr));
        return;
    }
    let shown = browser.show(Some(&Ramfold::new(1024 * MIB, &[])), "limited");
    assert!(shown.status.success(), "{} {}", shown.status, shown.stderr);
    assert!(shown.stdout() == expected.stdout());
    let told = "ramfold: this process is not held under the limit any more: there is no /proc";
    assert!(shown.stderr.contains(told), "{}", shown.stderr);
}
