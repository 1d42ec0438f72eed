//! Rules on files and crates: length, lints, imports.

use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds, holds_for_all, lines_found, places_found, violation};

/// The longest product code of one file, in lines.
const LINES_MAX: usize = 800;
/// Beyond this a file is listed: its type may own too much.
const LINES_LISTED: usize = 350;

/// Lines before the tests at the end of a file; 0 for a file without product code.
fn product_lines(source: &Source) -> usize {
    if !source.is_rust() || source.product.trim().is_empty() {
        return 0;
    }
    let end = source.product.trim_end().lines().count();
    let tests =
        pattern(r"(?m)^#\[cfg\([^\]]*\btest\b[^\]]*\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+tests\b");
    let before = tests.find(&source.code).map(|m| &source.code[..m.start()]);
    before.map_or(end, |text| text.lines().count()).min(end)
}

fn too_long(source: &Source) -> Vec<Violation> {
    let lines = product_lines(source);
    if lines <= LINES_MAX {
        return Vec::new();
    }
    let what = format!("{lines} lines before its tests, at most {LINES_MAX}; split its type");
    vec![violation(0, what)]
}

#[test]
fn source_file_length_is_limited() {
    for source in &Tree::read().files {
        let lines = product_lines(source);
        if lines > LINES_LISTED {
            println!("{}: {lines} lines (allowed, but look at it)", source.path);
        }
    }
    holds(too_long);
    let body = "fn f() {}\n".repeat(LINES_MAX);
    let tests = format!("{body}#[cfg(test)]\nmod tests {{\n{body}}}\n");
    assert_eq!(lines_found(too_long, "feeds/src/a.rs", &tests), []);
    assert_eq!(
        lines_found(too_long, "feeds/tests/a.rs", &body.repeat(2)),
        []
    );
    let long = format!("fn g() {{}}\n{tests}");
    assert_eq!(lines_found(too_long, "feeds/src/a.rs", &long), [0]);
}

/// The lines of a section of a manifest, with their numbers.
fn section<'a>(text: &'a str, name: &str) -> Vec<(usize, &'a str)> {
    let head = format!("[{name}]");
    let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    let after = lines.skip_while(|(_, l)| *l != head).skip(1);
    after.take_while(|(_, l)| !l.starts_with('[')).collect()
}

fn has_line(text: &str, in_section: &str, line: &str) -> bool {
    let lines = section(text, in_section);
    lines.iter().any(|(_, l)| *l == line)
}

fn lints_missing(tree: &Tree) -> Vec<(String, Violation)> {
    let manifests = tree.files.iter().filter(|f| f.path.ends_with("Cargo.toml"));
    let mut found = Vec::new();
    for manifest in manifests {
        let mut wrong = |what: &str| found.push((manifest.path.clone(), violation(0, what)));
        let text = &manifest.text;
        if text.contains("[workspace.package]")
            && !has_line(text, "workspace.lints.rust", "missing_docs = \"deny\"")
        {
            wrong("the workspace does not deny missing_docs");
        }
        // A crate with a workspace of its own (a fuzzer's) can't inherit.
        let alone = text.lines().any(|l| l == "[workspace]");
        if text.contains("[package]") && !alone && !has_line(text, "lints", "workspace = true") {
            wrong("no `[lints] workspace = true`");
        }
    }
    found
}

#[test]
fn crates_inherit_workspace_lints() {
    holds_for_all(lints_missing);
    let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
    let root = "[workspace.package]\n[workspace.lints.rust]\nmissing_docs = \"warn\"\n";
    let files = [
        ("a/Cargo.toml", good),
        (
            "b/Cargo.toml",
            "[package]\n[lints]\n[features]\nworkspace = true\n",
        ),
        ("Cargo.toml", root),
    ];
    let found = places_found(lints_missing, &files);
    assert_eq!(
        found,
        [("b/Cargo.toml".into(), 0), ("Cargo.toml".into(), 0)]
    );
}

/// Lines of manifests that could bring deliberate bugs into a build for use: a default feature, a
/// dependency, or a feature of another name.
fn bugs_enabled(tree: &Tree) -> Vec<(String, Violation)> {
    let manifests = tree.files.iter().filter(|f| f.path.ends_with("Cargo.toml"));
    let mut found = Vec::new();
    for manifest in manifests {
        let own = [
            "feeds/Cargo.toml",
            "reliability/Cargo.toml",
            "tests/sim/Cargo.toml",
        ];
        let may = own.contains(&manifest.path.as_str());
        for (at, line) in manifest.text.lines().enumerate() {
            let named = line.contains("planted-bugs") && !line.trim_start().starts_with('#');
            if named && !(may && line.starts_with("planted-bugs = ")) {
                let what = "only the simulation's own feature may enable deliberate bugs";
                found.push((manifest.path.clone(), violation(at + 1, what)));
            }
        }
    }
    found
}

#[test]
fn product_builds_enable_no_planted_bugs() {
    holds_for_all(bugs_enabled);
    let own = "[features]\n# planted-bugs: none\nplanted-bugs = []\n";
    let default = "[features]\ndefault = [\"planted-bugs\"]\nplanted-bugs = []\n";
    let files = [
        ("reliability/Cargo.toml", own),
        ("tests/sim/Cargo.toml", default),
        ("subscriber/Cargo.toml", own),
    ];
    let mut found = places_found(bugs_enabled, &files);
    found.sort();
    assert_eq!(
        found,
        [
            ("subscriber/Cargo.toml".into(), 3),
            ("tests/sim/Cargo.toml".into(), 2)
        ]
    );
}

/// Lines of manifests that would bring hooks for tests into a library for use. The command line injects
/// faults on request.
fn hooks_enabled(tree: &Tree) -> Vec<(String, Violation)> {
    let manifests = tree.files.iter().filter(|f| f.path.ends_with("Cargo.toml"));
    let is_library = |f: &&Source| !f.path.starts_with("tests/") && f.path != "tools/Cargo.toml";
    let lines = manifests.filter(is_library).flat_map(|file| {
        let dependencies = section(&file.text, "dependencies").into_iter();
        let features = section(&file.text, "features").into_iter();
        let default = features.filter(|(_, text)| text.starts_with("default"));
        let all = dependencies.chain(default);
        let hooks = all.filter(|(_, text)| text.contains("testing\""));
        hooks.map(|(line, _)| (file.path.clone(), line))
    });
    let what = "only tests may enable the feature `testing`";
    let found = lines.map(|(path, line)| (path, violation(line, what)));
    found.collect()
}

#[test]
fn libraries_enable_no_hooks_for_tests() {
    holds_for_all(hooks_enabled);
    let text =
        "[features]\ntesting = [\"b/testing\"]\n[dependencies]\nb = { features = [\"testing\"] }\n";
    let dev = "[features]\ndefault = [\"testing\"]\n[dev-dependencies]\nb = { features = [\"testing\"] }\n";
    let files = [
        ("a/Cargo.toml", text),
        ("b/Cargo.toml", dev),
        ("tests/a/Cargo.toml", text),
    ];
    let found = places_found(hooks_enabled, &files);
    assert_eq!(
        found,
        [("a/Cargo.toml".into(), 4), ("b/Cargo.toml".into(), 2)]
    );
}

/// The crates that each crate may import; `tools` and `tests` may import everything.
const IMPORTS: [(&str, &[&str]); 13] = [
    ("reliability", &[]),
    ("reliability/journal", &["reliability"]),
    ("transport/base", &["reliability"]),
    ("transport/log", &["reliability"]),
    ("transport/metrics", &["log"]),
    ("transport/hlog", &["reliability", "transport-base", "log"]),
    (
        "transport/http",
        &["reliability", "transport-base", "log", "metrics"],
    ),
    ("transport/verbs", &["reliability", "transport-base"]),
    ("transport/xdp", &["reliability", "transport-base"]),
    (
        "transport",
        &["reliability", "journal", "transport-base", "verbs", "xdp"],
    ),
    ("feeds", &["reliability"]),
    (
        "publisher",
        &[
            "feeds",
            "subscriber",
            "transport",
            "log",
            "metrics",
            "hlog",
            "http",
            "reliability",
            "journal",
        ],
    ),
    (
        "subscriber",
        &[
            "transport",
            "hlog",
            "http",
            "metrics",
            "reliability",
            "journal",
        ],
    ),
];

/// Crates that the core must not depend on.
const NOT_FOR_THE_CORE: [&str; 6] = [
    "mio",
    "socket2",
    "libc",
    "memmap2",
    "core_affinity",
    "tracing",
];

fn upward_import(tree: &Tree) -> Vec<(String, Violation)> {
    let mut found = Vec::new();
    for (name, allowed) in IMPORTS {
        let path = format!("{name}/Cargo.toml");
        let Some(manifest) = tree.file(&path) else {
            continue;
        };
        for (line, text) in section(&manifest.text, "dependencies") {
            let crate_name = text.split(['.', ' ', '=']).next().unwrap_or_default();
            let ours = crate_name.strip_prefix("tickcast-");
            let upward = ours.is_some_and(|ours| !allowed.contains(&ours));
            let is_core = name.starts_with("reliability");
            let not_for_the_core = is_core && NOT_FOR_THE_CORE.contains(&crate_name);
            if upward || not_for_the_core {
                let what = format!("`{name}` may not depend on `{crate_name}`");
                found.push((path.clone(), violation(line, what)));
            }
        }
    }
    found
}

#[test]
fn crates_have_no_upward_dependencies() {
    holds_for_all(upward_import);
    let files = [
        (
            "feeds/Cargo.toml",
            "[dependencies]\ntickcast-reliability.workspace = true\ntickcast-transport.workspace = true\n",
        ),
        (
            "reliability/Cargo.toml",
            "[dependencies]\nlibc.workspace = true\n[dev-dependencies]\nmio = \"1\"\n",
        ),
    ];
    let found = places_found(upward_import, &files);
    let expected = [
        ("reliability/Cargo.toml".into(), 2),
        ("feeds/Cargo.toml".into(), 3),
    ];
    assert_eq!(found, expected);
}
