//! What runs that were killed left behind goes when the next one begins: network namespaces, and folders
//! in memory. A name tells the process it belongs to, and nothing of one that lives is touched.

use std::fs;
use std::path::{Path, PathBuf};

use crate::network;

/// So begin the names of namespaces; then comes the process.
const NAMESPACE: &str = "tickcast-";
/// So begin those of folders.
const FOLDER: &str = "tickcast-bench-";

/// How this process calls a namespace.
pub(crate) fn namespace(what: &str) -> String {
    format!("{}{what}", own(NAMESPACE))
}

/// How the names of its folders begin.
pub(crate) fn folder_prefix() -> String {
    own(FOLDER)
}

/// Where files are in memory.
pub(crate) fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        return shm.into();
    }
    std::env::temp_dir()
}

/// Takes away what was left. To be called before this process makes anything of the kind: what
/// carries its number then is of another one, which had it before.
pub(crate) fn sweep() {
    let namespaces = network::namespaces().into_iter();
    for name in namespaces.filter(|name| is_left(name, NAMESPACE)) {
        if network::remove(&name).is_ok() {
            tell(&name);
        }
    }
    sweep_folders(&memory());
}

fn sweep_folders(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // One that is another user's stays.
        if is_left(&name, FOLDER) && fs::remove_dir_all(entry.path()).is_ok() {
            tell(&name);
        }
    }
}

fn tell(name: &str) {
    eprintln!("tickcast: {name} was left by a run that was killed, and is taken away");
}

fn own(kind: &str) -> String {
    format!("{kind}{}-", std::process::id())
}

/// Whether the process that a name tells is gone.
fn is_left(name: &str, kind: &str) -> bool {
    let process = || name.strip_prefix(kind)?.split_once('-')?.0.parse().ok();
    process().is_some_and(|process: u32| {
        process == std::process::id() || !Path::new(&format!("/proc/{process}")).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than a process can have.
    const NOBODY: u32 = u32::MAX;

    #[test]
    fn what_is_left_is_named_after_a_process_that_is_gone() {
        let (living, own) = (1, std::process::id());
        for (name, expected) in [
            (format!("tickcast-{NOBODY}-0"), true),
            (format!("tickcast-{own}-bridge"), true),
            (format!("tickcast-{living}-0"), false),
            ("tickcast-lab-0".into(), false),
            (format!("tickcast-{NOBODY}"), false),
            (format!("other-{NOBODY}-0"), false),
        ] {
            assert_eq!(is_left(&name, NAMESPACE), expected, "{name}");
        }
    }

    #[test]
    fn folders_of_the_living_and_of_others_stay() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: String| {
            let folder = all.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("ring"), "x").unwrap();
            folder
        };
        let left = make(format!("{FOLDER}{NOBODY}-abc"));
        let others = [
            make(format!("{FOLDER}1-abc")),
            make("tickcast-rings".into()),
        ];
        sweep_folders(all.path());
        assert!(!left.exists());
        assert!(others.iter().all(|folder| folder.exists()));
    }
}
