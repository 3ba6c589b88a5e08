//! Waiting awake: who expects a client's next request soon looks for it instead of sleeping.
//!
//! In a virtual machine a processor that goes idle takes 20 to 50 us to come back, and a client that waits for each
//! reply pays for that with each request. The kernel does the same in itself (`drivers/cpuidle/governors/haltpoll.c`).
//!
//! Price: [`SOCKET`] or [`RING`] of a processor that nobody else wants, whenever a client comes late. Guarantee: a
//! client that did not come in time is waited for asleep, until it has come as soon again; and so is everyone where
//! others want the processor ([`Crowd`]).

use ramfold_budget::crowd::Crowd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long who reads of a socket waits awake.
pub(crate) const SOCKET: Duration = Duration::from_micros(50);
/// How long who serves a guest's ring does: the guest takes an interrupt for each reply before it asks again.
pub(crate) const RING: Duration = Duration::from_micros(200);

/// How a look goes on that finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It ends.
    None,
    /// It sleeps until there may be something.
    Endless,
}

/// Who waits for one client.
#[derive(Debug)]
pub(crate) struct Awake {
    most: Duration,
    expects: bool,
    crowd: Crowd,
}

impl Awake {
    /// Who waits awake for so long.
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, expects: false, crowd: Crowd::default() }
    }

    /// Looks until something is found, or a look fails.
    pub(crate) fn wait<T, E>(
        &mut self,
        mut look: impl FnMut(Patience) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        while self.expects {
            if let Some(found) = look(Patience::None)? {
                return Ok(found);
            }
            self.expects = self.crowd.make_way() && begun.elapsed() < self.most;
        }
        loop {
            let begun = Instant::now();
            if let Some(found) = look(Patience::Endless)? {
                self.expects = begun.elapsed() < self.most && !self.crowd.is_there();
                return Ok(found);
            }
        }
    }

    /// Reads of a socket that waits for ever.
    pub(crate) fn read(&mut self, socket: &mut (impl Read + AsFd), out: &mut [u8]) -> io::Result<usize> {
        self.wait(|patience| match patience {
            Patience::Endless => socket.read(out).map(Some),
            Patience::None => match recv(&*socket, &mut *out, RecvFlags::DONTWAIT) {
                Ok((_, len)) => Ok(Some(len)),
                Err(Errno::AGAIN | Errno::INTR) => Ok(None),
                Err(error) => Err(error.into()),
            },
        })
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
        let mut awake = Awake::new(SOCKET);
        let mut out = [0; 8];
        for _ in 0..3 {
            client.write_all(b"12345678").unwrap();
            assert_eq!((awake.read(&mut socket, &mut out).unwrap(), &out), (8, b"12345678"));
        }
        awake.expects = true;
        let late = std::thread::spawn(move || {
            std::thread::sleep(20 * SOCKET);
            client.write_all(b"late").unwrap();
            client
        });
        assert_eq!((awake.read(&mut socket, &mut out).unwrap(), &out[..4]), (4, &b"late"[..]));
        assert!(!awake.expects);
        let client = late.join().unwrap();
        drop(client);
        assert_eq!(awake.read(&mut socket, &mut out).unwrap(), 0);
    }

    #[test]
    fn who_is_soon_again_is_waited_for_awake() {
        let mut awake = Awake::new(Duration::from_secs(60));
        let asked = |awake: &mut Awake, after: usize| {
            let mut asked = Vec::new();
            let found = awake.wait(|patience| {
                asked.push(patience);
                Ok::<_, ()>((asked.len() > after).then_some(()))
            });
            assert_eq!(found, Ok(()));
            asked
        };
        assert_eq!(asked(&mut awake, 1), [Patience::Endless; 2]);
        // A crowd sends everyone to sleep.
        if awake.expects {
            assert_eq!(asked(&mut awake, 0), [Patience::None]);
        }
        awake.expects = true;
        assert_eq!(awake.wait(|_| Err::<Option<()>, _>("gone")), Err("gone"));
    }
}
