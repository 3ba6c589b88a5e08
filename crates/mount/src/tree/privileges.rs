//! Privileges: who writes to a file that lends rights to whoever runs it (set-user-ID, set-group-ID) takes them away.
//!
//! The kernel of the mount leaves that to the server (FUSE_HANDLE_KILLPRIV_V2): else it asks for the file's
//! capabilities before each write. Those the source's file system takes away itself, whoever writes. The bits of the
//! mode it leaves to a writer who may keep them (CAP_FSETID), as a server that is root may. So they are taken away
//! here, before the change, where the caller may not keep them: by the rules of `setattr_should_drop_suidgid`
//! (fs/attr.c).
//!
//! A list of who may what (ACL) is set by the same rule as chmod(2): a file's owner who is not in its group takes the
//! group's bit away, which a server that is root would leave. It goes after the list was set.
//!
//! Price: a look at the file for each write of who may not keep them, and at the caller where there are any. Guarantee:
//! when the change is made the bits are gone. The kernel of the mount has to be told to forget the mode it knows before
//! the caller is answered, since it runs programs by that.

use super::{Caller, Tree};
use crate::nodes::Node;
use crate::stamp::look;
use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

/// What the system tells of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rights {
    capabilities: u64,
    groups: Vec<u32>,
}

impl Rights {
    fn of(thread: u32) -> Option<Self> {
        std::fs::read_to_string(format!("/proc/{thread}/status")).ok().map(|status| Self::parse(&status))
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
        let groups = field("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect();
        Self { capabilities, groups }
    }

    /// Whether a caller of whom this can be seen may keep what lends rights. Other users than root may have the
    /// capability only in a namespace of their own, where it is none of the source's.
    fn may_keep(rights: Option<&Self>, by: Caller) -> bool {
        by.uid == 0 && rights.is_none_or(|it| it.capabilities & CapabilitySet::FSETID.bits() != 0)
    }

    /// Whether he is in this group.
    fn is_member(rights: Option<&Self>, by: Caller, group: u32) -> bool {
        by.gid == group || rights.is_some_and(|it| it.groups.contains(&group))
    }
}

/// What of a mode lends rights, as far as this caller may not keep it. `group`: the file's. `may_not`: he may keep
/// none.
fn lost(mode: Mode, group: u32, by: Caller, may_not: bool, rights: impl FnOnce() -> Option<Rights>) -> Mode {
    let lent = mode & (Mode::SUID | Mode::SGID);
    if lent.is_empty() {
        return lent;
    }
    let rights = rights();
    if Rights::may_keep(rights.as_ref(), by) && !may_not {
        return Mode::empty();
    }
    // Without the right to run it that bit lends nothing: it was mandatory locking once.
    let keeps_group = !mode.contains(Mode::XGRP) && Rights::is_member(rights.as_ref(), by, group);
    if keeps_group { lent - Mode::SGID } else { lent }
}

impl Tree {
    /// A file is about to be changed. True if it lent rights that it does not lend any more. `may_not`: the kernel has
    /// seen that the caller may not keep them. Else his capabilities tell, as far as they can be seen; those of a
    /// namespace look like the system's.
    ///
    /// # Errors
    /// What the source answers.
    pub fn end_privileges(&self, number: u64, by: Caller, may_not: bool) -> Result<bool, Errno> {
        let node = self.node(number)?;
        if node.kind == FileType::Directory {
            return Ok(false);
        }
        take_away(&node, |mode, group| lost(mode, group, by, may_not, || Rights::of(by.thread)))
    }

    /// A list of who may what was set on a file or directory. True if it lent its group's rights, and does so no more.
    pub(super) fn end_group(&self, number: u64, by: Caller) -> Result<bool, Errno> {
        take_away(&*self.node(number)?, |mode, group| {
            let lent = mode & Mode::SGID;
            let rights = || Rights::of(by.thread);
            if !lent.is_empty() && keeps_group(group, by, rights) { Mode::empty() } else { lent }
        })
    }
}

/// Takes those of its bits away from a file's mode that `lost` gives for the mode and the group. True if there are any.
fn take_away(node: &Node, lost: impl FnOnce(Mode, u32) -> Mode) -> Result<bool, Errno> {
    let told = node.at().and_then(look)?;
    let mode = Mode::from_raw_mode(told.stx_mode.into());
    let lost = lost(mode, told.stx_gid);
    if lost.is_empty() || !may_keep_all() {
        return Ok(false);
    }
    let mode = Mode::from_raw_mode((mode - lost).bits() & 0o7777);
    chmodat(CWD, node.at()?.way(), mode, AtFlags::empty())?;
    Ok(true)
}

/// Whether a group's bit stays where this caller says who may what (in_group_or_capable, fs/attr.c).
fn keeps_group(group: u32, by: Caller, rights: impl FnOnce() -> Option<Rights>) -> bool {
    let rights = rights();
    Rights::may_keep(rights.as_ref(), by) || Rights::is_member(rights.as_ref(), by, group)
}

/// Whether the source leaves the bits to this server. If not it takes them away itself.
fn may_keep_all() -> bool {
    capabilities(None).is_ok_and(|it| it.effective.contains(CapabilitySet::FSETID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_keep_them_takes_them_away() {
        let all = Rights { capabilities: u64::MAX, groups: vec![] };
        let member = Rights { capabilities: 0, groups: vec![3, 7] };
        let caller = |uid, gid| Caller { uid, gid, thread: 1 };
        let lost = |mode: u32, by, rights: Option<&Rights>| {
            let rights = rights.map(|it| Rights { groups: it.groups.clone(), ..*it });
            lost(Mode::from_raw_mode(mode), 7, by, false, || rights).bits()
        };
        for by in [caller(0, 0), caller(1000, 1000), caller(1000, 7)] {
            assert_eq!(lost(0o100_777, by, None), 0, "nothing was lent");
        }
        assert_eq!(lost(0o106_777, caller(0, 0), Some(&all)), 0, "root");
        assert_eq!(lost(0o106_777, caller(0, 0), None), 0, "root that cannot be seen");
        assert_eq!(lost(0o106_777, caller(0, 0), Some(&member)), 0o6000, "root without the capability");
        assert_eq!(lost(0o106_777, caller(1000, 7), Some(&all)), 0o6000, "capable in a namespace");
        assert_eq!(lost(0o106_767, caller(1000, 1000), Some(&member)), 0o4000, "a member");
        assert_eq!(lost(0o102_767, caller(1000, 7), None), 0, "a member that cannot be seen");
        assert_eq!(lost(0o102_767, caller(1000, 1000), None), 0o2000, "nobody knows");
        assert_eq!(lost(0o102_777, caller(1000, 7), Some(&member)), 0o2000, "a group that runs it");
    }

    #[test]
    fn what_the_kernel_has_seen_is_not_asked_again() {
        let lost = |mode: u32, rights: Option<Rights>| {
            let root = Caller { uid: 0, gid: 0, thread: 1 };
            lost(Mode::from_raw_mode(mode), 7, root, true, || rights).bits()
        };
        assert_eq!(lost(0o106_777, None), 0o6000, "root that cannot be seen");
        let all = Rights { capabilities: u64::MAX, groups: vec![7] };
        assert_eq!(lost(0o106_777, Some(all)), 0o6000, "root of a namespace");
        let member = Rights { capabilities: u64::MAX, groups: vec![7] };
        assert_eq!(lost(0o106_767, Some(member)), 0o4000, "a member");
    }

    #[test]
    fn a_list_leaves_the_group_to_its_members() {
        let rights = |capabilities, group| move || Some(Rights { capabilities, groups: vec![group] });
        let caller = |uid, gid| Caller { uid, gid, thread: 1 };
        assert!(keeps_group(7, caller(0, 0), rights(u64::MAX, 3)) && keeps_group(7, caller(0, 0), || None));
        assert!(keeps_group(7, caller(1000, 7), || None) && keeps_group(7, caller(1000, 1000), rights(0, 7)));
        assert!(!keeps_group(7, caller(1000, 1000), rights(u64::MAX, 3)), "capable in a namespace");
        assert!(!keeps_group(7, caller(0, 0), rights(0, 3)) && !keeps_group(7, caller(1000, 1000), || None));
    }

    #[test]
    fn rights_are_what_the_system_tells() {
        let status =
            "Name:\tGroups: 1\nUid:\t5\nGroups:\t4 24 1000 \nCapInh:\t0\nCapEff:\t0000000000000010\n";
        let wanted = Rights { capabilities: CapabilitySet::FSETID.bits(), groups: vec![4, 24, 1000] };
        assert_eq!(Rights::parse(status), wanted);
        assert_eq!(Rights::parse(""), Rights::default());
        let own = std::process::id();
        assert!(Rights::of(own).is_some() && Rights::of(0).is_none());
    }
}
