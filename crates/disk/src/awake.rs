//! Waiting awake: who expects a client's next bytes soon looks for them instead of sleeping.
//!
//! In a virtual machine a processor that goes idle takes 20 to 50 us to come back, and a client that waits for each
//! reply pays for that with each request. The kernel does the same in itself (`drivers/cpuidle/governors/haltpoll.c`).
//!
//! Price: [`MOST`] of a processor that nobody else wants, whenever a client comes late. Guarantee: a client that did
//! not come in time is waited for asleep, until it has come as soon again; and so is everyone where others want the
//! processor ([`Crowd`]).

use ramfold_budget::crowd::Crowd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long it waits awake.
const MOST: Duration = Duration::from_micros(50);

/// Who reads of one client.
#[derive(Debug, Default)]
pub(crate) struct Awake {
    expects: bool,
    crowd: Crowd,
}

impl Awake {
    /// Reads of a socket that waits for ever.
    pub(crate) fn read(&mut self, socket: &mut (impl Read + AsFd), out: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        while self.expects {
            match recv(&*socket, &mut *out, RecvFlags::DONTWAIT) {
                Ok((_, len)) => return Ok(len),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.expects = self.crowd.make_way() && begun.elapsed() < MOST;
        }
        let begun = Instant::now();
        let len = socket.read(out)?;
        self.expects = begun.elapsed() < MOST && !self.crowd.is_there();
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn all_that_is_sent_arrives_and_the_end_too() {
        let (mut client, mut socket) = UnixStream::pair().unwrap();
        let mut awake = Awake::default();
        let mut out = [0; 8];
        for _ in 0..3 {
            client.write_all(b"12345678").unwrap();
            assert_eq!((awake.read(&mut socket, &mut out).unwrap(), &out), (8, b"12345678"));
        }
        awake.expects = true;
        let late = std::thread::spawn(move || {
            std::thread::sleep(20 * MOST);
            client.write_all(b"late").unwrap();
            client
        });
        assert_eq!((awake.read(&mut socket, &mut out).unwrap(), &out[..4]), (4, &b"late"[..]));
        let client = late.join().unwrap();
        drop(client);
        assert_eq!(awake.read(&mut socket, &mut out).unwrap(), 0);
    }
}
