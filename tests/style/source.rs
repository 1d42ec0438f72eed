//! The files of the repository. Of Rust files it separates code, comments and strings.
//!
//! Files are those that git tracks or would add; without git, all files outside build folders.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

/// Compiles a pattern; a wrong one is a mistake in the rule.
pub(crate) fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// A text file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Relative to the root, with slashes.
    pub(crate) path: String,
    /// The content.
    pub(crate) text: String,
    /// Of Rust files: comments and the contents of strings and characters blanked, so that line
    /// and column stay. Of others: the text.
    pub(crate) code: String,
    /// Of Rust files: `code` without items under `cfg(test)`, and empty for test files.
    pub(crate) product: String,
    /// Columns of each line that are not within a string.
    pub(crate) columns: Vec<usize>,
}

impl Source {
    /// `text` as if it stood under `path`.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let is_rust = path.ends_with(".rs");
        let (code, columns) = if is_rust {
            blank(text)
        } else {
            let columns = text.lines().map(|l| l.chars().count()).collect();
            (text.to_owned(), columns)
        };
        let product = if is_rust && is_test_path(path) {
            "\n".repeat(text.lines().count())
        } else if is_rust {
            without_tests(&code)
        } else {
            code.clone()
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            product,
            columns,
        }
    }

    /// Whether this is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether this is the source of a library crate: no program, example or test.
    pub(crate) fn is_library(&self) -> bool {
        const LIBRARIES: [&str; 10] = [
            "reliability/journal/src/",
            "reliability/src/",
            "transport/src/",
            "transport/base/src/",
            "transport/verbs/src/",
            "transport/xdp/src/",
            "feeds/src/",
            "publisher/src/",
            "subscriber/src/",
            "subscriber/capi/src/",
        ];
        self.is_rust()
            && LIBRARIES.iter().any(|l| self.path.starts_with(l))
            && !self.path.ends_with("/main.rs")
            && !self.path.contains("/bin/")
    }

    /// The comment that ends in the line before `line` (from 1), attributes between them skipped.
    pub(crate) fn comment_above(&self, line: usize) -> String {
        let lines: Vec<&str> = self.text.lines().take(line.saturating_sub(1)).collect();
        let comment = lines
            .iter()
            .rev()
            .map(|l| l.trim_start())
            .skip_while(|l| l.starts_with("#["))
            .take_while(|l| l.starts_with("//"));
        let mut comment: Vec<&str> = comment.collect();
        comment.reverse();
        comment.join("\n")
    }
}

/// Whether a file holds only tests. The simulation and the lab are ordinary programs.
pub(crate) fn is_test_path(path: &str) -> bool {
    const PROGRAMS: [&str; 2] = ["tests/lab/src/", "tests/sim/src/"];
    let inner = PROGRAMS.iter().find_map(|root| path.strip_prefix(root));
    inner
        .unwrap_or(path)
        .split('/')
        .any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

/// All text files of the repository.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// In order of path.
    pub(crate) files: Vec<Source>,
}

impl Tree {
    /// The repository's files, read once.
    pub(crate) fn read() -> &'static Self {
        static TREE: LazyLock<Tree> = LazyLock::new(|| {
            let mut paths = git_files().unwrap_or_else(walk);
            paths.sort();
            paths.dedup();
            assert!(!paths.is_empty(), "no file found under {:?}", root());
            let files = paths.iter().filter_map(|path| {
                // Listed but deleted, or no text: nothing to check.
                let text = std::fs::read_to_string(root().join(path)).ok()?;
                Some(Source::new(path, &text))
            });
            Tree {
                files: files.collect(),
            }
        });
        &TREE
    }

    /// Builds a tree of these paths and texts.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| Source::new(path, text));
        Self {
            files: files.collect(),
        }
    }

    /// The file under this path.
    pub(crate) fn file(&self, path: &str) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether a file or folder of this path exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let is_here = |f: &Source| f.path == path || f.path.starts_with(&folder);
        path.is_empty() || self.files.iter().any(is_here)
    }

    /// Whether some Rust file defines a function of this name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        let definition = pattern(&format!(r"\bfn\s+{}\b", regex::escape(name)));
        let mut rust = self.files.iter().filter(|f| f.is_rust());
        rust.any(|f| definition.is_match(&f.code))
    }
}

fn git_files() -> Option<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "-co", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()?;
    let listed = String::from_utf8(listed.status.success().then_some(listed.stdout)?).ok()?;
    let paths: Vec<String> = listed
        .split('\0')
        .filter(|p| !p.is_empty())
        .map(str::to_owned)
        .collect();
    (!paths.is_empty()).then_some(paths)
}

fn walk() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && name != ".git" && !name.starts_with("target") {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let path = path.strip_prefix(root()).unwrap();
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    LineComment,
    /// Nested this deep.
    BlockComment(u32),
    Text,
    /// Raw, ends with a quote and this many hashes.
    RawText(usize),
}

/// Blanks comments and texts; also counts the columns of each line outside texts.
fn blank(text: &str) -> (String, Vec<usize>) {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let (mut columns, mut column) = (Vec::new(), 0);
    let mut within = Within::Code;
    let mut i = 0;
    while i < chars.len() {
        let before = within;
        // How many characters belong together, and whether they are shown.
        let mut take = 1;
        let mut shown = within == Within::Code;
        match within {
            Within::Code => {
                let is_name_before = i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_');
                let raw = raw_start(&chars[i..]).filter(|_| !is_name_before);
                match (at(i), at(i + 1)) {
                    ('/', '/') => (within, shown) = (Within::LineComment, false),
                    ('/', '*') => (within, shown, take) = (Within::BlockComment(1), false, 2),
                    ('"', _) => within = Within::Text,
                    ('\'', _) => {
                        // A character, or else a lifetime.
                        let len = char_len(&chars[i..]);
                        if let Some(len) = len {
                            (take, shown) = (len, false);
                        }
                    }
                    _ => {
                        if let Some((len, hashes)) = raw {
                            (within, take) = (Within::RawText(hashes), len);
                        }
                    }
                }
            }
            Within::LineComment => {
                if at(i) == '\n' {
                    within = Within::Code;
                }
            }
            Within::BlockComment(depth) => match (at(i), at(i + 1)) {
                ('/', '*') => (within, take) = (Within::BlockComment(depth + 1), 2),
                ('*', '/') if depth == 1 => (within, take) = (Within::Code, 2),
                ('*', '/') => (within, take) = (Within::BlockComment(depth - 1), 2),
                _ => {}
            },
            Within::Text => match at(i) {
                '\\' => take = 2,
                '"' => (within, shown) = (Within::Code, true),
                _ => {}
            },
            Within::RawText(hashes) => {
                if at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#') {
                    (within, shown, take) = (Within::Code, true, hashes + 1);
                }
            }
        }
        let in_text = matches!(before, Within::Text | Within::RawText(_));
        for &c in &chars[i..(i + take).min(chars.len())] {
            if c == '\n' {
                out.push('\n');
                columns.push(column);
                column = 0;
            } else {
                out.push(if shown { c } else { ' ' });
                column += usize::from(!in_text);
            }
        }
        i += take;
    }
    if column > 0 {
        columns.push(column);
    }
    (out, columns)
}

/// Length of `r"`, `br##"` and the like at the start of `chars`, and how many hashes there are.
fn raw_start(chars: &[char]) -> Option<(usize, usize)> {
    let letters = chars
        .iter()
        .take_while(|c| matches!(c, 'b' | 'c' | 'r'))
        .count();
    if !(1..=2).contains(&letters) || chars[letters - 1] != 'r' {
        return None;
    }
    let hashes = chars[letters..].iter().take_while(|&&c| c == '#').count();
    (chars.get(letters + hashes) == Some(&'"')).then_some((letters + hashes + 1, hashes))
}

/// Length of the character literal at the start of `chars`; `None` for a lifetime.
fn char_len(chars: &[char]) -> Option<usize> {
    if chars.get(1) == Some(&'\\') {
        let end = chars.iter().skip(3).position(|&c| c == '\'')?;
        return Some(end + 4);
    }
    (chars.get(2) == Some(&'\'')).then_some(3)
}

/// Blanks every item under a `cfg` of test or loom.
pub(crate) fn without_tests(code: &str) -> String {
    static GATE: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"#\[cfg\((?:(?:all|any)\()?(?:test|loom)\b[^\]]*\]"));
    let mut out = code.to_owned();
    let mut from = 0;
    while let Some(gate) = GATE.find_at(code, from) {
        let end = item_end(code, gate.end());
        let blanked: String = code[gate.start()..end]
            .chars()
            .map(|c| if c == '\n' { '\n' } else { ' ' })
            .collect();
        // Blanking keeps characters, not bytes: only ASCII is left in code but for names.
        out.replace_range(gate.start()..end, &pad(&blanked, end - gate.start()));
        from = end;
    }
    out
}

/// `blanked` filled up to `len` bytes, so that offsets stay.
fn pad(blanked: &str, len: usize) -> String {
    let mut out = blanked.to_owned();
    out.push_str(&" ".repeat(len - blanked.len()));
    out
}

/// Where the item that starts at `from` ends: with its block, or with its semicolon.
pub(crate) fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0usize;
    // Signatures hold `;` in array types and blocks in none; brackets count too.
    for (i, c) in code[from..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return from + i + 1;
                }
            }
            ';' if depth == 0 => return from + i + 1,
            _ => {}
        }
    }
    code.len()
}

#[test]
fn comments_strings_and_characters_are_blanked() {
    let text = concat!(
        "let a = \"x // y\"; // z\n",
        "let b: &'static str = r#\"un\"wrap\"#;\n",
        "let c = ('\"', '\\'', '\\u{1F}'); /* a /* b */ c */ d\n",
    );
    let source = Source::new("a.rs", text);
    let expected = [
        "let a = \"      \";     ",
        "let b: &'static str = r#\"       \"#;",
        "let c = (   ,     ,         );                   d",
    ];
    assert_eq!(source.code.lines().collect::<Vec<_>>(), expected);
    assert_eq!(source.columns.len(), 3);
    assert!(source.columns[1] < text.lines().nth(1).unwrap().len());
}

#[test]
fn code_under_cfg_test_is_no_product() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { [0; 3]; }\n}\nfn c() {}\n\
                #[cfg(all(test, loom))]\nuse x;\nfn d() {}\n";
    let product = Source::new("x/src/a.rs", text).product;
    assert_eq!(product.lines().count(), text.lines().count());
    let kept: Vec<&str> = product.split_whitespace().collect();
    assert_eq!(kept.join(" "), "fn a() {} fn c() {} fn d() {}");
    let in_tests = Source::new("x/tests/a.rs", text).product;
    assert_eq!(in_tests.trim(), "");
}

#[test]
fn tree_holds_this_file() {
    let tree = Tree::read();
    assert!(tree.file("tests/style/source.rs").is_some());
    assert!(tree.has("reliability/src") && !tree.has("target"));
    assert!(tree.has_function("tree_holds_this_file"));
    let walked = walk();
    let missed = tree.files.iter().find(|f| !walked.contains(&f.path));
    assert!(
        missed.is_none(),
        "the walk without git misses {:?}",
        missed.map(|f| &f.path)
    );
}
