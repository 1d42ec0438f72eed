//! The rule on modules of one folder: they import one another without circles.
//!
//! An import of a name that the folder's `mod.rs` re-exports counts as an import of the module that
//! defines it.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Path, absolute, expanded, imports, module_of};
use crate::source::{Source, Tree, is_test_path, pattern, without_tests};
use crate::{Violation, holds_for_all, places_found, violation};

/// The imports between the modules of a folder: from and to, with the file and line of one import.
type Imports = BTreeMap<(String, String), (String, usize)>;

/// The modules of one crate, each with its file and its code without unit tests.
struct Modules<'a> {
    files: BTreeMap<Path, (&'a Source, String)>,
    /// Every module, and the names of other modules that it re-exports.
    reexports: BTreeMap<Path, BTreeMap<String, Path>>,
}

impl<'a> Modules<'a> {
    /// Finds the modules below `src`, which ends with a slash. In a folder of the product, files of tests do
    /// not count.
    fn of(tree: &'a Tree, src: &str) -> Self {
        let mut files = BTreeMap::new();
        for file in tree.files.iter().filter(|it| it.is_rust()) {
            let Some(inside) = file.path.strip_prefix(src) else {
                continue;
            };
            if inside.starts_with("bin/") || is_test_path(&file.path) && !is_test_path(src) {
                continue;
            }
            files.insert(module_of(inside), (file, without_tests(&file.code)));
        }
        let mut modules = Self {
            files,
            reexports: BTreeMap::new(),
        };
        let reexport = pattern(r"(?m)^pub(?:\([a-z ]+\))? use ([^;]+);");
        for (path, (_, code)) in &modules.files {
            let mut names = BTreeMap::new();
            for found in reexport.captures_iter(code) {
                for whole in expanded(&found[1]) {
                    let whole = absolute(path, &whole);
                    let (name, module) = whole.split_last().expect("a path has a part");
                    names.insert(name.clone(), module.to_vec());
                }
            }
            modules.reexports.insert(path.clone(), names);
        }
        modules
    }

    /// Returns the module that holds the item at this path from the root.
    fn holder(&self, item: &[String]) -> Path {
        let (mut module, mut rest) = (Path::new(), item);
        while let [name, behind @ ..] = rest {
            let mut inner = module.clone();
            inner.push(name.clone());
            let is_module = self.files.keys().any(|it| it.starts_with(&inner));
            match self.reexports.get(&module).and_then(|it| it.get(name)) {
                _ if is_module => module = inner,
                Some(other) if self.files.contains_key(other) => return other.clone(),
                _ => break,
            }
            rest = behind;
        }
        module
    }

    /// Returns the imports between the modules of each folder.
    fn imports(&self) -> BTreeMap<Path, Imports> {
        let mut found: BTreeMap<Path, Imports> = BTreeMap::new();
        for (own, (file, code)) in &self.files {
            for (line, item) in imports(code, own) {
                let other = self.holder(&item);
                let common = own.iter().zip(&other).take_while(|(a, b)| a == b).count();
                if let (Some(from), Some(to)) = (own.get(common), other.get(common)) {
                    let pairs = found.entry(own[..common].to_vec()).or_default();
                    let place = (file.path.clone(), line);
                    pairs.entry((from.clone(), to.clone())).or_insert(place);
                }
            }
        }
        found
    }
}

/// Returns whether imports lead from one module to another.
fn leads(pairs: &Imports, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            open.extend(pairs.keys().filter(|(a, _)| a == at).map(|(_, b)| &b[..]));
        }
    }
    false
}

fn circle(tree: &Tree) -> Vec<(String, Violation)> {
    let is_root = |it: &&Source| it.path.ends_with("/lib.rs") || it.path.ends_with("/main.rs");
    let roots = tree.files.iter().filter(is_root);
    let sources = roots.map(|it| it.path.rsplit_once('/').map_or("", |(folder, _)| folder));
    let sources: BTreeSet<&str> = sources.collect();
    let mut found = Vec::new();
    for src in sources {
        for pairs in Modules::of(tree, &format!("{src}/")).imports().values() {
            for ((from, to), (path, line)) in pairs {
                if leads(pairs, to, from) {
                    let what = format!("`{from}` imports `{to}`, which imports `{from}`");
                    found.push((path.clone(), violation(*line, what)));
                }
            }
        }
    }
    found
}

#[test]
fn modules_of_a_folder_import_without_circles() {
    holds_for_all(circle);
}

#[test]
fn circle_is_detected_in_all_forms() {
    let files = [
        (
            "a/src/lib.rs",
            "mod x;\nmod y;\nmod z;\npub use y::{Y, deep::{D}};\n",
        ),
        ("a/src/x.rs", "use crate::y::Y;\n"),
        (
            "a/src/y/mod.rs",
            "mod deep;\nmod flat;\npub use flat::F;\nuse crate::z::Z;\n",
        ),
        (
            "a/src/y/deep.rs",
            "use super::{\n    F,\n    flat::G,\n};\n",
        ),
        ("a/src/y/flat.rs", "fn f() -> super::deep::D {}\n"),
        (
            "a/src/z.rs",
            "use super::{x::X};\n#[cfg(test)]\nmod tests {\n    use crate::y::Y;\n}\n",
        ),
        // No circle: one direction only, and tests do not count.
        ("b/src/lib.rs", "mod x;\nmod y;\n"),
        ("b/src/x.rs", "use crate::y::Y;\n"),
        (
            "b/src/y.rs",
            "// use crate::x::X;\n#[cfg(test)]\nmod tests {\n    use crate::x::X;\n}\n",
        ),
    ];
    let mut found = places_found(circle, &files);
    found.sort();
    let in_tests = files.map(|(path, text)| (path.replacen("/src/", "/tests/all/", 1), text));
    let in_tests = in_tests.each_ref().map(|(path, text)| (&path[..], *text));
    let mut found_in_tests = places_found(circle, &in_tests);
    found_in_tests
        .iter_mut()
        .for_each(|(path, _)| *path = path.replacen("/tests/all/", "/src/", 1));
    found_in_tests.sort();
    assert_eq!(found, found_in_tests);
    let expected = [
        ("a/src/x.rs", 1),
        ("a/src/y/deep.rs", 1),
        ("a/src/y/flat.rs", 1),
        ("a/src/y/mod.rs", 4),
        ("a/src/z.rs", 1),
    ];
    assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
}
