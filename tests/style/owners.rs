//! The rule on owners: few fields of a struct are written by other files than its own.
//!
//! A file counts if it names the struct. It writes a field by an assignment, by `&mut`, or by a call of a
//! method that takes `&mut self`. Types are unknown here, so fields and methods count by their names.

use std::collections::BTreeSet;

use crate::source::{Source, Tree, item_end, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

/// The most fields of a struct that other files may write.
const WRITTEN_MAX: usize = 12;
/// Methods of the standard library that change their receiver.
const CHANGING: [&str; 14] = [
    "append",
    "clear",
    "drain",
    "entry",
    "extend",
    "get_mut",
    "insert",
    "iter_mut",
    "push",
    "push_back",
    "remove",
    "retain",
    "take",
    "truncate",
];

/// Returns the methods that always take `&mut self` in the product, and some of the standard library.
fn changing_methods(tree: &Tree) -> BTreeSet<&str> {
    let taking = |what: &str| -> BTreeSet<&str> {
        let method = pattern(&format!(r"fn (\w+)(?:<[^(]*>)?\(\s*&(?:'\w+ )?{what}\b"));
        let files = tree.files.iter().filter(|it| it.is_rust());
        let found = files.flat_map(|it| method.captures_iter(&it.product));
        found.map(|it| group(&it)).collect()
    };
    let all = &taking("mut self") - &taking("self");
    all.into_iter().chain(CHANGING).collect()
}

/// Returns the files of the product, each with the names of all fields that it writes.
fn writers(tree: &Tree) -> Vec<(&Source, BTreeSet<&str>)> {
    let field = r"\b\w+\s*\.(\w+)\b\)?(?:\s*\.\w+|\[[^\]]*\])*";
    let assigned = pattern(&format!(r"{field}\s*(?:[-+*/%|&^]|<<|>>)?=[^=>]"));
    let borrowed = pattern(r"&mut \w+\.(\w+)");
    let several = pattern(r"\(([^()]*)\) = ");
    let one = pattern(r"\w+\.(\w+)");
    let called = pattern(&format!(r"{field}\s*\.(\w+)\("));
    let changing = changing_methods(tree);
    let is_product = |it: &&Source| it.is_rust() && !it.path.starts_with("tests/");
    let files = tree.files.iter().filter(is_product).map(|file| {
        let text = &file.product[..];
        let simple = (assigned.captures_iter(text)).chain(borrowed.captures_iter(text));
        let tuples = several.captures_iter(text).map(|it| group(&it));
        let tuples = tuples.flat_map(|it| one.captures_iter(it));
        let calls = called.captures_iter(text);
        let calls = calls.filter(|it| changing.contains(&it[2]));
        let all = simple.chain(tuples).chain(calls);
        (file, all.map(|it| group(&it)).collect())
    });
    files.collect()
}

/// Returns the first group of a match.
fn group<'a>(found: &regex::Captures<'a>) -> &'a str {
    found.get(1).expect("a group").as_str()
}

/// Returns the structs of a file that have more fields than may be written, with line and fields.
fn large_structs(file: &Source) -> Vec<(usize, &str, Vec<&str>)> {
    let head = pattern(r"(?m)^(?:pub(?:\([a-z ]+\))? )?struct (\w+)[^;({]*\{");
    let field = pattern(r"(?m)^    (?:pub(?:\([a-z ]+\))? )?(\w+): ");
    let structs = head.captures_iter(&file.product).map(|it| {
        let start = it.get(0).expect("a match").start();
        let line = file.product[..start].matches('\n').count() + 1;
        let body = &file.product[start..item_end(&file.product, start)];
        let fields = field.captures_iter(body).map(|it| group(&it));
        (line, group(&it), fields.collect::<Vec<_>>())
    });
    let structs = structs.filter(|(.., fields)| fields.len() > WRITTEN_MAX);
    structs.collect()
}

fn ownerless(tree: &Tree) -> Vec<(String, Violation)> {
    let src = |path: &str| path.split_once("/src/").map(|(src, _)| src.to_owned());
    let files = writers(tree);
    let mut found = Vec::new();
    for (file, _) in &files {
        for (line, name, fields) in large_structs(file) {
            let named = pattern(&format!(r"\b{name}\b"));
            let others = files.iter().filter(|(it, _)| {
                let is_near = it.path != file.path && src(&it.path) == src(&file.path);
                is_near && named.is_match(&it.product)
            });
            let written: BTreeSet<&str> = others.flat_map(|(_, it)| it).copied().collect();
            let fields: Vec<&str> = fields
                .into_iter()
                .filter(|it| written.contains(it))
                .collect();
            if fields.len() > WRITTEN_MAX {
                let (count, fields) = (fields.len(), fields.join(", "));
                let what = format!("other files write {count} fields of `{name}`: {fields}");
                found.push((file.path.clone(), violation(line, what)));
            }
        }
    }
    found
}

#[test]
fn fields_of_a_struct_have_one_owner() {
    holds_for_all(ownerless);
}

#[test]
fn struct_that_other_files_write_is_detected() {
    let all = "abcdefghijklmn".chars();
    let fields: String = all
        .map(|name| format!("    pub(crate) {name}: u8,\n"))
        .collect();
    let text = format!("pub(crate) struct S<T> {{\n{fields}}}\n");
    let twelve = "impl S {\n    fn write(&mut self) {\n        self.a = 1;\n        self.b[0].x += 1;\n\
                  \x20       (self.c, self.d) = (1, 2);\n        (self.e).push(1);\n\
                  \x20       f(&mut self.f);\n        self.g\n            .turn();\n        s.h >>= 1;\n\
                  \x20       self.i.clear();\n        self.j = 1;\n        self.k = 1;\n        self.l = 1;\n";
    let turn = "trait T {\n    fn turn(&mut self);\n}\n";
    let read = "self.m.len();\n f(&self.m);\n let x = self.m == 1;\n// self.m = 1;\n";
    let breach = |more: &str, path| {
        let other = format!("{twelve}{read}{more}\n    }}\n}}\n{turn}");
        let files = [("a/src/s.rs", &text[..]), (path, &other)];
        !places_found(ownerless, &files).is_empty()
    };
    assert!(!breach("", "a/src/b.rs"));
    for more in [
        "self.m = 1;",
        "f(&mut s.m)",
        "self.m.turn();",
        "(x, self.m) = y;",
    ] {
        assert!(breach(more, "a/src/b.rs"), "{more}");
        assert!(!breach(more, "b/src/b.rs"), "{more}: of another crate");
        assert!(!breach(&more.replace('m', "z"), "a/src/b.rs"), "{more}");
    }
}
