//! Events: what the kernel lays into a queue of changes (fanotify_event_metadata and what follows it), one by one.

use crate::sys::FileHandle;
use rustix::process::getpid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Bytes of struct fanotify_event_metadata, and where in it what is.
const METADATA: usize = 24;
const MASK_AT: usize = 8;
const PID_AT: usize = 20;
/// Bytes before the handle in struct fanotify_event_info_fid: a header of four, and the file system.
const INFO: usize = 12;

/// An event that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    pub(crate) mask: u64,
    /// The change was this process's own.
    pub(crate) is_own: bool,
    /// Of which file, or directory, it tells, as [`crate::sys::handle_of`] gives it.
    pub(crate) handle: FileHandle,
    /// The name in it that came or went.
    pub(crate) name: Option<&'a OsStr>,
}

/// What may have changed, by an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told<'a> {
    One(Event<'a>),
    /// Some were lost, or are not understood: anything.
    All,
}

/// Events that were read from a queue. The last one is [`Told::All`] if they end in the middle of one.
#[derive(Debug)]
pub(crate) struct Events<'a> {
    rest: &'a [u8],
    own: i32,
}

impl<'a> Events<'a> {
    pub(crate) fn new(read: &'a [u8]) -> Self {
        Self { rest: read, own: getpid().as_raw_nonzero().get() }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Told<'a>;

    fn next(&mut self) -> Option<Told<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let len = bytes(self.rest, 0).map_or(0, u32::from_ne_bytes) as usize;
        let (event, rest) = self.rest.split_at_checked(len).filter(|_| len >= METADATA).unwrap_or((&[], &[]));
        self.rest = rest;
        Some(one(event, self.own).map_or(Told::All, Told::One))
    }
}

fn one(event: &[u8], own: i32) -> Option<Event<'_>> {
    let mask = u64::from_ne_bytes(bytes(event, MASK_AT)?);
    if mask & libc::FAN_Q_OVERFLOW != 0 {
        return None;
    }
    let is_own = i32::from_ne_bytes(bytes(event, PID_AT)?) == own;
    let info = event.get(METADATA..)?;
    let len = u32::from_ne_bytes(bytes(info, INFO)?) as usize;
    let end = INFO + 4 + 4 + len;
    let handle = info.get(INFO + 4..end)?.into();
    let name = match *info.first()? {
        libc::FAN_EVENT_INFO_TYPE_FID => None,
        libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
            let all = info.get(end..u16::from_ne_bytes(bytes(info, 2)?).into())?;
            let name = all.split(|byte| *byte == 0).next().unwrap_or_default();
            Some(OsStr::from_bytes(name))
        }
        _ => return None,
    };
    // Of itself a directory is told by this name.
    Some(Event { mask, is_own, handle, name: name.filter(|name| *name != ".") })
}

/// A number of `N` bytes at this place; None if they are not all there.
fn bytes<const N: usize>(event: &[u8], at: usize) -> Option<[u8; N]> {
    event.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An event of these parts, as the kernel lays it out (include/uapi/linux/fanotify.h).
    pub(crate) fn event(mask: u64, pid: i32, handle: &[u8], name: Option<&str>) -> Vec<u8> {
        let name = name.map(|name| [name.as_bytes(), &[0; 3]].concat()).unwrap_or_default();
        let kind =
            if name.is_empty() { libc::FAN_EVENT_INFO_TYPE_FID } else { libc::FAN_EVENT_INFO_TYPE_DFID_NAME };
        let fid = u16::try_from(INFO + 4 + handle.len() + name.len()).unwrap();
        let len = METADATA + usize::from(fid);
        let mut event = u32::try_from(len).unwrap().to_ne_bytes().to_vec();
        event.extend([3, 0, 24, 0]);
        event.extend(mask.to_ne_bytes());
        event.extend((-1_i32).to_ne_bytes());
        event.extend(pid.to_ne_bytes());
        event.extend([kind, 0]);
        event.extend(fid.to_ne_bytes());
        event.extend([0; 8]);
        event.extend(u32::try_from(handle.len() - 4).unwrap().to_ne_bytes());
        event.extend(handle);
        event.extend(name);
        event
    }

    #[test]
    fn an_event_tells_of_a_file_or_of_a_name_in_a_directory() {
        let own = getpid().as_raw_nonzero().get();
        let all = [
            event(libc::FAN_MODIFY, own, b"kindfile", None),
            event(libc::FAN_CREATE, own + 1, b"kinddir", Some("name")),
            event(libc::FAN_ATTRIB, 0, b"kinddir", Some(".")),
        ]
        .concat();
        let wanted = [
            (libc::FAN_MODIFY, true, &b"kindfile"[..], None),
            (libc::FAN_CREATE, false, b"kinddir", Some(OsStr::new("name"))),
            (libc::FAN_ATTRIB, false, b"kinddir", None),
        ];
        let wanted = wanted.map(|(mask, is_own, handle, name)| {
            Told::One(Event { mask, is_own, handle: handle.into(), name })
        });
        assert_eq!(Events::new(&all).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn what_is_lost_or_not_understood_may_be_anything() {
        let overflow = event(libc::FAN_Q_OVERFLOW, 0, b"none", None);
        assert_eq!(Events::new(&overflow).collect::<Vec<_>>(), [Told::All]);
        for name in [None, Some("name")] {
            let whole = event(libc::FAN_MODIFY, 0, b"kindmore", name);
            for len in 1..whole.len() {
                assert_eq!(Events::new(&whole[..len]).last(), Some(Told::All), "{len} bytes");
            }
            let mut other = whole;
            other[METADATA] = 77;
            assert_eq!(Events::new(&other).collect::<Vec<_>>(), [Told::All]);
        }
    }
}
