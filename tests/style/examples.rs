//! Rules on the documentation of the two libraries: each public item has an example, and states its
//! errors.

use std::collections::BTreeSet;

use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

const CRATES: [&str; 2] = ["publisher/src/", "subscriber/src/"];

/// The files of these crates that make up their public pages. A module that is hidden there is for the
/// crate's own binary and tests, and so is one that only the module `internal` re-exports from.
fn product(tree: &Tree) -> Vec<&Source> {
    let hidden = pattern(r"#\[doc\(hidden\)\]\s*pub mod (\w+);");
    let internal = pattern(r"\n {4,}pub use crate::((?:\w+::)*\w+)::(?:\w+|\{[^}]*\});");
    let public = pattern(r"\npub use ((?:\w+::)*\w+)::(?:\w+|\{[^}]*\});");
    let mut public_paths = BTreeSet::new();
    let mut hidden_paths = BTreeSet::new();
    for root in CRATES {
        let library = tree
            .files
            .iter()
            .find(|s| s.path == format!("{root}lib.rs"));
        let text = library.map_or("", |library| &library.text);
        for module in hidden.captures_iter(text) {
            hidden_paths.insert(format!("{root}{}.rs", &module[1]));
            hidden_paths.insert(format!("{root}{}/", &module[1]));
        }
        for module in internal.captures_iter(text) {
            let path = module[1].replace("::", "/");
            hidden_paths.insert(format!("{root}{path}.rs"));
            hidden_paths.insert(format!("{root}{path}/"));
        }
        for module in public.captures_iter(text) {
            public_paths.insert(format!("{root}{}.rs", module[1].replace("::", "/")));
        }
    }
    let is_hidden = |path: &str| {
        let hidden = hidden_paths.iter().any(|hidden| path.starts_with(hidden));
        hidden && !public_paths.contains(path)
    };
    let all = tree.files.iter().filter(|s| s.is_library());
    let all = all.filter(|s| CRATES.iter().any(|root| s.path.starts_with(root)));
    all.filter(|s| !is_hidden(&s.path)).collect()
}

/// The lines of public items (from 1), each with its name and what it is declared as.
fn public_items(source: &Source) -> Vec<(usize, String, String)> {
    let item = pattern(r"^\s*pub (?:(?:const|unsafe|async) )*(?:struct|enum|trait|type|fn) (\w+)");
    let lines: Vec<&str> = source.product.lines().collect();
    let mut items = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = item.captures(line) else {
            continue;
        };
        let before = source.text.lines().take(at).collect::<Vec<_>>();
        if before
            .iter()
            .rev()
            .take(2)
            .any(|l| l.contains("cfg(doctest)"))
        {
            continue;
        }
        let rest = lines[at..].join("\n");
        let end = rest.find(['{', ';']).unwrap_or(rest.len());
        items.push((at + 1, name[1].to_owned(), rest[..end].to_owned()));
    }
    items
}

fn without_example(tree: &Tree) -> Vec<(String, Violation)> {
    let mut found = Vec::new();
    for source in product(tree) {
        for (line, name, _) in public_items(source) {
            if !source.comment_above(line).contains("```") {
                let what = format!("`{name}` is public and has no example");
                found.push((source.path.clone(), violation(line, what)));
            }
        }
    }
    found
}

fn without_failure(tree: &Tree) -> Vec<(String, Violation)> {
    let fails = pattern(r"->\s*(?:io::)?Result\b");
    let mut found = Vec::new();
    for source in product(tree) {
        for (line, name, declared) in public_items(source) {
            let comment = source.comment_above(line);
            let says = ["# Errors", "ow it can fail"]
                .iter()
                .any(|s| comment.contains(s));
            if fails.is_match(&declared) && !says {
                let what = format!("`{name}` does not say how it can fail");
                found.push((source.path.clone(), violation(line, what)));
            }
        }
    }
    found
}

#[test]
fn public_library_items_have_examples() {
    holds_for_all(without_example);
    let items: usize = product(Tree::read())
        .iter()
        .map(|s| public_items(s).len())
        .sum();
    assert!(items > 150, "only {items} were looked at");
    let bad = "/// A.\npub struct A;\n\n/// B.\n///\n/// ```\n/// b();\n/// ```\n#[must_use]\npub const fn b() {}\n\
               pub(crate) fn c() {}\nimpl A {\n    /// D.\n    pub fn d(&self) {}\n}\n\
               #[cfg(test)]\nmod tests {\n    pub fn e() {}\n}\n#[cfg(doctest)]\npub struct F;\n";
    let library = "#[doc(hidden)]\npub mod inner;\npub mod outer;\n";
    let files = [
        ("publisher/src/lib.rs", library),
        ("publisher/src/inner.rs", bad),
        ("publisher/src/inner/more.rs", bad),
        ("publisher/src/outer.rs", bad),
        ("publisher/src/main.rs", bad),
        ("subscriber/src/inner.rs", "pub enum G {}\n"),
        ("feeds/src/outer.rs", bad),
    ];
    let at = |path: &str, line| (path.to_owned(), line);
    let outer = "publisher/src/outer.rs";
    let expected = [
        at(outer, 2),
        at(outer, 14),
        at("subscriber/src/inner.rs", 1),
    ];
    assert_eq!(places_found(without_example, &files), expected);
}

#[test]
fn fallible_items_of_the_libraries_state_their_errors() {
    holds_for_all(without_failure);
    let bad = "/// A.\npub fn a(\n    b: u8,\n) -> Result<(), C> {\n}\n\
               /// D.\n///\n/// # Errors\n/// E.\npub fn d() -> io::Result<()> {}\npub fn f() -> u8 {}\n";
    let files = [("subscriber/src/a.rs", bad)];
    let found = places_found(without_failure, &files);
    assert_eq!(found, [("subscriber/src/a.rs".to_owned(), 2)]);
}
