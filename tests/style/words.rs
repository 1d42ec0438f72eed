//! Rules on wording and bytes in every text file: forbidden words and forbidden bytes.

use crate::source::{Source, pattern};
use crate::{Violation, holds, lines_found, violation};

/// Whether others determine the text of this file.
fn is_given(path: &str) -> bool {
    let name = path.rsplit('/').next();
    let bytes = path.starts_with("tests/fuzz/corpus/");
    bytes || path.starts_with("LICENSE-") || name == Some("Cargo.lock")
}

/// One violation for each line that `text` matches.
fn said(source: &Source, text: &str, why: &str) -> Vec<Violation> {
    if is_given(&source.path) {
        return Vec::new();
    }
    let pattern = pattern(text);
    let mut found = Vec::new();
    for (i, line) in source.text.lines().enumerate() {
        if let Some(word) = pattern.find(line) {
            found.push(violation(
                i + 1,
                format!("`{}`: {why}", word.as_str().trim()),
            ));
        }
    }
    found
}

fn unfinished(source: &Source) -> Vec<Violation> {
    // Put together from parts, so that this file does not say them itself.
    const WORDS: &str = concat!(
        r"\b(?:TO",
        r"DO|FIX",
        r"ME|XX",
        r"X|(?i:for no",
        r"w|stu",
        r"b(?:s|bed)?|place",
        r"holders?))\b"
    );
    said(source, WORDS, "nothing unfinished is committed")
}

#[test]
fn files_contain_no_unfinished_markers() {
    holds(unfinished);
    let bad = concat!(
        "a // TO",
        "DO b\nStu",
        "b.\nstubborn for nowhere\nFor no",
        "w: c\n"
    );
    assert_eq!(lines_found(unfinished, "a.rs", bad), [1, 2, 4]);
    assert_eq!(lines_found(unfinished, "docs/A.md", bad), [1, 2, 4]);
    assert_eq!(lines_found(unfinished, "LICENSE-MIT", bad), []);
}

fn machine_path(source: &Source) -> Vec<Violation> {
    const ANYWHERE: &str = r"(?:^|[^\w./-])/(?:work|home|root)/\w+";
    const IN_DOCS: &str = r"(?:^|[^\w./-])/(?:work|home|root|tmp)/\w+";
    let is_doc = source.path.ends_with(".md");
    let words = if is_doc { IN_DOCS } else { ANYWHERE };
    said(source, words, "a path of one machine")
}

#[test]
fn files_contain_no_machine_specific_paths() {
    holds(machine_path);
    let bad = concat!(
        "`/hom",
        "e/me/a`\nhttps://a.org/home/b\n/tm",
        "p/c\nsrc/root/d\n"
    );
    assert_eq!(lines_found(machine_path, "docs/A.md", bad), [1, 3]);
    assert_eq!(lines_found(machine_path, "a.rs", bad), [1]);
}

fn registry_host(source: &Source) -> Vec<Violation> {
    const HOSTS: &str = concat!(
        r"(?i)\b(?:[\w-]+\.)*crates\.io\b|\bpypi\.org|\bpythonhosted\.org|\bdeb\.debian\.org",
        r"|\bproxy\.golang\.org|\bnpmjs\.(?:org|com)"
    );
    said(
        source,
        HOSTS,
        "where packages come from is the user's to configure",
    )
}

#[test]
fn files_name_no_package_registry() {
    holds(registry_host);
    let bad = concat!(
        "index.crates",
        ".io\nthe crates. Io\nhttps://py",
        "pi.org/simple\n"
    );
    assert_eq!(lines_found(registry_host, "a.toml", bad), [1, 3]);
    assert_eq!(lines_found(registry_host, "Cargo.lock", bad), []);
}

fn second_word_for_one_thing(source: &Source) -> Vec<Violation> {
    // The glossary is where the other word is named, and peers have names of their own.
    if source.path == "docs/GLOSSARY.md" || source.path.starts_with("tests/lab/peers/src/") {
        return Vec::new();
    }
    const WORDS: &str = concat!(r"(?i)(?:\b|_)na", r"ks?(?:\b|_)");
    said(source, WORDS, "the word is NACK")
}

#[test]
fn nack_is_spelled_the_same_everywhere() {
    holds(second_word_for_one_thing);
    let bad = concat!("a NA", "K\nna", "k_timer\na NACK\nsnake snak\n");
    assert_eq!(lines_found(second_word_for_one_thing, "a.rs", bad), [1, 2]);
    let peer = lines_found(second_word_for_one_thing, "tests/lab/peers/src/a.rs", bad);
    assert_eq!(peer, []);
}

fn stray_bytes(source: &Source) -> Vec<Violation> {
    if is_given(&source.path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (i, line) in source.text.split('\n').enumerate() {
        if line.ends_with([' ', '\t']) {
            found.push(violation(i + 1, "whitespace at the end of the line"));
        }
        let stray = |c: &char| {
            let control = c.is_control() && *c != '\t';
            control || matches!(*c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{feff}')
        };
        if let Some(c) = line.chars().find(stray) {
            found.push(violation(
                i + 1,
                format!("control character U+{:04X}", u32::from(c)),
            ));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        found.push(violation(
            source.text.lines().count(),
            "no line end at the end",
        ));
    }
    found
}

#[test]
fn files_contain_no_stray_bytes() {
    holds(stray_bytes);
    let bad = "a \nb\tc\nd\r\ne\u{200b}\n\u{1}f";
    assert_eq!(lines_found(stray_bytes, "a.md", bad), [1, 3, 4, 5, 5]);
    assert_eq!(lines_found(stray_bytes, "a.md", "a\n\nb\n"), []);
}
