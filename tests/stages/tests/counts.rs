//! The program `counts`: it reports stages that it can't compare, and fails for them if it must compare.

use std::path::Path;
use std::process::{Command, Output};

const TABLE: &str = include_str!("../../golden/counts.md");
/// A stage that is counted quickly, also in a debug build.
const STAGE: &str = "header-encode";

fn counts(table: &Path, path: Option<&str>, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counts"));
    command.arg("--table").arg(table).args(args);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let Output { status, stderr, .. } = command.output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Asserts that the program ends with this code and prints this word.
fn assert_ends(table: &Path, path: Option<&str>, args: &[&str], wanted: i32, word: &str) {
    let (code, said) = counts(table, path, args);
    assert!(
        code == Some(wanted) && said.contains(word),
        "{args:?}: {code:?} {said}"
    );
}

/// Returns a table that was made by a compiler of this name.
fn table_by(rust: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("counts.md");
    let pinned = "release build by";
    assert!(TABLE.contains(pinned));
    std::fs::write(&path, TABLE.replace(pinned, rust)).expect("it is written");
    (folder, path)
}

fn has_valgrind() -> bool {
    let is_here = Command::new("valgrind").arg("--version").output().is_ok();
    if !is_here {
        println!("SKIPPED: valgrind is not installed");
    }
    is_here
}

#[test]
fn unknown_stage_is_error_with_list() {
    let (_folder, table) = table_by("release build by");
    let (code, said) = counts(&table, None, &["--only", "windwo"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("windwo") && said.contains("window-in-order, window-one"),
        "{said}"
    );
}

#[test]
fn uncompared_stage_fails_with_must_compare() {
    if !has_valgrind() {
        return;
    }
    let (_folder, table) = table_by("another build by");
    let must = ["--only", STAGE, "--must-compare"];
    assert_ends(&table, None, &must[..2], 0, "NOT COMPARED");
    assert_ends(&table, None, &must, 1, "another build by");
}

#[test]
fn missing_valgrind_skips_or_fails_if_required() {
    let (_folder, table) = table_by("release build by");
    let nowhere = Some("/nowhere");
    assert_ends(&table, nowhere, &[], 0, "SKIPPED: valgrind");
    for args in [&["--must-compare"][..], &["--write"]] {
        assert_ends(&table, nowhere, args, 1, "valgrind");
    }
}

#[test]
fn foreign_table_is_not_overwritten_in_silence() {
    if !has_valgrind() {
        return;
    }
    let (_folder, table) = table_by("another build by");
    let before = std::fs::read_to_string(&table).expect("it is there");
    for args in [
        &["--write", "--reason", "so it is"][..],
        &["--write", "--anew"],
    ] {
        let (code, said) = counts(&table, None, args);
        assert!(
            code == Some(1) && said.contains("another build by"),
            "{code:?} {said}"
        );
        assert!(said.contains("--anew"), "{said}");
    }
    let after = std::fs::read_to_string(&table).expect("it is there");
    assert_eq!(before, after);
}

#[test]
fn reported_compiler_is_the_build_compiler() {
    if !has_valgrind() {
        return;
    }
    let (folder, table) = table_by("another build by");
    // Another rustc comes first in PATH.
    let other = folder.path().join("rustc");
    std::fs::write(&other, "#!/bin/sh\necho 'rustc 0.1.2 (x)'\n").expect("it is written");
    let mut mode = std::fs::metadata(&other)
        .expect("it is there")
        .permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&other, mode).expect("it is ours");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{path}", folder.path().display());
    let (_, said) = counts(&table, Some(&path), &["--write"]);
    assert!(
        said.contains("by Rust ") && !said.contains("0.1.2"),
        "{said}"
    );
}
