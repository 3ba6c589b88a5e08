//! Half an hour of real programs in one tree, of which random members are killed (`programs/soak.py` tells how).

#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "half an hour; SOAK_SECONDS says otherwise"]
fn random_programs_of_which_random_members_are_killed() {
    if !(need::userfaultfd() && need::programs(&["python3", "bash"])) {
        return;
    }
    let seconds = std::env::var("SOAK_SECONDS").unwrap_or_else(|_| "1800".to_owned());
    let directory = tempfile::Builder::new().prefix("soak.").tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (expected, socket) = (path("expected"), path("metrics"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/soak.py");
    let script = script.to_str().unwrap();
    let made = Command::new("python3").args([script, "expect", &expected]).status().unwrap();
    assert!(made.success());
    for mode in ["move", "wp"] {
        let metrics = format!("unix:{socket}");
        let options = ["run", "-m", "384M", "--swap-size", "8G", "--evict-mode", mode, "--metrics", &metrics];
        let mut soak = Command::new(env!("CARGO_BIN_EXE_ramfold"));
        let both = "python3 $0 soak $1 $2 1 $3 && sleep 1 && python3 $0 after $3";
        soak.args(options).args(["--", "sh", "-c", both, script, &expected, &seconds, &socket]);
        assert!(soak.status().unwrap().success(), "{mode}");
    }
}
