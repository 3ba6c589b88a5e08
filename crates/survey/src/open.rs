//! Finding the pages of what is to be surveyed: images, and processes with their descendants.

use crate::population::{Named, OpenError, Population, Target};
use crate::{image, process};

impl Population {
    /// The pages of all targets; with `tree` those of the processes' descendants too.
    ///
    /// # Errors
    /// [`OpenError`] of the first target that cannot be surveyed. A descendant that ends meanwhile is left out, here
    /// and later.
    pub fn open(targets: &[Target], tree: bool) -> Result<Self, OpenError> {
        let (mut all, mut frames) = (Self::default(), process::Frames::new());
        for target in targets {
            match target {
                Target::File(path) => image::list(path, &mut all)?,
                Target::Process(pid) => {
                    process::list(*pid, Named::ByUser, &mut all, &mut frames)?;
                    let descendants = if tree { process::tree(*pid) } else { vec![] };
                    for pid in descendants.into_iter().skip(1) {
                        match process::list(pid, Named::AsDescendant, &mut all, &mut frames) {
                            Err(OpenError::NoProcess(_)) => {}
                            listed => listed?,
                        }
                    }
                }
            }
        }
        if all.pages() == 0 { Err(OpenError::Nothing) } else { Ok(all) }
    }
}
