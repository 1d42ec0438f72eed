//! The rule on names of types: no two public types of the product share one, and no two of the programs and
//! libraries that test it.

use std::collections::BTreeMap;

use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds_for_all, places_found, violation};

/// Whether the public types of this file count. In C every name carries a prefix of its own, and a stand-in
/// for a build without a feature has the names of the types that it replaces.
fn counts(source: &Source) -> bool {
    source.is_rust()
        && source.path.contains("/src/")
        && !source.path.starts_with("subscriber/capi/")
        && !source.path.ends_with("/disabled.rs")
}

/// Every name that more than one public type of the product or of its tests has, with the places of all.
fn shared_names(tree: &Tree) -> BTreeMap<(bool, String), Vec<(String, usize)>> {
    let definition = pattern(r"^\s*pub (?:unsafe )?(?:struct|enum|trait|type|union) (\w+)");
    let mut places: BTreeMap<(bool, String), Vec<(String, usize)>> = BTreeMap::new();
    for source in tree.files.iter().filter(|source| counts(source)) {
        for (at, line) in source.product.lines().enumerate() {
            if let Some(found) = definition.captures(line) {
                let place = (source.path.clone(), at + 1);
                let name = (source.path.starts_with("tests/"), found[1].to_owned());
                places.entry(name).or_default().push(place);
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    places
}

fn shared_name(tree: &Tree) -> Vec<(String, Violation)> {
    let shared = shared_names(tree).into_iter();
    let each = shared.flat_map(|((_, name), places)| {
        let what = format!("another public type is called `{name}`, too");
        let found = places.into_iter();
        found.map(move |(path, line)| (path, violation(line, what.clone())))
    });
    each.collect()
}

#[test]
fn public_types_share_no_name() {
    holds_for_all(shared_name);
}

#[test]
fn name_shared_by_public_types_is_detected() {
    let text = "pub struct A;\npub(crate) struct B;\n#[cfg(test)]\nmod tests {\n    pub struct C;\n}\n\
                pub trait D {}\n";
    let files = [
        ("feeds/src/a.rs", text),
        (
            "publisher/src/a.rs",
            "// pub struct A;\npub enum C {}\npub struct B;\n",
        ),
        ("subscriber/capi/src/a.rs", "pub struct A;\n"),
        ("tests/lab/src/a.rs", "pub struct E;\n"),
        ("tests/sim/src/a.rs", "pub struct A;\npub enum E {}\n"),
        (
            "transport/src/a.rs",
            "pub type A = u8;\npub unsafe trait D {}\n",
        ),
        ("transport/src/disabled.rs", "pub struct D;\n"),
    ];
    let expected = [
        ("feeds/src/a.rs", 1),
        ("transport/src/a.rs", 1),
        ("feeds/src/a.rs", 7),
        ("transport/src/a.rs", 2),
        ("tests/lab/src/a.rs", 1),
        ("tests/sim/src/a.rs", 2),
    ];
    assert_eq!(
        places_found(shared_name, &files),
        expected.map(|(path, line)| (path.to_owned(), line))
    );
}
