//! Builds the library that `ramfold run` puts into programs, so that it can travel inside the binary: one file
//! to install, and nothing to find at run time.
//!
//! A nested cargo is the only way to build another crate with another profile (panic=abort, LTO) as part of a
//! plain `cargo build`. It has a target directory of its own, so the two never wait for each other's lock, and
//! the library is the same whatever the profile of the binary.
//!
//! In the workspace it is built from there. The package on crates.io is built where nothing of the workspace is: it
//! carries the sources of the library below `library`, which is made of links to them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Settings of the outer build that must not reach the inner one: flags and wrappers (coverage, clippy) that
/// would make another library, or rebuild it for each.
const OUTER_ONLY: &[&str] = &[
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_RUSTFLAGS",
];

fn main() {
    let root = sources(Path::new(&var("CARGO_MANIFEST_DIR")));
    build_start(&root.join("crates/preload/start"));
    let target_dir = PathBuf::from(var("OUT_DIR")).join("preload");
    println!("cargo::rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
    // `.ci/run` asks for a library that checks itself.
    println!("cargo::rerun-if-env-changed=CARGO_PROFILE_PRELOAD_DEBUG_ASSERTIONS");
    if env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.ends_with("clippy-driver")) {
        // Nothing that a linter makes is ever run, and it would be a second build of everything.
        let empty = target_dir.with_extension("none");
        fs::write(&empty, []).expect("OUT_DIR is writable");
        return embed(&empty);
    }
    let mut cargo = Command::new(var("CARGO"));
    cargo.args(["build", "--package", "ramfold-preload", "--profile", "preload", "--target-dir"]);
    cargo.arg(&target_dir).current_dir(&root);
    for name in OUTER_ONLY {
        cargo.env_remove(name);
    }
    if env::var_os("SOURCE_DATE_EPOCH").is_none() {
        // mimalloc has the time of its build in it, and two builds of one source are to be equal.
        cargo.env("SOURCE_DATE_EPOCH", "0");
    }
    let mut built = target_dir.clone();
    let (host, target) = (var("HOST"), var("TARGET"));
    if host != target {
        cargo.args(["--target", &target]);
        built.push(target);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the preload library did not build: {status}");
    embed(&built.join("preload/libramfold_preload.so"));
}

/// Where the library's sources are: in this workspace, or in one that is made of what the package carries. Below
/// `library` they lie as in the workspace; but cargo packs no second `Cargo.toml`, so manifests have another name
/// there.
fn sources(package: &Path) -> PathBuf {
    let (workspace, library) = (package.join("../.."), package.join("library"));
    if workspace.join("crates/preload").exists() {
        for input in ["src", "crates/budget", "crates/pager", "crates/preload", "Cargo.toml", "Cargo.lock"] {
            println!("cargo::rerun-if-changed={}", workspace.join(input).display());
        }
        return workspace;
    }
    println!("cargo::rerun-if-changed={}", library.display());
    let made = PathBuf::from(var("OUT_DIR")).join("workspace");
    // What an earlier build has left.
    let _ = fs::remove_dir_all(&made);
    copy(&library, &made).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
    made
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let source = entry?.path();
        let name = source.file_name().unwrap_or_default();
        if source.is_dir() {
            copy(&source, &to.join(name))?;
        } else if name == "manifest.toml" {
            // Most of the default members are not here.
            let text = fs::read_to_string(&source)?;
            let kept = text.lines().filter(|line| !line.starts_with("default-members"));
            fs::write(to.join("Cargo.toml"), kept.map(|line| format!("{line}\n")).collect::<String>())?;
        } else {
            fs::copy(&source, to.join(name))?;
        }
    }
    Ok(())
}

/// The library that every program gets, and which loads the other one where that is needed: C without a runtime, so
/// that the many small processes of a build start quickly.
fn build_start(sources: &Path) {
    let library = PathBuf::from(var("OUT_DIR")).join("libramfold_start.so");
    let mut compile = cc::Build::new().opt_level(2).debug(false).warnings(false).get_compiler().to_command();
    compile.args(
        "-std=gnu11 -shared -fPIC -fvisibility=hidden -fno-builtin -U_FORTIFY_SOURCE -Wall -Werror"
            .split(' '),
    );
    // Few mappings, and few pages of its own.
    compile.args("-Wl,-z,now,-z,noseparate-code,-z,norelro,-Bsymbolic-functions,-s -o".split(' '));
    compile.arg(&library);
    compile.args(
        [
            "start",
            "heap",
            "calls",
            "exec",
            "fork",
            "limits",
            "direct",
            "symbols",
            "others",
            "linker",
            "next",
            "owner",
            "command",
            "carry",
            "descriptors",
            "users",
            "apart",
        ]
        .map(|file| sources.join(file).with_extension("c")),
    );
    let status = compile.arg("-ldl").status().expect("the C compiler runs");
    assert!(status.success(), "the first library did not build: {status}");
    println!("cargo::rustc-env=RAMFOLD_START={}", library.display());
}

fn embed(library: &Path) {
    println!("cargo::rustc-env=RAMFOLD_PRELOAD={}", library.display());
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
