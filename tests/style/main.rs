//! The rules of CONTRIBUTING.md as tests: each prints file and line of every violation.
//!
//! A rule is a function from text to [`Violation`]s, so each is also tested on a bad snippet: a rule
//! that cannot fail proves nothing. [`source`] reads the tree, [`code`] holds the
//! rules on Rust, [`layout`] those on crates and files, [`layers`] those on the folders of a crate,
//! [`siblings`] the one on the modules of a folder, both by the paths of [`imports`],
//! [`names`] the one on names of types, [`owners`] the one on the fields of structs, [`words`] those on
//! wording and bytes, [`prose`] those on sentences, [`docs`] those on the documents, [`threats`] the one
//! on SECURITY.md, [`metrics`] the one that generates docs/METRICS.md, [`examples`] those on the
//! libraries' examples, [`packages`] those on the service's unit.

mod alerts;
mod code;
mod docs;
mod examples;
mod imports;
mod layers;
mod layout;
mod metrics;
mod names;
mod owners;
mod packages;
mod prose;
mod siblings;
mod source;
mod threats;
mod words;

use source::{Source, Tree};

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// From 1; 0 where the whole file is meant.
    pub(crate) line: usize,
    /// The breach, in words.
    pub(crate) what: String,
}

/// A rule on one file.
type Rule = fn(&Source) -> Vec<Violation>;

/// A rule on the tree: each violation with the path of its file.
type TreeRule = fn(&Tree) -> Vec<(String, Violation)>;

/// A violation in `line`.
pub(crate) fn violation(line: usize, what: impl Into<String>) -> Violation {
    Violation {
        line,
        what: what.into(),
    }
}

/// Applies a rule to every file of the repository.
#[track_caller]
fn holds(rule: Rule) {
    let tree = Tree::read();
    let found = tree.files.iter().flat_map(|file| {
        let path = file.path.clone();
        rule(file).into_iter().map(move |v| (path.clone(), v))
    });
    none(found.collect());
}

/// Applies a rule to the repository as a whole.
#[track_caller]
fn holds_for_all(rule: TreeRule) {
    none(rule(Tree::read()));
}

#[track_caller]
fn none(found: Vec<(String, Violation)>) {
    for (path, Violation { line, what }) in &found {
        println!("{path}:{line}: {what}");
    }
    assert!(found.is_empty(), "{} violations, see above", found.len());
}

/// The lines in which a rule finds something wrong in `text`, as if it stood under `path`.
fn lines_found(rule: Rule, path: &str, text: &str) -> Vec<usize> {
    let found = rule(&Source::new(path, text));
    found.iter().map(|v| v.line).collect()
}

/// Where a rule on the tree finds something wrong in a tree of these files.
fn places_found(rule: TreeRule, files: &[(&str, &str)]) -> Vec<(String, usize)> {
    let tree = Tree::of(files);
    let found = rule(&tree).into_iter();
    found.map(|(path, v)| (path, v.line)).collect()
}
