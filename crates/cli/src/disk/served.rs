//! One disk and all that belongs to it: its name, its sockets, its image.
//!
//! It is opened first, when nothing can be lost and nobody comes; then served. Dropped, it gives back what it has: its
//! memory, its place in the budget, its part of the backing, its sockets and its name.

use super::door::Door;
use super::persist::{self, Kept};
use super::{NAME, Options, failed, steady};
use crate::failure::{Failure, say};
use crate::{serve, size};
use ramfold_budget::control::{Control, Socket};
use ramfold_budget::segment::Segment;
use ramfold_budget::service::Place;
use ramfold_budget::share::Offer;
use ramfold_disk::attributes::{AttributeError, Attributes};
use ramfold_disk::face::Disk;
use ramfold_disk::image::SaveError;
use ramfold_disk::volume::Volume;
use std::sync::Arc;

/// A disk that is served, or about to be.
pub struct Served {
    name: String,
    exported: String,
    doors: Vec<Door>,
    is_served: bool,
    socket: Option<Socket>,
    control: Option<Control>,
    attributes: Arc<Attributes>,
    kept: Option<Kept>,
    volume: Arc<Volume>,
    /// Bytes of the limit that it has with others.
    within: Option<u64>,
}

impl Served {
    /// The disk that is wanted, in this budget, with what its image has.
    pub fn open(options: &Options, place: Place) -> Result<Self, Failure> {
        let mut settings = options.settings()?;
        let image = persist::open(options)?;
        settings.backing = options.backing(image.as_ref())?;
        let within = place.limit();
        let (doors, socket) = (options.doors()?, serve::socket(NAME, options.name.as_deref())?);
        if options.ublk.is_some() {
            steady::hold();
        }
        let volume = Arc::new(Volume::open_in(settings, place).map_err(|error| failed(&error))?);
        volume.set_keeps_fresh(!options.no_fresh);
        let attributes = options.attributes(&volume)?;
        let kept = image.map(|image| Kept::restore(image, &volume, options)).transpose()?;
        let name = socket.as_ref().map_or(NAME, |socket| socket.name()).to_owned();
        volume.set_name(&name);
        Ok(Self {
            exported: options.name.as_deref().unwrap_or(NAME).to_owned(),
            doors,
            is_served: false,
            control: None,
            attributes,
            name,
            socket,
            kept,
            volume,
            within,
        })
    }

    /// What `ramfold ctl` calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where clients find it.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.doors.iter().map(Door::place)
    }

    /// Bytes that it has room for now.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// The budget that it is in.
    pub fn segment(&self) -> Arc<Segment> {
        self.volume.segment()
    }

    /// What others need to join that.
    pub fn offer(&self) -> std::io::Result<Offer> {
        self.volume.offer()
    }

    /// Enters its numbers.
    pub fn publish(&self) {
        self.volume.publish();
    }

    /// Lets clients come, if they do not yet.
    pub fn serve(&mut self) -> Result<(), Failure> {
        if self.control.is_none() {
            let attributes = Arc::clone(&self.attributes) as _;
            self.control = serve::control(NAME, self.socket.take(), attributes)?;
        }
        if !self.is_served {
            self.admit()?;
        }
        Ok(())
    }

    fn admit(&mut self) -> Result<(), Failure> {
        self.kept.as_mut().map_or(Ok(()), |kept| kept.serve(&self.volume))?;
        self.is_served = true;
        let opened = self.doors.iter_mut().try_for_each(|door| door.open(&self.volume, &self.exported));
        opened.inspect_err(|_| {
            self.hang_up();
            let _ = self.keep();
        })
    }

    /// Tells what there is now.
    pub fn tell(&self) {
        say(&format!(
            "disk: {}, {} in memory{}; {}",
            self.name,
            size::display(self.size()),
            self.within.map_or_else(String::new, |limit| format!(
                ", in a shared budget of {}",
                size::display(limit)
            )),
            self.kept.as_ref().map_or("all that is written ends with this process", Kept::promise)
        ));
    }

    /// Hangs up on all clients. Then none has a request under way.
    fn hang_up(&mut self) {
        self.doors.iter_mut().for_each(Door::close);
        self.is_served = false;
    }

    fn keep(&mut self) -> Result<(), SaveError> {
        self.kept.as_mut().map_or(Ok(()), |kept| kept.save(&self.volume))
    }

    /// Hangs up and keeps what is to be kept. A line: why it could not be kept, and goes on.
    pub fn stop(&mut self, is_last: bool) -> Result<Option<String>, Failure> {
        if !self.is_served {
            // It was never served: its image is as it should be.
            return Ok(None);
        }
        self.hang_up();
        let Err(error) = self.keep() else { return Ok(None) };
        let kept = self.kept.as_ref().expect("it was to be kept");
        if is_last || self.doors.iter().any(Door::is_lost) {
            return Err(kept.lost(&error));
        }
        let line = kept.goes_on(&error);
        self.serve().map(|()| Some(line))
    }

    /// Ends it while others are served, as a clean stop does, but not under its clients. Its pages are gone then. If it
    /// fails, it goes on.
    pub fn retire(&mut self) -> Result<(), Failure> {
        let busy = || Failure::failed(AttributeError::Busy.to_string());
        if self.doors.iter().any(Door::is_in_use) {
            return Err(busy());
        }
        // The threads of a device use the disk as clients of a socket do.
        self.doors.iter_mut().filter(|door| door.is_device()).for_each(Door::close);
        let Some(size) = self.volume.close() else {
            self.doors.iter_mut().try_for_each(|door| door.open(&self.volume, &self.exported))?;
            return Err(busy());
        };
        // Who came since has found a disk without a size.
        self.hang_up();
        if let Err(error) = self.keep() {
            self.volume.reopen(size);
            self.serve()?;
            let why = format!(
                "the disk was not kept: {error} (it goes on: make room or copy it, and remove it again)"
            );
            return Err(Failure::failed(why));
        }
        self.volume.clear();
        Ok(())
    }
}
