//! Rules on the documents: their references exist, and required parts are present.

use std::collections::BTreeMap;

use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

/// The path that `link`, written in the file `from`, points to.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The name that a heading has as a link's target.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|l| l.starts_with('#'))
}

fn dead_link(tree: &Tree) -> Vec<(String, Violation)> {
    let links = pattern(r"\]\(([^)\s]+)\)");
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|f| f.path.ends_with(".md")) {
        for (i, line) in file.text.lines().enumerate() {
            for link in links.captures_iter(line).map(|c| c[1].to_owned()) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (path, target) = link.split_once('#').unwrap_or((&link, ""));
                let path = if path.is_empty() {
                    file.path.clone()
                } else {
                    resolve(&file.path, path)
                };
                let text = tree.file(&path).map(|f| f.text.as_str());
                let has_target = target.is_empty()
                    || text.is_some_and(|t| headings(t).any(|h| anchor(h) == target));
                if !tree.has(&path) || !has_target {
                    found.push((
                        file.path.clone(),
                        violation(i + 1, format!("`{link}` is dead")),
                    ));
                }
            }
        }
    }
    found
}

#[test]
fn document_links_all_resolve() {
    holds_for_all(dead_link);
    let text = "[a](B.md) [b](B.md#some-words) [c](https://x.org/y)\n[d](../src)\n\
                [e](C.md)\n[f](B.md#other)\n[g](#a-1)\n# A 1\n";
    let files = [
        ("docs/A.md", text),
        ("docs/B.md", "# Some words\n"),
        ("src/a.rs", ""),
    ];
    let found = places_found(dead_link, &files);
    assert_eq!(found, [("docs/A.md".into(), 3), ("docs/A.md".into(), 4)]);
}

/// Code spans of documents that name a missing file or folder. Decisions may name files of their time.
fn dead_path(tree: &Tree) -> Vec<(String, Violation)> {
    let path = pattern(r"`([a-z]\w*(?:/[\w.-]+)+)`");
    let is_document = |f: &&Source| f.path.ends_with(".md") && !f.path.contains("/decisions/");
    let mut found = Vec::new();
    for file in tree.files.iter().filter(is_document) {
        for (i, line) in file.text.lines().enumerate() {
            for named in path.captures_iter(line).map(|c| c[1].to_owned()) {
                let top = named.split('/').next().unwrap_or_default();
                if tree.has(top) && !tree.has(&named) {
                    let what = format!("`{named}` does not exist");
                    found.push((file.path.clone(), violation(i + 1, what)));
                }
            }
        }
    }
    found
}

#[test]
fn documents_name_files_that_exist() {
    holds_for_all(dead_path);
    let text = "`src/a.rs` `src` `src/b/` `src/c.rs`\n`src/d/e.rs` `usr/lib`\n";
    let files = [
        ("docs/A.md", text),
        ("docs/decisions/0001-a.md", text),
        ("src/a.rs", ""),
    ];
    let found = places_found(dead_path, &files);
    assert_eq!(found, [("docs/A.md".into(), 1), ("docs/A.md".into(), 2)]);
}

fn dead_citation(tree: &Tree) -> Vec<(String, Violation)> {
    let citations = pattern(r"docs/(?:\w+/)?[\w-]+\.md(?:[`)]*,? (§\d[\d.]*(?:, §\d[\d.]*)*))?");
    let number = pattern(r"§(\d+(?:\.\d+)*)");
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|f| f.is_rust()) {
        let lines = file.text.lines().enumerate();
        for (i, line) in lines.filter(|(_, l)| l.trim_start().starts_with("//")) {
            for citation in citations.captures_iter(line) {
                let path = citation[0]
                    .split(".md")
                    .next()
                    .unwrap_or_default()
                    .to_owned()
                    + ".md";
                let mut wrong =
                    |what: String| found.push((file.path.clone(), violation(i + 1, what)));
                let Some(document) = tree.file(&path) else {
                    wrong(format!("cites {path}, which does not exist"));
                    continue;
                };
                let sections = citation.get(1).map_or("", |m| m.as_str());
                for section in number.captures_iter(sections).map(|c| c[1].to_owned()) {
                    let numbered = |h: &str| {
                        let own = h.trim_start_matches('#').trim().split(' ').next();
                        own.map(|own| own.trim_start_matches('§').trim_end_matches('.'))
                            == Some(section.as_str())
                    };
                    if !headings(&document.text).any(numbered) {
                        wrong(format!("cites {path} §{section}, which does not exist"));
                    }
                }
            }
        }
    }
    found
}

#[test]
fn cited_documents_and_sections_exist() {
    holds_for_all(dead_citation);
    let text = "//! (docs/P.md §1, §2.1).\n//! docs/P.md §3\n// `docs/P.md`\n    /// docs/Q.md\n\
                let a = \"docs/R.md\";\n";
    let files = [("a.rs", text), ("docs/P.md", "## 1. One\n### 2.1 Two\n")];
    let found = places_found(dead_citation, &files);
    assert_eq!(found, [("a.rs".into(), 2), ("a.rs".into(), 4)]);
}

fn decisions_out_of_order(tree: &Tree) -> Vec<(String, Violation)> {
    let mut found = Vec::new();
    let mut numbers: BTreeMap<usize, &Source> = BTreeMap::new();
    for file in &tree.files {
        let Some(name) = file.path.strip_prefix("docs/decisions/") else {
            continue;
        };
        let number = name.get(..4).and_then(|n| n.parse().ok());
        let Some(number) = number.filter(|_| name.ends_with(".md") && name[4..].starts_with('-'))
        else {
            found.push((file.path.clone(), violation(0, "not named NNNN-words.md")));
            continue;
        };
        if let Some(other) = numbers.insert(number, file) {
            let what = format!("has the number of {}", other.path);
            found.push((file.path.clone(), violation(0, what)));
        }
        if !file.text.starts_with(&format!("# {number:04}: ")) {
            found.push((
                file.path.clone(),
                violation(1, "its title does not say its number"),
            ));
        }
        for part in ["- Status: ", "## Context", "## Decision", "## Consequences"] {
            if !file.text.lines().any(|l| l.starts_with(part)) {
                found.push((file.path.clone(), violation(0, format!("no `{part}`"))));
            }
        }
    }
    found
}

#[test]
fn decisions_have_a_number_of_their_own_and_say_why() {
    holds_for_all(decisions_out_of_order);
    let body = "- Status: accepted\n## Context\n## Decision\n## Consequences\n";
    let (zero, two) = (format!("# 0000: A\n{body}"), format!("# 0002: B\n{body}"));
    let files = [
        ("docs/decisions/0000-a.md", zero.as_str()),
        ("docs/decisions/0002-b.md", two.as_str()),
        ("docs/decisions/0002-c.md", "# 0003: C\n"),
        ("docs/decisions/notes.txt", ""),
    ];
    let found = places_found(decisions_out_of_order, &files);
    let of = |path: &str| found.iter().filter(|f| f.0.contains(path)).count();
    assert_eq!((of("0000-a"), of("0002-b"), of("notes.txt")), (0, 0, 1));
    // Taken number, wrong title, four parts missing.
    assert_eq!(of("0002-c"), 6);
}

/// The documents whose tables name a test in the last column of each row, and the first row of such a table.
const TESTED: [(&str, &str); 2] = [
    ("docs/FAILURES.md", "| "),
    ("docs/DOCTOR.md", "| id | condition | "),
];

fn row_without_test(tree: &Tree) -> Vec<(String, Violation)> {
    let name = pattern(r"`(?:[\w/.]+::)*(\w+)`");
    let mut found = Vec::new();
    for (path, head) in TESTED {
        let Some(document) = tree.file(path) else {
            continue;
        };
        let lines: Vec<&str> = document.text.lines().collect();
        let mut is_tested = false;
        for (i, line) in lines.iter().enumerate() {
            let is_separator =
                |l: &str| l.starts_with('|') && l.chars().all(|c| "|-: ".contains(c));
            if lines.get(i + 1).is_some_and(|next| is_separator(next)) {
                is_tested = line.starts_with(head);
                continue;
            }
            if !is_tested || !line.starts_with('|') || is_separator(line) {
                continue;
            }
            let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or("");
            let names: Vec<String> = name.captures_iter(last).map(|c| c[1].to_owned()).collect();
            if names.is_empty() {
                let what = "the last column names no `test`";
                found.push((path.into(), violation(i + 1, what)));
            }
            for name in names.iter().filter(|name| !tree.has_function(name)) {
                let what = format!("test `{name}` does not exist");
                found.push((path.into(), violation(i + 1, what)));
            }
        }
    }
    found
}

#[test]
fn table_rows_name_existing_tests() {
    holds_for_all(row_without_test);
    let table = "# F\n| input | behaviour | counter | test |\n|---|---|---|:---|\n\
                 | a | b | `c` | `it_is_counted` |\n| a | b | `it_is_counted` | by hand |\n\
                 | a | b | c | `tests::no_such_test` |\n";
    let others = "| option | does |\n|---|---|\n| a | b |\n| id | condition | test |\n|---|---|---|\n\
                  | `a` | b | `it_is_counted` |\n| `a` | b | none |\n";
    let files = [
        ("docs/FAILURES.md", table),
        ("docs/DOCTOR.md", others),
        ("a.rs", "fn it_is_counted() {}\n// fn no_such_test()\n"),
    ];
    let expected = [
        ("docs/FAILURES.md", 5),
        ("docs/FAILURES.md", 6),
        ("docs/DOCTOR.md", 7),
    ];
    assert_eq!(
        places_found(row_without_test, &files),
        expected.map(|(path, line)| (path.to_owned(), line))
    );
}
