//! `ramfold completions` and `ramfold man`: what a shell and a reader of manuals want, from the definitions of --help.

use crate::failure::Failure;
use crate::output::{self, print};
use clap::Command;
use clap_complete::Shell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints completions for a shell.
///
/// For bash: ramfold completions bash > /etc/bash_completion.d/ramfold
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: ramfold completions bash > ~/.local/share/bash-completion/completions/ramfold"
)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes man pages into a directory, one for each command.
///
/// The directory must be there. Pages of the same names are written over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold man /usr/local/share/man/man1")]
pub struct Man {
    /// Where they go
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints completions for all of `command`.
pub fn complete(options: &Completions, mut command: Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, "ramfold", &mut text);
    print(&String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}

/// Writes the pages of `command` and of all below it.
pub fn man(options: &Man, mut command: Command) -> Result<ExitCode, Failure> {
    command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&options.directory, &command)?;
    Ok(ExitCode::SUCCESS)
}

/// `ramfold.1`, `ramfold-run.1`, `ramfold-bench-pages.1`.
fn write_pages(directory: &Path, command: &Command) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).render(&mut page);
    rendered.map_err(|error| Failure::failed(format!("man: {name}: {error} (please report it)")))?;
    output::write("man", &directory.join(format!("{name}.1")), &page)?;
    command.get_subcommands().try_for_each(|below| write_pages(directory, below))
}
