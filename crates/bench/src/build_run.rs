//! One build on one side, what it cost and what it made.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::build::{BuildDirectory, Objects, Sources};
use crate::cost::{Cost, End, Job};
use crate::measure::{Bench, Side};

/// What all builds have in common.
#[derive(Debug)]
pub struct Build {
    /// The sides' set-up.
    pub bench: Bench,
    /// What is compiled.
    pub sources: Sources,
    /// How long a build may take before it is killed.
    pub timeout: Duration,
}

impl Build {
    /// `make -j` of `jobs`. Objects that are not as `expected` are an error, and are kept; there are none of a build
    /// that came to no end.
    ///
    /// # Errors
    /// The build fails or comes out differently, or the limit cannot be set up.
    pub fn run(
        &self,
        jobs: usize,
        side: Side,
        limit: u64,
        expected: Option<&Objects>,
    ) -> Result<(Cost, Option<Objects>)> {
        let words = vec!["make".to_owned(), "-s".to_owned(), format!("-j{jobs}")];
        let job = Job { words, side, limit, timeout: self.timeout };
        let mut directory = BuildDirectory::new(&self.sources)?;
        let outcome = self.run_in(&mut directory, &job, expected);
        outcome.with_context(|| format!("make -j{jobs} on {}", side.name()))
    }

    fn run_in(
        &self,
        directory: &mut BuildDirectory,
        job: &Job,
        expected: Option<&Objects>,
    ) -> Result<(Cost, Option<Objects>)> {
        let (cost, failed) = self.bench.cost(job, |command| directory.place(command.stdin(Stdio::null())))?;
        if let Some(status) = failed {
            let (said, kept) = (directory.said(), directory.keep().display());
            bail!("{status} after {:.1} s (kept in {kept}): {said}", cost.seconds);
        }
        if cost.end != End::Done {
            return Ok((cost, None));
        }
        let objects = directory.objects(&self.sources);
        let same = objects.and_then(|objects| match expected {
            Some(expected) => objects.same_as(expected).map(|()| objects),
            None => Ok(objects),
        });
        let objects = same.with_context(|| format!("kept in {}", directory.keep().display()))?;
        Ok((cost, Some(objects)))
    }
}
