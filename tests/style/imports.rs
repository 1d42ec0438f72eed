//! The paths by which a module imports others of its crate.

use crate::source::pattern;

/// The path of a module or an item from the root of its crate.
pub(crate) type Path = Vec<String>;

/// Returns every path of a module's code that begins with `crate`, `self` or `super`, resolved from the
/// root, with its line. `own` is the path of the module.
pub(crate) fn imports(code: &str, own: &[String]) -> Vec<(usize, Path)> {
    let root = pattern(r"\b(?:crate|self|super)(?:::\w+)*(?:::\{[^;]*)?");
    let mut found = Vec::new();
    for whole in root.find_iter(code) {
        let line = code[..whole.start()].matches('\n').count() + 1;
        let paths = expanded(whole.as_str()).into_iter();
        found.extend(paths.map(|path| (line, absolute(own, &path))));
    }
    found
}

/// Returns the module of a file, by the path of the file within its `src` folder.
pub(crate) fn module_of(inside: &str) -> Path {
    let path = inside.trim_end_matches(".rs").split('/').map(str::to_owned);
    let mut path: Path = path.collect();
    path.pop_if(|last| matches!(&last[..], "mod" | "lib" | "main"));
    path
}

/// Returns the paths of a `use` tree: `a::{b, c::d}` gives `a::b` and `a::c::d`.
pub(crate) fn expanded(tree: &str) -> Vec<Path> {
    let tree = tree.split(" as ").next().unwrap_or_default().trim();
    let parts = |text: &str| {
        text.split("::")
            .map(|it| it.trim().to_owned())
            .collect::<Path>()
    };
    let Some((head, group)) = tree.split_once("::{") else {
        let mut path = parts(tree.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_'));
        path.retain(|part| !part.is_empty());
        return vec![path];
    };
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                all.extend(expanded(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    let head = parts(head);
    all.retain(|path| !path.is_empty());
    all.iter().map(|path| [&head[..], path].concat()).collect()
}

/// Resolves `crate`, `self` and `super` at the front of a path; any other path begins in `own`.
pub(crate) fn absolute(own: &[String], path: &[String]) -> Path {
    let (mut from, mut rest) = (own.to_vec(), path);
    while let [first, behind @ ..] = rest {
        match &first[..] {
            "crate" => from.clear(),
            "self" => {}
            "super" => drop(from.pop()),
            _ => break,
        }
        rest = behind;
    }
    [&from[..], rest].concat()
}
