//! The disks of one process, and adding and removing them while it runs.
//!
//! One that the command line asks for is alone, with its budget and its control socket. Those of a file are a
//! household: members of one segment, under one limit if there is one, so that `ramfold top`, `--metrics` and `--stats`
//! show them all. Their server has a control socket of its own, as zram has /sys/class/zram-control.
//!
//! Guarantee: all are opened before one is served, so a server that does not come up has changed no image and lost no
//! write. A disk is added or removed as a whole or not at all, one at a time.

use super::served::Served;
use super::{NAME, Options, config, failed};
use crate::failure::{Failure, say};
use crate::{serve, size};
use ramfold_budget::control::request::parse;
use ramfold_budget::control::{Answer, Answers, Control, Refusal};
use ramfold_budget::household::Household;
use ramfold_budget::segment::Segment;
use ramfold_budget::service::Place;
use ramfold_budget::share::{self, Offer};
use ramfold_disk::volume::LEAST_SHARED;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of the server's name.
const SERVER: &str = "disks";

ramfold_budget::attributes! {
    /// What can be asked of a server of several disks.
    pub enum Attribute {
        Disks = "disks" Read,
        HotAdd = "hot_add" Write,
        HotRemove = "hot_remove" Write,
    }
}

/// All disks of this process.
pub struct Disks {
    /// None: there is one, alone.
    household: Option<Household>,
    segment: Arc<Segment>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    disks: Vec<Served>,
    /// Why one that has ended was not kept.
    failure: Option<Failure>,
    is_ending: bool,
}

impl Disks {
    /// Opens the disk of the command line, or those that a file wants, and where others will join their budget. None is
    /// served yet.
    pub fn open(
        options: &Options,
        wanted: Option<Vec<Options>>,
    ) -> Result<(Arc<Self>, Option<share::Socket>), Failure> {
        let Some(wanted) = wanted else {
            let (place, share) = options.sharing.place()?;
            let disk = Served::open(options, place)?;
            return Ok((Self::new(None, disk.segment(), vec![disk]), share));
        };
        let (household, share) = found(options)?;
        let opened = wanted.iter().map(|disk| Served::open(disk, place_in(&household)?));
        let disks = opened.collect::<Result<_, _>>()?;
        let segment = household.segment();
        Ok((Self::new(Some(household), segment, disks), share))
    }

    fn new(household: Option<Household>, segment: Arc<Segment>, disks: Vec<Served>) -> Arc<Self> {
        let list = Mutex::new(List { disks, ..List::default() });
        Arc::new(Self { household, segment, list })
    }

    /// The server's control socket, if it has several disks.
    pub fn control(self: &Arc<Self>, name: Option<&str>) -> Result<Option<Control>, Failure> {
        if self.household.is_none() {
            return Ok(None);
        }
        let socket = serve::socket(SERVER, name)?;
        if let Some(socket) = &socket {
            say(&format!("disk: ramfold ctl {} adds and removes disks", socket.name()));
        }
        serve::control(NAME, socket, Arc::clone(self) as _)
    }

    /// The budget, where the numbers of all are.
    pub fn segment(&self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// What others need to join it.
    pub fn offer(&self) -> io::Result<Offer> {
        match &self.household {
            Some(household) => household.offer(),
            None => self.list().disks[0].offer(),
        }
    }

    /// A disk is put there or taken away as a whole, so a panic under the lock has spoilt nothing.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets clients come to all, and tells where they are.
    pub fn serve(&self) -> Result<(), Failure> {
        let mut list = self.list();
        let served = list.disks.iter_mut().try_for_each(Served::serve);
        if let Err(failure) = served {
            // Nobody was told of them; the images are marked as they were.
            list.is_ending = true;
            list.disks.drain(..).for_each(|mut disk| drop(disk.stop(true)));
            return Err(failure);
        }
        for disk in &list.disks {
            disk.tell();
            // Nobody need listen.
            disk.places().for_each(|place| drop(writeln!(io::stdout(), "{place}")));
        }
        Ok(())
    }

    /// Ends all, but for those that could not be kept: unless it `is_last`, they go on. Lines that say so; none: all
    /// have ended.
    pub fn stop(&self, is_last: bool) -> Result<Vec<String>, Failure> {
        let mut list = self.list();
        let (mut ended, mut left, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        for mut disk in std::mem::take(&mut list.disks) {
            match disk.stop(is_last) {
                Ok(Some(line)) => {
                    lines.push(line);
                    left.push(disk);
                    continue;
                }
                Ok(None) => {}
                Err(failure) => {
                    list.failure.replace(failure).iter().for_each(|before| say(&before.to_string()));
                }
            }
            ended.push(disk);
        }
        if !left.is_empty() {
            list.disks = left;
            return Ok(lines);
        }
        // What has ended is there for the report.
        (list.disks, list.is_ending) = (ended, true);
        list.failure.take().map_or(Ok(lines), Err)
    }

    /// Enters the numbers of all.
    pub fn publish(&self) {
        self.list().disks.iter().for_each(Served::publish);
    }

    /// Gives back what they have, whoever still asks for them.
    pub fn close(&self) {
        *self.list() = List { is_ending: true, ..List::default() };
    }
}

/// While it runs.
impl Disks {
    fn hot_add(&self, words: &str) -> Result<String, Failure> {
        let options = config::of_words(words)?;
        let mut list = self.list();
        let household = self.household.as_ref().filter(|_| !list.is_ending);
        let household = household.ok_or_else(|| Failure::failed("the server is ending"))?;
        let mut disk = Served::open(&options, place_in(household)?)?;
        disk.serve()?;
        disk.tell();
        let name = disk.name().to_owned();
        list.disks.push(disk);
        Ok(name)
    }

    fn hot_remove(&self, name: &str) -> Result<(), Refusal> {
        let mut list = self.list();
        let found = list.disks.iter().position(|disk| disk.name() == name).filter(|_| !list.is_ending);
        let index = found.ok_or_else(|| Refusal::Failed(format!("the server has no disk {name}")))?;
        list.disks[index].retire()?;
        drop(list.disks.remove(index));
        say(&format!("disk: {name} was removed"));
        Ok(())
    }

    /// A line for each: its name, its bytes, where clients find it.
    fn told(&self) -> String {
        let line = |disk: &Served| {
            let places: Vec<&str> = disk.places().collect();
            format!("{} {} {}\n", disk.name(), disk.size(), places.join(" "))
        };
        self.list().disks.iter().map(line).collect()
    }
}

impl Answers for Disks {
    fn answer(&self, line: &[u8]) -> Result<Answer<'_>, Refusal> {
        let text = match parse(line)? {
            (Attribute::Disks, _) => self.told(),
            (Attribute::HotAdd, words) => self.hot_add(words.unwrap_or_default())? + "\n",
            (Attribute::HotRemove, name) => {
                self.hot_remove(name.unwrap_or_default())?;
                String::new()
            }
        };
        Ok(Answer::written(move |out| out.write_all(text.as_bytes())))
    }
}

/// The household that the options tell, and where others will join its budget.
fn found(options: &Options) -> Result<(Household, Option<share::Socket>), Failure> {
    let (memory, sharing) = (options.memory, &options.sharing);
    if sharing.share.is_some() && memory.is_none() {
        return Err(Failure::usage("--share: there is no limit to share (give -m)"));
    }
    if let Some(memory) = memory.filter(|memory| *memory < LEAST_SHARED) {
        let least = size::display(LEAST_SHARED);
        return Err(Failure::usage(format!("-m {memory}: too small to work in (give at least {least})")));
    }
    let (place, share) = sharing.place()?;
    let household = match (place, memory) {
        (Place::Joined(joined), _) => Household::join(*joined),
        (_, Some(memory)) => Household::within(memory),
        (_, None) => Household::unlimited(),
    };
    household.map(|household| (household, share)).map_err(|error| failed(&error))
}

fn place_in(household: &Household) -> Result<Place, Failure> {
    household.place().map(|housed| Place::Housed(Box::new(housed))).map_err(|error| failed(&error))
}
