//! The `ramfold` command: parse, build options, run, report.

mod advise;
mod bench;
mod ctl;
mod debug;
mod disk;
mod failure;
mod find;
mod html;
mod inspect;
mod live;
mod manners;
mod mount;
mod names;
mod output;
mod replay;
mod run;
mod serve;
mod sharing;
mod size;
mod survey;
mod top;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use failure::Failure;
use std::process::ExitCode;

/// Compressed memory for Linux programs, in user space.
#[derive(Debug, Parser)]
#[command(name = "ramfold", version, propagate_version = true)]
#[command(after_help = "Example: ramfold run -m 512M -- make -j4")]
struct Cli<C: Subcommand> {
    #[command(subcommand)]
    command: C,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Options),
    Disk(disk::Options),
    Mount(mount::Options),
    Ctl(ctl::Options),
    Top(top::Options),
    Debug(debug::Options),
    #[command(subcommand)]
    Bench(bench::Command),
    Inspect(inspect::Options),
    Advise(advise::Options),
    Replay(replay::Options),
    Completions(manners::Completions),
    Man(manners::Man),
}

/// `run` and no other: a program waits for its start, and to build the options of all commands takes as long as much of
/// the rest.
#[derive(Debug, Subcommand)]
enum Started {
    Run(run::Options),
}

fn main() -> ExitCode {
    let done = match started() {
        Some(options) => run::run(&options),
        None => any(),
    };
    done.unwrap_or_else(|failure| failure.report())
}

/// What `ramfold run` is told, if it is that and told rightly.
fn started() -> Option<run::Options> {
    if std::env::args_os().nth(1)? != "run" {
        return None;
    }
    let Cli { command: Started::Run(options) } = Cli::try_parse().ok()?;
    Some(options)
}

fn any() -> Result<ExitCode, Failure> {
    let all = Cli::<Command>::command;
    match Cli::try_parse() {
        Ok(Cli { command: Command::Run(options) }) => run::run(&options),
        Ok(Cli { command: Command::Disk(options) }) => disk::run(&options),
        Ok(Cli { command: Command::Mount(options) }) => mount::run(&options),
        Ok(Cli { command: Command::Ctl(options) }) => ctl::run(&options),
        Ok(Cli { command: Command::Top(options) }) => top::run(&options),
        Ok(Cli { command: Command::Debug(options) }) => debug::run(&options),
        Ok(Cli { command: Command::Bench(command) }) => bench::run(&command),
        Ok(Cli { command: Command::Inspect(options) }) => inspect::run(&options),
        Ok(Cli { command: Command::Advise(options) }) => advise::run(&options),
        Ok(Cli { command: Command::Replay(options) }) => replay::run(&options),
        Ok(Cli { command: Command::Completions(options) }) => Ok(manners::complete(&options, all())),
        Ok(Cli { command: Command::Man(options) }) => manners::man(&options, all()),
        Err(error) => asked_or_wrong(&error),
    }
}

/// `--help` and `--version` are answered; wrong usage becomes one line.
fn asked_or_wrong(error: &clap::Error) -> Result<ExitCode, Failure> {
    let helps = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    if helps.contains(&error.kind()) {
        // A reader that closed the pipe has seen enough.
        let _ = error.print();
        return Ok(ExitCode::SUCCESS);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Failure::usage("wrong usage: a command is missing (see ramfold --help)"));
    }
    Err(Failure::usage(format!("wrong usage: {} (see --help)", failure::line_of(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::<Command>::command().debug_assert();
    }
}
