//! Rules on Rust code: the interfaces that a crate may use, and constructs that it may not.

use crate::source::{Source, Tree, pattern};
use crate::{Violation, holds, holds_for_all, lines_found, places_found, violation};

/// Every match of `text` in `code`, by line.
fn matches(code: &str, text: &str) -> Vec<(usize, String)> {
    let pattern = pattern(text);
    let found = code.lines().enumerate().flat_map(|(i, line)| {
        let all = pattern.find_iter(line);
        all.map(|m| (i + 1, m.as_str().to_owned()))
            .collect::<Vec<_>>()
    });
    found.collect()
}

fn io_clock_or_thread_in_core(source: &Source) -> Vec<Violation> {
    if !source.path.starts_with("reliability/") {
        return Vec::new();
    }
    const REACH: &str = concat!(
        r"std::(?:fs|io|thread|process|env)\b|\bstd::net::[^;]*\b(?:Tcp|Udp)\w*",
        r"|\b(?:TcpStream|TcpListener|UdpSocket|Instant|SystemTime)\b",
        r"|\bstd::\{[^;]*\b(?:fs|io|thread)\b|\bthread::(?:spawn|sleep)\b"
    );
    let found = matches(&source.product, REACH).into_iter();
    found
        .map(|(line, what)| violation(line, format!("the core reaches for `{what}`")))
        .collect()
}

#[test]
fn core_does_no_io_reads_no_clock_and_starts_no_thread() {
    holds(io_clock_or_thread_in_core);
    let bad = "use std::net::{Ipv4Addr, UdpSocket};\nuse std::net::SocketAddrV4;\n\
               fn f() { std::thread::sleep(x); }\nuse std::time::{Duration, Instant};\n\
               // std::fs\n#[cfg(test)]\nmod tests { use std::io; }\nuse std::{fmt, fs};\n";
    let rule = io_clock_or_thread_in_core;
    assert_eq!(lines_found(rule, "reliability/src/a.rs", bad), [1, 3, 4, 8]);
    assert_eq!(lines_found(rule, "transport/src/a.rs", bad), []);
}

/// Whether a file may contain `unsafe`.
fn may_be_unsafe(path: &str) -> bool {
    path.starts_with("transport/")
        || path.starts_with("reliability/src/ring/")
        // The CRC by instructions of the processor.
        || path.starts_with("reliability/src/wire/crc")
        || path.starts_with("subscriber/capi/src/")
        // Bindings of C libraries that the product does not need.
        || path.starts_with("tests/lab/peers/src/")
        || path == "reliability/src/record/mod.rs"
}

fn unsafe_elsewhere(source: &Source) -> Vec<Violation> {
    if !source.is_rust() || may_be_unsafe(&source.path) {
        return Vec::new();
    }
    let found = matches(&source.code, r"\bunsafe\b").into_iter();
    found
        .map(|(line, _)| violation(line, "unsafe code is not for this file"))
        .collect()
}

#[test]
fn unsafe_code_stays_in_the_files_made_for_it() {
    holds(unsafe_elsewhere);
    let bad = "// unsafe\nlet a = \"unsafe\";\nlet b = unsafe { c() };\n";
    assert_eq!(
        lines_found(unsafe_elsewhere, "feeds/src/a.rs", bad),
        [3],
        "only the code counts"
    );
    assert_eq!(
        lines_found(unsafe_elsewhere, "reliability/src/ring/mod.rs", bad),
        []
    );
}

/// How far above an unsafe block its comment may stand: a statement may begin before it.
const SAFETY_WITHIN_LINES: usize = 6;

/// The SAFETY comment that speaks for `line`, without line breaks.
fn safety_comment(source: &Source, line: usize) -> Option<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let above = (line.saturating_sub(SAFETY_WITHIN_LINES).max(1)..=line).rev();
    // The statement starts in the first line above which there is a comment, and no gap between.
    let start = above.take_while(|&n| !lines[n - 1].trim().is_empty());
    let comments = start.map(|n| source.comment_above(n));
    comments
        .into_iter()
        .find(|c| c.contains("SAFETY:"))
        .map(|c| c.replace("\n//", ""))
}

fn unsafe_without_test(tree: &Tree) -> Vec<(String, Violation)> {
    let backticked = pattern(r"`(?:\w+::)*([a-z0-9]+(?:_[a-z0-9]+){2,})`");
    let mut found = Vec::new();
    for source in tree.files.iter().filter(|s| s.is_rust()) {
        for (line, _) in matches(&source.product, r"\bunsafe\s+impl\b|\bunsafe\s*(?:\{|$)") {
            let mut wrong = |what: String| found.push((source.path.clone(), violation(line, what)));
            let Some(comment) = safety_comment(source, line) else {
                wrong("no `// SAFETY:` comment above".into());
                continue;
            };
            const EXEMPT: [&str; 3] = ["as above", "as for `", "Checked at compile time"];
            if EXEMPT.iter().any(|e| comment.contains(e)) {
                continue;
            }
            let Some((_, by)) = comment.split_once("xercised") else {
                wrong("its SAFETY comment does not say which test exercises it".into());
                continue;
            };
            for name in backticked.captures_iter(by).map(|c| c[1].to_owned()) {
                if !tree.has_function(&name) {
                    wrong(format!("it names the test `{name}`, which does not exist"));
                }
            }
        }
    }
    found
}

#[test]
fn unsafe_blocks_name_a_reason_and_a_test() {
    holds_for_all(unsafe_without_test);
    let text = "\
// SAFETY: owned. Exercised by
// `tests::it_is_read_back`.
let a = unsafe { b() };

let c =
    unsafe { d() };

// SAFETY: owned.
unsafe impl Send for E {}
// SAFETY: as for `Send`.
unsafe impl Sync for E {}

// SAFETY: owned. Exercised by `tests::no_such_test`.
#[allow(x)]
let f = g(
    unsafe { h() },
);
fn it_is_read_back() {}
";
    let found = places_found(unsafe_without_test, &[("transport/src/a.rs", text)]);
    assert_eq!(found.iter().map(|f| f.1).collect::<Vec<_>>(), [6, 9, 16]);
}

fn may_panic(source: &Source) -> Vec<Violation> {
    if !source.is_library() {
        return Vec::new();
    }
    const PANIC: &str = concat!(
        r"\.unwrap\(\)|\.expect\(|\.unwrap_err\(\)|\.expect_err\(",
        r"|\b(?:panic|unreachable|todo|unimplemented|dbg|e?println|e?print)!"
    );
    let found = matches(&source.product, PANIC).into_iter();
    let found = found.filter(|(line, _)| !source.comment_above(*line).contains("invariant:"));
    let what = |what| format!("`{what}` in a library; without an `// invariant:` comment above");
    found
        .map(|(line, text)| violation(line, what(text)))
        .collect()
}

#[test]
fn libraries_neither_panic_nor_print() {
    holds(may_panic);
    let bad = "fn f() {\n    a.unwrap();\n    // invariant: b is never empty\n    b.expect(\"b\");\n\
               \n    println!(\"c\");\n    d.unwrap_or(0);\n    // e.unwrap()\n}\n\
               #[cfg(test)]\nmod tests {\n    fn g() { h.unwrap(); }\n}\n#[expect(dead_code)]\n";
    assert_eq!(lines_found(may_panic, "feeds/src/a.rs", bad), [2, 6]);
    assert_eq!(lines_found(may_panic, "feeds/tests/a.rs", bad), []);
    assert_eq!(lines_found(may_panic, "publisher/src/main.rs", bad), []);
}

/// Folders and files that may create files, or open them for writing: the module of files that outlive a
/// process, and a check of devices.
const OPENING: [&str; 2] = [
    "tools/src/commands/doctor/rdma.rs",
    "transport/base/src/host/files/",
];

fn file_opened_elsewhere(source: &Source) -> Vec<Violation> {
    let is_product = source.path.contains("/src/") && !source.path.starts_with("tests/");
    let is_exempt = OPENING.iter().any(|path| source.path.starts_with(path));
    if !source.is_rust() || !is_product || is_exempt {
        return Vec::new();
    }
    const OPENS: &str =
        r"\b(?:OpenOptions|File::(?:options|create|create_new)|fs::write|create_dir(?:_all)?)\b";
    let what = |what| format!("`{what}`; use `host::files`, which checks owner, mode and kind");
    let found = matches(&source.product, OPENS).into_iter();
    found
        .map(|(line, text)| violation(line, what(text)))
        .collect()
}

#[test]
fn files_are_created_and_written_by_module_for_them() {
    holds(file_opened_elsewhere);
    let bad = "use std::fs::OpenOptions;\nfn f() {\n    File::create(a);\n    \
               JournalFile::create(a);\n    std::fs::write(a, b);\n    create_directory(a);\n    \
               fs::create_dir_all(a);\n    File::open(a);\n}\n\
               #[cfg(test)]\nmod tests { fn g() { fs::write(a, b); } }\n";
    let rule = file_opened_elsewhere;
    assert_eq!(lines_found(rule, "publisher/src/a.rs", bad), [1, 3, 5, 7]);
    for path in [
        "publisher/tests/a.rs",
        "tests/lab/src/a.rs",
        "transport/base/src/host/files/a.rs",
    ] {
        assert_eq!(lines_found(rule, path, bad), []);
    }
}

/// Files that may hold a lock, because no tick passes it:
///
/// - state that threads of the publisher and the subscriber show to others
/// - reports of loss, and a standby's promotion
/// - handles of C: a call tries one once, however many ticks it delivers
/// - the taps of interfaces, when a line opens or closes
/// - the in-memory network of tests, and the state that connections of a device share
const LOCKING: [&str; 12] = [
    "publisher/src/ingest/queue.rs",
    "publisher/src/state/audit_limits.rs",
    "publisher/src/state/mod.rs",
    "publisher/src/state/source_memory.rs",
    "publisher/src/state/standby.rs",
    "subscriber/capi/src/handle.rs",
    "subscriber/src/observe/mod.rs",
    "transport/src/memory/",
    "transport/verbs/src/memory/cursor.rs",
    "transport/verbs/src/device/events.rs",
    "transport/verbs/src/probe/mod.rs",
    "transport/xdp/src/tap/",
];

/// Files on the path of every tick. They may not call a function that locks, unless a comment says why the
/// call is rare.
const HOT: [&str; 18] = [
    "feeds/src/",
    "publisher/src/ingest/queue.rs",
    "publisher/src/api/inline.rs",
    "publisher/src/ingest/mod.rs",
    "publisher/src/ingest/",
    "publisher/src/run/threads.rs",
    "publisher/src/publish/channel.rs",
    "publisher/src/publish/mod.rs",
    "publisher/src/publish/direct.rs",
    "publisher/src/api/channel_writer.rs",
    "reliability/journal/src/",
    "reliability/src/",
    "subscriber/src/dispatch/",
    "subscriber/src/io/connections.rs",
    "subscriber/src/observe/polled.rs",
    "subscriber/src/split/",
    "subscriber/src/subscriber.rs",
    "subscriber/src/sync/",
];

fn lock_on_the_path_of_a_tick(source: &Source) -> Vec<Violation> {
    if !source.is_library() {
        return Vec::new();
    }
    let is_one_of = |paths: &[&str]| paths.iter().any(|path| source.path.starts_with(path));
    let mut found = Vec::new();
    if !is_one_of(&LOCKING) {
        let names = r"\b(?:Mutex|RwLock|Condvar|parking_lot|Barrier)\b";
        let what = |what| format!("`{what}`: a lock is not for this file");
        let names = matches(&source.product, names).into_iter();
        found.extend(names.map(|(line, name)| violation(line, what(name))));
    }
    if is_one_of(&HOT) {
        // The last three are calls of ours that lock.
        let taking = r"\.(?:try_)?lock\(\)|\blocked\(|\.(?:directory|subscribers|lost)\(\)";
        let taking = matches(&source.product, taking).into_iter();
        let unsaid = taking.filter(|(line, _)| !source.comment_above(*line).contains("locks:"));
        let what = |what| format!("`{what}` on a tick's path; without a `// locks:` comment above");
        found.extend(unsaid.map(|(line, call)| violation(line, what(call))));
    }
    found
}

#[test]
fn tick_path_takes_no_lock() {
    holds(lock_on_the_path_of_a_tick);
    let tree = Tree::read();
    for path in LOCKING.iter().chain(&HOT) {
        let is_there = tree.files.iter().any(|file| file.path.starts_with(path));
        assert!(is_there, "there is no {path}");
    }
    let bad = "use std::sync::Mutex;\n// a Mutex\nstruct A(std::sync::RwLock<u8>);\nfn f() {\n    \
               a.lock();\n    // locks: once an hour\n    a.try_lock();\n    b.directory().put(c);\n}\n\
               #[cfg(test)]\nmod tests { use parking_lot::Mutex; }\n";
    let rule = lock_on_the_path_of_a_tick;
    assert_eq!(
        lines_found(rule, "publisher/src/publish/mod.rs", bad),
        [1, 3, 5, 8]
    );
    assert_eq!(
        lines_found(rule, "publisher/src/ingest/queue.rs", bad),
        [5, 8]
    );
    assert_eq!(
        lines_found(rule, "transport/src/udp/sendmmsg.rs", bad),
        [1, 3]
    );
    assert_eq!(lines_found(rule, "publisher/src/state/mod.rs", bad), []);
}

fn unit_first(source: &Source) -> Vec<Violation> {
    if !source.is_rust() {
        return Vec::new();
    }
    const NAME: &str = r"\bpub(?:\([^)]*\))?\s+(?:us|ms|ns|bytes_per)_\w+\s*:";
    let found = matches(&source.code, NAME).into_iter();
    found
        .map(|(line, what)| violation(line, format!("`{what}`: units come last in a name")))
        .collect()
}

#[test]
fn units_come_last_in_names() {
    holds(unit_first);
    let bad = "pub struct A {\n    pub us_retry: u32,\n    pub retry_us: u32,\n    \
               pub(crate) ns_: u64,\n    pub(crate) ns_sent: u64,\n    pub message: u8,\n}\n";
    assert_eq!(lines_found(unit_first, "a.rs", bad), [2, 5]);
}

const COLUMNS_MAX: usize = 110;

fn long_or_tabbed_line(source: &Source) -> Vec<Violation> {
    if !source.is_rust() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (i, line) in source.text.lines().enumerate() {
        let columns = source.columns.get(i).copied().unwrap_or(0);
        // The row of a table can't be broken.
        let is_row =
            line.trim_start().starts_with("//! |") || line.trim_start().starts_with("/// |");
        if columns > COLUMNS_MAX && !is_row {
            let what = format!("{columns} columns, at most {COLUMNS_MAX}; texts do not count");
            found.push(violation(i + 1, what));
        }
        if line.contains('\t') {
            found.push(violation(i + 1, "a tab"));
        }
    }
    found
}

#[test]
fn rust_lines_fit_the_page_and_hold_no_tab() {
    holds(long_or_tabbed_line);
    let text = format!(
        "let a = \"{}\";\n// {}\n\tb\n",
        "x".repeat(150),
        "y".repeat(108)
    );
    assert_eq!(lines_found(long_or_tabbed_line, "a.rs", &text), [2, 3]);
}

/// Rust's debug output where people read: `{…:?}` in text, and `?field` of a log line. Quoted strings are
/// meant to look like that; anything else needs `// Debug: REASON` in the three lines before.
fn debug_output(source: &Source) -> Vec<Violation> {
    const QUOTED: &str = r"name|text|symbol|kind|endpoint|session|answer|standby|unknown";
    let is_tool = source.path.starts_with("tools/src/") && source.is_rust();
    let is_program = source.path == "publisher/src/main.rs" || is_tool;
    if !(source.is_library() || is_program) {
        return Vec::new();
    }
    let text = pattern(r"\{([a-z_.0-9]*):#?\?\}");
    let quoted = pattern(&format!("^(?:{QUOTED})$"));
    let field = pattern(r"(?:^|[(,=\s])\?[a-z]");
    let lines: Vec<&str> = source.text.lines().collect();
    let product: Vec<&str> = source.product.lines().collect();
    let (mut found, mut is_product) = (Vec::new(), true);
    for (i, ((line, code), product)) in lines
        .iter()
        .zip(source.code.lines())
        .zip(product)
        .enumerate()
    {
        // The lines that a string continues on belong to the line where it began.
        if !code.trim().is_empty() {
            is_product = code == product;
        }
        if !is_product || line.trim_start().starts_with("//") {
            continue;
        }
        let is_bare = text.captures_iter(line).any(|it| !quoted.is_match(&it[1]));
        let is_reasoned = || {
            lines[i.saturating_sub(3)..i]
                .iter()
                .any(|it| it.contains("// Debug: "))
        };
        if (is_bare || field.is_match(product)) && !is_reasoned() {
            found.push(violation(i + 1, "debug output: give the type a Display"));
        }
    }
    found
}

#[test]
fn debug_output_reaches_no_user() {
    holds(debug_output);
    let bad = "fn f() {\n    println!(\"{:?}\", x);\n    tracing::warn!(code = ?x.code, \"{x}\");\n\
               \u{20}   format!(\"{name:?} {x}\");\n    // Debug: numbers.\n    format!(\"{x:?}\");\n\
               \u{20}   a()?.b();\n    // {:?}\n}\n#[error(\n    \"{x:#?}\"\n)]\nstruct E;\n\
               #[cfg(test)]\nmod tests {\n    fn g() {\n        panic!(\n            \"a \\\n             {:?}\");\n    }\n}\n";
    assert_eq!(lines_found(debug_output, "feeds/src/a.rs", bad), [2, 3, 11]);
    assert_eq!(lines_found(debug_output, "tools/src/a.rs", bad), [2, 3, 11]);
    assert_eq!(lines_found(debug_output, "tests/src/a.rs", bad), []);
}
