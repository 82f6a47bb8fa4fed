//! `oxccl completions` and `oxccl man`: what shells and `man` know of the command line, made of its
//! own definition.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::speak::say;

/// Prints completions of this command for a shell.
///
/// For bash: oxccl completions bash > ~/.local/share/bash-completion/completions/oxccl
#[derive(Args)]
pub(crate) struct CompletionsOptions {
    /// The shell.
    shell: Shell,
}

/// Prints the manual page of this command, or writes those of all verbs into a folder.
#[derive(Args)]
pub(crate) struct ManOptions {
    /// Where oxccl.1, oxccl-bench.1 and so on go, such as ~/.local/share/man/man1. It is made if it
    /// is not there.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Prints a shell's completions for the command line `C`.
pub(crate) fn completions<C: CommandFactory>(options: &CompletionsOptions) {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut C::command(), "oxccl", &mut text);
    say!("{}", String::from_utf8_lossy(&text).trim_end());
}

/// Prints or writes manual pages of the command line `C`.
///
/// # Errors
/// A folder or file that cannot be written.
pub(crate) fn man<C: CommandFactory>(options: &ManOptions) -> Result<(), Failure> {
    let Some(folder) = &options.folder else {
        let mut text = Vec::new();
        let page = clap_mangen::Man::new(C::command());
        page.render(&mut text).map_err(Failure::system("making the manual page"))?;
        say!("{}", String::from_utf8_lossy(&text).trim_end());
        return Ok(());
    };
    let doing = || format!("writing manual pages into {}", folder.display());
    fs::create_dir_all(folder).map_err(Failure::system(doing()))?;
    clap_mangen::generate_to(C::command(), folder).map_err(Failure::system(doing()))
}
