//! The prose rules of CONTRIBUTING.md: openings, length of sentences, changelog entries, test names.
//!
//! Test names are short everywhere. The other rules hold in [`REWRITTEN`]; a folder joins the list once its
//! text follows them.

use crate::source::{Source, pattern};
use crate::{Violation, holds, lines_found, violation};

/// Files and folders whose text follows the rules.
const REWRITTEN: [&str; 30] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "configs/",
    "docs/",
    "feeds/",
    "publisher/",
    "reliability/src/control/",
    "reliability/src/delivery/",
    "reliability/src/publish/",
    "reliability/src/receive/",
    "reliability/src/record/",
    "reliability/src/ring/",
    "reliability/src/serve/",
    "reliability/src/timing/",
    "reliability/src/types/",
    "reliability/src/wire/",
    "subscriber/",
    "tests/embedding/",
    "tests/fuzz/",
    "tests/lab/src/",
    "tests/protocol/",
    "tests/sim/",
    "tests/stages/",
    "tests/style/",
    "tests/support/",
    "tests/system/",
    "tools/",
    "transport/",
];

/// Words that hide the subject of a sentence they open.
const HEADLESS: &str = r"(?:What|Who|Whoever|So many|Of what|One who|One that|That which)\b";

/// The longest sentence of a document, in words.
const WORDS_MAX: usize = 35;

/// The longest changelog entry, in characters.
const ENTRY_MAX: usize = 100;

/// The longest name of a test, in characters.
const TEST_NAME_MAX: usize = 60;

/// Words that hide the subject of a test's name, because they open it.
const HEADLESS_NAME: &str =
    "^(?:an?|the|it|each|every|no|nobody|nothing|one|who|whoever|what|which|if|where|when|how)_";

fn is_rewritten(path: &str) -> bool {
    REWRITTEN.iter().any(|done| path.starts_with(done))
}

fn is_document(path: &str) -> bool {
    path.ends_with(".md")
}

/// A sentence of a document, and the line that it begins in.
type Sentence = (usize, String);

/// Splits a document into sentences. A list item and a table cell each begin a new one; headings,
/// fenced code and comments have none. Code and links count as their text.
fn sentences(text: &str) -> Vec<Sentence> {
    let code = pattern(r"`[^`]*`");
    let link = pattern(r"\[([^\]]*)\]\([^)]*\)");
    let item = pattern(r"^\s*(?:[-*]|\d+\.|>)\s+");
    let mut blocks: Vec<Sentence> = Vec::new();
    let (mut fenced, mut open) = (false, false);
    for (i, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            (fenced, open) = (!fenced, false);
        } else if fenced || trimmed.is_empty() || trimmed.starts_with(['#', '<']) {
            open = false;
        } else if trimmed.starts_with('|') {
            open = false;
            let cells = code.replace_all(trimmed, "`code`");
            let cells = cells.split('|').map(str::trim);
            let cells = cells.filter(|cell| cell.contains(char::is_alphanumeric));
            blocks.extend(cells.map(|cell| (i + 1, cell.to_owned())));
        } else if let Some((_, block)) = blocks.last_mut().filter(|_| open && !item.is_match(line))
        {
            block.push(' ');
            block.push_str(trimmed);
        } else {
            blocks.push((i + 1, item.replace(line, "").trim().to_owned()));
            open = true;
        }
    }
    let end = pattern(r"[.!?][)*_”]*(?:\s+|$)");
    let mut found = Vec::new();
    for (line, block) in blocks {
        let plain = code.replace_all(&block, "`code`");
        let plain = link.replace_all(&plain, "$1");
        let parts = end.split(&plain).filter(|part| !part.is_empty());
        found.extend(parts.map(|part| (line, part.to_owned())));
    }
    found
}

fn headless_opening(source: &Source) -> Vec<Violation> {
    if !is_rewritten(&source.path) {
        return Vec::new();
    }
    let why = "a sentence names its subject";
    if is_document(&source.path) {
        let opening = pattern(&format!(r"^[*_(“]*{HEADLESS}"));
        let all = sentences(&source.text).into_iter();
        let headless = all.filter(|(_, sentence)| opening.is_match(sentence));
        return headless
            .map(|(line, sentence)| violation(line, format!("`{sentence}`: {why}")))
            .collect();
    }
    let opening = pattern(&format!(
        r"(?:^|\s)(?:(?://[/!]?|#|/?\*+)|(?://|#|\*).*[.!?])\s+{HEADLESS}"
    ));
    let lines = source.text.lines().enumerate();
    lines
        .filter(|(_, line)| opening.is_match(line))
        .map(|(i, line)| violation(i + 1, format!("`{}`: {why}", line.trim())))
        .collect()
}

#[test]
fn sentences_name_their_subject() {
    holds(headless_opening);
    // Put together from parts, so that this file does not break the rule itself.
    let bad = concat!(
        "//! ",
        "Who sends.\nfn f() {} // ",
        "What is left.\n/// Returns it. ",
        "What is left \
               stays.\n/// Reports what is left.\nlet what = 1; // whoever\n# ",
        "So many\n"
    );
    let found = lines_found(headless_opening, "tests/style/prose.rs", bad);
    assert_eq!(found, [1, 2, 3, 6]);
    assert_eq!(lines_found(headless_opening, "elsewhere/a.rs", bad), []);
    let bad = "# What to do\n\nSay what. Who asks\nis told.\n\n- **What** is\n\n| what | Whoever |\n\
               ```\nWhat\n```\nAsk who.\n";
    let found = lines_found(headless_opening, "CHANGELOG.md", bad);
    assert_eq!(found, [3, 6, 8]);
}

fn long_sentence(source: &Source) -> Vec<Violation> {
    if !is_document(&source.path) || !is_rewritten(&source.path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (line, sentence) in sentences(&source.text) {
        let words = sentence.split_whitespace();
        let words = words.filter(|word| word.contains(char::is_alphanumeric));
        let count = words.count();
        if count > WORDS_MAX {
            let what = format!("{count} words, at most {WORDS_MAX}: `{sentence}`");
            found.push(violation(line, what));
        }
    }
    found
}

#[test]
fn sentences_of_documents_are_short() {
    holds(long_sentence);
    let long = "word ".repeat(WORDS_MAX + 1);
    let half = "word ".repeat(WORDS_MAX / 2 + 1);
    let text = format!(
        "{long}\n\n- {half}\n  {half}\n- {half}.\n  {half}\n\n| {half} | {half} |\n| a | {long} |\n\
         \n{half}\n`{long}`\n"
    );
    let found = lines_found(long_sentence, "CONTRIBUTING.md", &text);
    assert_eq!(found, [1, 3, 9]);
    assert_eq!(lines_found(long_sentence, "elsewhere/a.md", &text), []);
}

fn long_entry(source: &Source) -> Vec<Violation> {
    if source.path != "CHANGELOG.md" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (i, line) in source.text.lines().enumerate() {
        let count = line.chars().count();
        if line.starts_with("- ") && count > ENTRY_MAX {
            let what = format!("{count} characters, at most {ENTRY_MAX}");
            found.push(violation(i + 1, what));
        } else if line.starts_with(' ') {
            found.push(violation(i + 1, "an entry is one line"));
        }
    }
    found
}

#[test]
fn changelog_entries_fit_one_line() {
    holds(long_entry);
    let text = format!(
        "- Add a\n- Fix {}\n- Add b\n  and c\n",
        "d".repeat(ENTRY_MAX)
    );
    assert_eq!(lines_found(long_entry, "CHANGELOG.md", &text), [2, 4]);
    assert_eq!(lines_found(long_entry, "README.md", &text), []);
}

fn unclear_test_name(source: &Source) -> Vec<Violation> {
    if !source.is_rust() {
        return Vec::new();
    }
    let function = pattern(r"\bfn\s+(\w+)(\s*:)?");
    let headless = pattern(HEADLESS_NAME);
    let (mut found, mut is_test) = (Vec::new(), false);
    for (i, line) in source.code.lines().enumerate() {
        is_test |= line.trim() == "#[test]";
        // A macro that makes tests lists them as `fn name: arguments;`, without the attribute.
        let is_name = |it: &regex::Captures<'_>| is_test || it.get(2).is_some();
        let Some(name) = function.captures(line).filter(is_name) else {
            continue;
        };
        is_test = false;
        let count = name[1].chars().count();
        if count > TEST_NAME_MAX {
            let what = format!("test name of {count} characters, at most {TEST_NAME_MAX}");
            found.push(violation(i + 1, what));
        }
        if headless.is_match(&name[1]) {
            let what = format!("`{}`: a test's name begins with its subject", &name[1]);
            found.push(violation(i + 1, what));
        }
    }
    found
}

#[test]
fn test_names_are_short_and_name_their_subject() {
    holds(unclear_test_name);
    let long = "b".repeat(TEST_NAME_MAX + 1);
    let text = format!(
        "fn {long}() {{}}\n#[test]\n#[ignore]\nfn {long}() {{}}\n#[test]\nfn b() {{}}\n\
         fn {long}: A;\nfn b: {long};\n#[test]\nfn what_is_b() {{}}\nfn what_is_b() {{}}\n"
    );
    let found = lines_found(unclear_test_name, "feeds/src/a.rs", &text);
    assert_eq!(found, [4, 7, 10]);
}
