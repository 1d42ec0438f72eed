//! The command line as a whole: help for everything, and the exit codes it promises.

mod common;

use common::{run, text};

#[test]
fn help_names_every_verb_and_the_exit_codes() {
    let done = run(&["--help"]);
    let help = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0));
    for word in ["demo", "listen", "replay", "inject", "Exit codes"] {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn every_option_of_every_verb_has_a_help_text() {
    for verb in ["demo", "listen", "replay", "inject"] {
        let done = run(&[verb, "--help"]);
        assert_eq!(done.status.code(), Some(0));
        let help = text(&done.stdout);
        let lines: Vec<_> = help.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.trim_start().starts_with("--") {
                continue;
            }
            // The text stands on the same line or on the next.
            let beside = line.trim_start().split("  ").nth(1).is_some();
            let below = lines
                .get(at + 1)
                .is_some_and(|l| l.starts_with("          "));
            assert!(beside || below, "{verb}: {line}");
        }
    }
}

#[test]
fn what_is_not_understood_is_a_usage_error() {
    for args in [
        &[][..],
        &["dance"],
        &["inject"],
        &["listen", "--nosuch"],
        &["replay"],
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(
            !done.stderr.is_empty() && done.stdout.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn the_version_is_on_stdout() {
    let done = run(&["--version"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(
        text(&done.stdout).trim(),
        concat!("tickcast ", env!("CARGO_PKG_VERSION"))
    );
}
