//! Rules on the inside of a crate: its `lib.rs` lists the folders from top to bottom, and a folder imports
//! only folders below it.
//!
//! The list is a numbered one in the documentation of `lib.rs`, a module a line: ``//! 1. `name`: text``.
//! A crate without a list is skipped, and printed.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{imports, module_of};
use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

/// Direct entries of a `src` folder.
const ENTRIES_MAX: usize = 15;

/// The modules that a `lib.rs` lists, top first, each with its line.
fn listed(lib: &Source) -> Vec<(usize, String)> {
    let item = pattern(r"^//! \d+\. \[?`(\w+)`\]?:");
    let lines = lib.text.lines().enumerate();
    let items = lines.filter_map(|(at, line)| Some((at + 1, item.captures(line)?[1].to_owned())));
    items.collect()
}

/// Which module, or other crate, each name comes from that `lib.rs` re-exports at the root of its crate.
fn facade(lib: &Source) -> BTreeMap<String, String> {
    let uses = pattern(r"(?m)^pub(?:\([a-z]+\))? use (?:self::|crate::)?(\w+)(?:::| as )([^;]+);");
    let name = pattern(r"\w+");
    let mut found = BTreeMap::new();
    for reexport in uses.captures_iter(&lib.code) {
        for it in name.find_iter(&reexport[2]) {
            found.insert(it.as_str().to_owned(), reexport[1].to_owned());
        }
    }
    found
}

/// Breaches within the crate whose `lib.rs` this is.
fn breaches(tree: &Tree, lib: &Source) -> Vec<(String, Violation)> {
    let order = listed(lib);
    let rank: BTreeMap<&str, usize> = order
        .iter()
        .enumerate()
        .map(|(rank, (_, name))| (name.as_str(), rank))
        .collect();
    let facade = facade(lib);
    let src = lib.path.trim_end_matches("lib.rs");
    let mut found = Vec::new();
    let mut entries = BTreeSet::new();
    for file in tree.files.iter().filter(|f| f.path.starts_with(src)) {
        let inside = &file.path[src.len()..];
        let parts: Vec<&str> = inside.split('/').collect();
        entries.insert(parts[0]);
        if !file.is_rust() || matches!(parts[0], "lib.rs" | "main.rs" | "bin") {
            continue;
        }
        let module = parts[0].trim_end_matches(".rs");
        let Some(own) = rank.get(module) else {
            let what = format!("`{module}` is not in the list of folders of {}", lib.path);
            found.push((file.path.clone(), violation(0, what)));
            continue;
        };
        let paths = imports(&file.product, &module_of(inside)).into_iter();
        let names: BTreeSet<(usize, String)> = paths
            .filter_map(|(line, path)| Some((line, path.into_iter().next()?)))
            .collect();
        for (line, name) in names {
            let target = facade.get(&name).unwrap_or(&name);
            let is_above = match rank.get(target.as_str()) {
                Some(rank) => rank < own,
                // Another crate stands below.
                None if target != &name => false,
                // The root itself is above all; but a `super` of a module in a file does not lead there.
                None => file.product.contains(&format!("crate::{name}")) && !is_macro(file, &name),
            };
            if is_above {
                let what = format!("`{module}` imports `{name}`, which stands above it");
                found.push((file.path.clone(), violation(line, what)));
            }
        }
    }
    for (line, name) in &order {
        let file = format!("{name}.rs");
        if !entries.contains(name.as_str()) && !entries.contains(file.as_str()) {
            let what = format!("lists `{name}`, which does not exist");
            found.push((lib.path.clone(), violation(*line, what)));
        }
    }
    if entries.len() > ENTRIES_MAX {
        let what = format!("{src} has {} entries, at most {ENTRIES_MAX}", entries.len());
        found.push((lib.path.clone(), violation(0, what)));
    }
    found
}

/// Whether `name` is only called as a macro, which has its place at the root wherever it is defined.
fn is_macro(file: &Source, name: &str) -> bool {
    file.product.contains(&format!("crate::{name}!"))
}

/// Every `lib.rs` of the product, and that of the simulation.
fn libs(tree: &Tree) -> impl Iterator<Item = &Source> {
    let is_one = |f: &&Source| {
        let is_product = f.path.ends_with("src/lib.rs") && !f.path.starts_with("tests/");
        is_product || f.path == "tests/sim/src/lib.rs"
    };
    tree.files.iter().filter(is_one)
}

fn upward_import(tree: &Tree) -> Vec<(String, Violation)> {
    let with_list = libs(tree).filter(|lib| !listed(lib).is_empty());
    with_list.flat_map(|lib| breaches(tree, lib)).collect()
}

#[test]
fn folders_import_downwards_only() {
    for lib in libs(Tree::read()).filter(|lib| listed(lib).is_empty()) {
        println!("SKIPPED: {} has no list of its folders", lib.path);
    }
    assert!(libs(Tree::read()).any(|lib| !listed(lib).is_empty()));
    holds_for_all(upward_import);
}

#[test]
fn upward_import_is_detected_in_all_forms() {
    let lib = "//! 1. [`top`]: x\n//! 2. `mid`: x\n//! 3. `low`: x\n//! 4. `gone`: x\n\
               pub use self::top::{A, B};\npub use tickcast_x::L;\npub use tickcast_y as y;\n";
    let mid = "use crate::low::C;\nuse crate::top::D;\nuse crate::{low::E, top::{F, G}};\n\
               use crate::A;\nuse super::super::top::H;\nuse super::own::I;\n// crate::top::J\n\
               #[cfg(test)]\nmod tests {\n    use crate::top::K;\n}\nuse crate::Root;\nuse crate::{L, y::M};\n";
    let files = [
        ("a/src/lib.rs", lib),
        ("a/src/low.rs", "use super::mid::C;\n"),
        ("a/src/mid/file.rs", mid),
        (
            "a/src/mid/mod.rs",
            "use super::top::D;\nuse super::low::E;\n",
        ),
        ("a/src/other.rs", ""),
        (
            "a/src/top/mod.rs",
            "use crate::mid::C;\nuse crate::low::D;\n",
        ),
        // Without a list nothing is held against it.
        ("b/src/lib.rs", ""),
        ("b/src/low.rs", "use super::mid::C;\n"),
    ];
    let found = places_found(upward_import, &files);
    let expected = [
        ("a/src/low.rs", 1),
        ("a/src/mid/file.rs", 2),
        ("a/src/mid/file.rs", 3),
        ("a/src/mid/file.rs", 4),
        ("a/src/mid/file.rs", 5),
        ("a/src/mid/file.rs", 12),
        ("a/src/mid/mod.rs", 1),
        ("a/src/other.rs", 0),
        ("a/src/lib.rs", 4),
    ];
    assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
}

#[test]
fn source_folder_of_sixteen_entries_is_detected() {
    let names: Vec<String> = (0..ENTRIES_MAX).map(|n| format!("a/src/m{n}.rs")).collect();
    let list: String = (0..ENTRIES_MAX)
        .map(|n| format!("//! {n}. `m{n}`: x\n"))
        .collect();
    let mut files: Vec<(&str, &str)> = names.iter().map(|path| (path.as_str(), "")).collect();
    files.push(("a/src/lib.rs", &list));
    assert_eq!(
        places_found(upward_import, &files),
        [("a/src/lib.rs".into(), 0)]
    );
    files.remove(0);
    let shorter = list.replacen("//! 0. `m0`: x\n", "", 1);
    files.last_mut().expect("lib.rs").1 = &shorter;
    assert_eq!(places_found(upward_import, &files), []);
}
