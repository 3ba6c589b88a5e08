//! Whether this process's share of the processors is one on which programs with signals may stand still
//! (docs/platform.md): Linux 6.18 or later, and a quota of less than one processor in its cgroup or one above.

use std::fs;
use std::path::Path;

/// The first kernel that lets a thread go on in the kernel when the quota is used up.
const FIRST: (u32, u32) = (6, 18);
const CGROUPS: &str = "/sys/fs/cgroup";

/// The quota, in processors, if it is such a one.
pub fn too_small() -> Option<f64> {
    let release = rustix::system::uname().release().to_str().ok().and_then(version)?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    smallest(Path::new(CGROUPS), &groups).filter(|quota| release >= FIRST && *quota < 1.0)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The smallest quota of the groups in which `groups` (the text of /proc/PID/cgroup) says that a process is.
fn smallest(root: &Path, groups: &str) -> Option<f64> {
    let mut quotas: Vec<f64> = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, read): (_, fn(&Path) -> Option<f64>) = match controllers {
            "" => (root.to_owned(), second_version),
            some if some.split(',').any(|name| name == "cpu") => (root.join("cpu"), first_version),
            _ => continue,
        };
        // In a namespace of its own a process may see a path that is not below its root.
        let group = root.join(path.trim_start_matches('/'));
        quotas.extend(group.ancestors().take_while(|path| path.starts_with(&root)).filter_map(read));
    }
    quotas.into_iter().reduce(f64::min)
}

fn second_version(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn first_version(group: &Path) -> Option<f64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<f64>().ok();
    let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
    Some(quota / number("cpu.cfs_period_us")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_quota_above_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pod/cpu.max", "50000 100000\n");
        write("pod/job/cpu.max", "max 100000\n");
        let quota = |groups: &str| smallest(root.path(), groups);
        assert_eq!(quota("0::/pod/job\n"), Some(0.5));
        assert_eq!(quota("0::/\n"), None);
        assert_eq!(quota("0::/../elsewhere\n"), None);
        write("cpu/a/cpu.cfs_quota_us", "20000\n");
        write("cpu/a/cpu.cfs_period_us", "100000\n");
        write("cpu/a/b/cpu.cfs_quota_us", "-1\n");
        write("cpu/a/b/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota("4:cpu,cpuacct:/a/b\n3:memory:/x\n0::/\n"), Some(0.2));
        assert_eq!(quota("4:cpuset:/a\nnonsense\n"), None);
    }

    #[test]
    fn releases_have_two_numbers() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("7.0"), Some((7, 0)));
        assert_eq!(version("x"), None);
    }
}
