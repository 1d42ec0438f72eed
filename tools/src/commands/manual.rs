//! `tickcast manual`: writes the man pages and shell completions of both programs. The packages ship its
//! files, and users read them there, so the help does not list this verb.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use tickcast_publisher::internal::CommandLine;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_transport::host::files::create_directory;

/// The folder of the pages and completions.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder to write them into; it is created if it is absent.
    folder: PathBuf,
}

/// Writes the files.
///
/// # Errors
/// Returns [`ToolError`] if the folder or a file in it can't be written.
pub(crate) fn run(args: &Args, tools: Command) -> Result<Exit, ToolError> {
    let folder = &args.folder;
    create_directory(folder).map_err(ToolError::File)?;
    let written = write_all(folder, tools).and_then(|()| write_all(folder, CommandLine::command()));
    written.map_err(|source| ToolError::Write {
        path: folder.clone(),
        source,
    })?;
    Ok(Exit::Whole)
}

/// Writes the completions of a program for each shell, and a page for it and for each verb that it lists.
fn write_all(folder: &Path, mut program: Command) -> io::Result<()> {
    clap_mangen::generate_to(program.clone(), folder)?;
    let name = program.get_name().to_owned();
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut program, &name, folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn manual_covers_every_listed_verb_and_every_shell() {
        let folder = tempfile::tempdir().unwrap();
        let args = Args {
            folder: folder.path().join("manual"),
        };
        run(&args, Cli::command()).unwrap();
        let read = |name: &str| fs::read_to_string(args.folder.join(name)).unwrap();
        let tools = Cli::command();
        let listed = tools.get_subcommands().filter(|verb| !verb.is_hide_set());
        let listed: Vec<&str> = listed.map(Command::get_name).collect();
        assert!(listed.len() > 5);
        for verb in &listed {
            let page = read(&format!("tickcast-{verb}.1"));
            assert!(page.contains(".SH SYNOPSIS"), "{verb}");
            let verb = verb.replace('-', "\\-");
            assert!(read("tickcast.1").contains(&format!("tickcast\\-{verb}(1)")));
        }
        assert!(!args.folder.join("tickcast-manual.1").exists());
        assert!(read("tickcast-publisher.1").contains("\\-\\-config"));
        for (program, words) in [
            ("tickcast", listed.as_slice()),
            ("tickcast-publisher", &["--config", "--check"]),
        ] {
            for completions in [
                format!("{program}.bash"),
                format!("_{program}"),
                format!("{program}.fish"),
                format!("_{program}.ps1"),
                format!("{program}.elv"),
            ] {
                let text = read(&completions);
                for word in words {
                    let word = word.trim_start_matches('-');
                    assert!(text.contains(word), "{completions} lacks {word}");
                }
            }
        }
    }
}
