//! Languages and a browser that manage memory in ways of their own: what they give without ramfold they give in less
//! memory than they want.

mod common;

use std::fs;
use std::process::Command;

use common::{MODES, Program, Ramfold, need, run, same_in_shares, scratch, test_file};

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

#[test]
fn go_with_c() {
    if !(need::userfaultfd() && need::programs(&["go", "cc"])) {
        return;
    }
    let scratch = scratch();
    let binary = scratch.path().join("blocks");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary).arg(test_file("programs/blocks.go"));
    let cache = scratch.path().join("cache");
    let build =
        build.envs([("CGO_ENABLED", "1"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "")]).env("GOCACHE", &cache);
    assert!(build.status().unwrap().success());
    same_in_shares(&Program::new("go", &[binary.to_str().unwrap(), "400"]), &[2], MODES);
}

/// Its processes share much, guard memory with keys, and have allocators of their own.
#[test]
fn chromium() {
    const PAGE: &str =
        "<!DOCTYPE html><html><head><title>Rows</title></head><body><table id=\"table\"></table><script>
        for (let i = 0; i < 300; i++) {
            const row = document.getElementById('table').insertRow();
            row.insertCell().textContent = 'row ' + i; row.insertCell().textContent = String(i ** 3);
        }</script></body></html>";
    if !(need::userfaultfd() && need::programs(&["chromium"])) {
        return;
    }
    let scratch = scratch();
    let page = scratch.path().join("page.html");
    fs::write(&page, PAGE).unwrap();
    let browse = |ramfold: Option<&Ramfold>, name: &str| {
        let profile = format!("--user-data-dir={}", scratch.path().join(format!("{name}.profile")).display());
        let url = format!("file://{}", page.display());
        let words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", &profile, "--dump-dom", &url];
        let shown = run(&Program::new(name, &words), ramfold, &scratch.path().join(name));
        common::report("chromium", name, &shown);
        assert!(shown.status.success(), "{name}: {} {}", shown.status, shown.stderr);
        shown.stdout()
    };
    let expected = browse(None, "plain");
    assert!(expected.contains("<td>row 299</td><td>26730899</td>"), "{expected}");
    for limit in [4096, 300] {
        let name = format!("in {limit} MiB");
        assert!(browse(Some(&Ramfold::new(limit * MIB, &[])), &name) == expected, "{name}");
    }
}
