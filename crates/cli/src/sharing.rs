//! `--share` and `--budget`: one limit for a run, disks and mounts that are started one by one.

use crate::failure::Failure;
use ramfold_budget::service::Place;
use ramfold_budget::share::{self, Offer, Share};
use std::path::{Path, PathBuf};

/// One limit for several.
#[derive(Debug, clap::Args)]
pub struct Sharing {
    /// Let others join the limit, by --budget: a socket is made there, for this user alone
    #[arg(long, value_name = "PATH", conflicts_with = "budget")]
    pub share: Option<PathBuf>,

    /// Join the limit of what was started with --share PATH
    #[arg(long, value_name = "PATH")]
    pub budget: Option<PathBuf>,
}

impl Sharing {
    /// The budget that is meant, and where others will join it.
    pub fn place(&self) -> Result<(Place, Option<share::Socket>), Failure> {
        if let Some(path) = &self.budget {
            let joined = share::join(path);
            let joined =
                joined.map_err(|error| Failure::failed(format!("--budget {}: {error}", path.display())))?;
            return Ok((Place::Joined(Box::new(joined)), None));
        }
        let socket = self.share.as_deref().map(bind).transpose()?;
        Ok((if socket.is_some() { Place::Sharing } else { Place::Alone }, socket))
    }
}

/// The socket of --share.
pub fn bind(path: &Path) -> Result<share::Socket, Failure> {
    share::Socket::bind(path).map_err(|error| Failure::failed(format!("--share {}: {error}", path.display())))
}

/// Serves it.
pub fn start(
    socket: Option<share::Socket>,
    offer: impl FnOnce() -> std::io::Result<Offer>,
) -> Result<Option<Share>, Failure> {
    let start = |socket| offer().and_then(|offer| Share::start(socket, offer));
    socket.map(start).transpose().map_err(|error| Failure::failed(format!("--share: {error}")))
}
