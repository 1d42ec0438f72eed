//! The rule on SECURITY.md: each claim that something holds names a test that exists.

use crate::source::{Tree, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

const PATH: &str = "SECURITY.md";
/// The heading of each threat.
const THREAT: &str = "## Threat: ";
/// The headings below it whose lines are claims.
const HOLDS: &str = "### Holds";
const FAILS: &str = "### Does not hold";

/// Claims without a test, tests that do not exist, and threats that say only one side.
fn claim_without_test(tree: &Tree) -> Vec<(String, Violation)> {
    let Some(document) = tree.file(PATH) else {
        return Vec::new();
    };
    let test = pattern(r"`([\w/.-]+\.rs)::(\w+)`");
    let mut found = Vec::new();
    let mut wrong = |line, what: String| found.push((PATH.to_owned(), violation(line, what)));
    let (mut threat, mut holds, mut fails, mut is_claim) = (0, 0, 0, false);
    let end = [(document.text.lines().count() + 1, "## ")];
    let lines = document.text.lines().enumerate();
    for (line, text) in lines.map(|(i, text)| (i + 1, text)).chain(end) {
        if text.starts_with("## ") {
            if threat > 0 && (holds == 0 || fails == 0) {
                wrong(threat, "the threat has no line for each side".into());
            }
            threat = if text.starts_with(THREAT) { line } else { 0 };
            (holds, fails, is_claim) = (0, 0, false);
        } else if text.starts_with("### ") {
            is_claim = text.starts_with(HOLDS);
            fails += usize::from(text.starts_with(FAILS));
        }
        let is_head = text.starts_with("| claim") || text.starts_with("|--");
        if !is_claim || is_head || !text.starts_with('|') {
            continue;
        }
        holds += 1;
        let mut named = 0;
        for (_, [path, name]) in test.captures_iter(text).map(|it| it.extract()) {
            named += 1;
            let is_test = tree.file(path).is_some_and(|file| {
                let declared = pattern(&format!(r"fn {name}\("));
                declared.is_match(&file.code)
            });
            if !is_test {
                wrong(line, format!("test `{path}::{name}` does not exist"));
            }
        }
        if named == 0 {
            wrong(line, "the claim names no test as `path.rs::name`".into());
        }
    }
    if !document.text.lines().any(|line| line.starts_with(THREAT)) {
        wrong(0, format!("no heading `{THREAT}…`"));
    }
    found
}

#[test]
fn claims_of_security_name_existing_tests() {
    holds_for_all(claim_without_test);
    let text = "# S\n## Threat: a\n### Holds without keys\n| claim | tests |\n|---|---|\n\
                | it is counted | `a/b.rs::it_is_counted` |\n| it is not | by hand |\n\
                | it is gone | `a/b.rs::no_such_test`, `a/c.rs::it_is_counted` |\n\
                ### Does not hold\n- it is read\n## Threat: b\n### Holds with keys\n\
                | it is counted | `a/b.rs::it_is_counted` |\n## Other\n| free | text |\n";
    let test = "fn it_is_counted() {}\n// fn no_such_test()\n";
    let found = places_found(claim_without_test, &[(PATH, text), ("a/b.rs", test)]);
    let lines: Vec<usize> = found.iter().map(|it| it.1).collect();
    assert_eq!(lines, [7, 8, 8, 11]);
    let none = places_found(claim_without_test, &[(PATH, "# S\n")]);
    assert_eq!(none.len(), 1, "the threats are headings");
}
