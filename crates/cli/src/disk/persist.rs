//! `--persist`: the disk is kept in an image at a clean stop, and served again from there; with `--durable`, what was
//! flushed is kept before.
//!
//! What an image is, is in ramfold-disk. Here is what its user is told: why a file is refused and what to do, how old
//! what is served is, and that a stop has not kept the disk.

use super::Options;
use crate::failure::{Failure, say};
use crate::output::progress;
use ramfold_disk::image::durable::{Durable, LEAST_LOG, PATIENCE, Settings};
use ramfold_disk::image::format::{HeaderError, ReadError};
use ramfold_disk::image::{Image, OpenError, SaveError};
use ramfold_disk::volume::Volume;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The image of --backing-dev, if the disk is to be kept in one.
pub fn open(options: &Options) -> Result<Option<Image>, Failure> {
    let Some(path) = options.backing_dev.as_ref().filter(|_| options.persist) else { return Ok(None) };
    if path.is_dir() {
        let path = path.display();
        return Err(Failure::usage(format!(
            "--backing-dev {path}: a directory (with --persist give a file)"
        )));
    }
    let opened = Image::open(path, options.size(), options.accept_stale);
    opened.map(Some).map_err(|error| {
        let what = what_to_do(&error);
        Failure::failed(format!("--backing-dev {}: {error} ({what})", path.display()))
    })
}

fn what_to_do(error: &OpenError) -> String {
    match error {
        OpenError::NoDirectory | OpenError::Io(_) => "give another file".to_owned(),
        OpenError::InUse => "end that one first, or give another file".to_owned(),
        OpenError::NotAFile | OpenError::Header(HeaderError::NotAnImage) => {
            "it was left as it is; give another file".to_owned()
        }
        OpenError::Header(HeaderError::Version(_)) | OpenError::LogVersion(_) => {
            "it was left as it is; use the ramfold that wrote it, or give another file".to_owned()
        }
        OpenError::Header(HeaderError::Damaged) | OpenError::Length { .. } => DAMAGED.to_owned(),
        OpenError::Size(size) => format!("give --size {size}, or another file"),
        OpenError::Stale { age } => {
            format!("--accept-stale serves the state of {} ago; else remove it to begin anew", ago(*age))
        }
    }
}

const DAMAGED: &str = "it was left as it is; bring it back from a copy, or remove it to begin anew";

/// A disk that is kept.
pub struct Kept {
    by: By,
    path: PathBuf,
    compressor: String,
    is_durable: bool,
}

/// What keeps it.
enum By {
    /// At a clean stop.
    Image(Image),
    /// At each flush.
    Log(Arc<Durable>),
    /// It has failed, and no client has come.
    Nobody,
}

impl Kept {
    /// Gives a disk of zeros what is kept.
    pub fn restore(mut image: Image, volume: &Volume, options: &Options) -> Result<Self, Failure> {
        let restored = image.restore(volume, |done, all| progress(&format!("reading page {done} of {all}")));
        progress("");
        restored.map_err(|error| {
            let what = match error {
                ReadError::Damaged(_) => DAMAGED,
                ReadError::Io(_) => "it was left as it is",
                ReadError::Disk(_) => "it was left as it is; give more --mem-limit or --backing-size",
            };
            Failure::failed(format!("--backing-dev {}: {error} ({what})", image.path().display()))
        })?;
        let path = image.path().display();
        if image.was_cut() {
            let (pages, groups) = (image.pages(), image.groups());
            say(&format!(
                "disk: {path}: it did not end in order: {pages} pages as they were {} ago, and {groups} flushes since \
                 (what was not flushed is lost)",
                ago(image.age())
            ));
        } else if image.is_stale() {
            say(&format!(
                "disk: {path}: it did not end in order: what was written since its clean stop {} ago is lost",
                ago(image.age())
            ));
        } else if image.pages() > 0 {
            let (pages, age) = (image.pages(), ago(image.age()));
            say(&format!("disk: {path}: {pages} pages, as the disk was stopped {age} ago"));
        }
        let (path, compressor) = (image.path().to_owned(), options.compressor().to_owned());
        Ok(Self { by: By::Image(image), path, compressor, is_durable: options.durable })
    }

    /// What a client can rely on.
    pub fn promise(&self) -> &'static str {
        if self.is_durable { "what is flushed is kept" } else { "a clean stop keeps it" }
    }

    /// Before clients come.
    pub fn serve(&mut self, volume: &Volume) -> Result<(), Failure> {
        let served = match std::mem::replace(&mut self.by, By::Nobody) {
            By::Image(image) if self.is_durable => {
                Durable::start(image, volume, self.settings()).map(|durable| self.by = By::Log(durable))
            }
            By::Image(mut image) => {
                let served = image.serve(volume, &self.compressor);
                self.by = By::Image(image);
                served
            }
            by => {
                self.by = by;
                Ok(())
            }
        };
        served.map_err(|error| {
            Failure::failed(format!(
                "--backing-dev {}: {error} (what it keeps stays; make room, or give another file)",
                self.path.display()
            ))
        })
    }

    fn settings(&self) -> Settings {
        let path = self.path.display().to_string();
        Settings {
            compressor: self.compressor.clone(),
            least_log: LEAST_LOG,
            patience: PATIENCE,
            tell: Box::new(move |line| say(&format!("disk: {path}: {line}"))),
        }
    }

    /// After they have gone.
    pub fn save(&mut self, volume: &Volume) -> Result<(), SaveError> {
        let tell = |done, all| progress(&format!("keeping page {done} of {all}"));
        let saved = match &mut self.by {
            By::Image(image) => image.save(volume, &self.compressor, tell),
            By::Log(durable) => durable.stop(volume, tell),
            By::Nobody => Ok(()),
        };
        progress("");
        saved
    }

    /// What is to be said after a stop that has kept nothing.
    pub fn goes_on(&self, error: &SaveError) -> String {
        format!(
            "disk: {}: the disk was not kept: {error} (it goes on: make room or copy it, and stop it again; the next \
             stop ends it in any case)",
            self.path.display()
        )
    }

    /// After the last one.
    pub fn lost(&self, error: &SaveError) -> Failure {
        let path = self.path.display();
        let By::Image(image) = &self.by else {
            return Failure::failed(format!(
                "disk: {path}: what was written since the last flush that succeeded is lost: {error}"
            ));
        };
        Failure::failed(format!(
            "disk: {path}: the disk was not kept, and what was written is lost: {error} (--accept-stale serves the \
             state of {} ago)",
            ago(image.age())
        ))
    }
}

/// A time for people: `3 h`.
fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_its_largest_unit() {
        let told = [1, 119, 120, 7199, 7200, 172_799, 172_800].map(|s| ago(Duration::from_secs(s)));
        assert_eq!(told, ["1 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days"]);
    }
}
