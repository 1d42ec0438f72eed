//! Removes leftovers of killed runs when the next run begins: network namespaces, file systems, and folders
//! in memory. Each name contains the process id of its run. Leftovers of a live process stay untouched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::network::{self, NAMESPACE};

/// Prefix of names of folders. The process id follows.
const FOLDER: &str = "tickcast-bench-";

/// Returns this process's name of a file system that it mounts.
pub(crate) fn file_system() -> String {
    format!("{}disk", own(NAMESPACE))
}

/// Returns the prefix of this process's folder names.
pub(crate) fn folder_prefix() -> String {
    own(FOLDER)
}

/// Returns the folder whose files are in memory.
pub(crate) fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        return shm.into();
    }
    std::env::temp_dir()
}

/// Removes all leftovers.
///
/// Call this before this process creates anything of the kind. A leftover with this process's id then
/// belongs to an earlier process with the same id.
pub(crate) fn sweep() {
    let namespaces = network::namespaces().into_iter();
    for name in namespaces.filter(|name| is_left(name, NAMESPACE)) {
        if network::remove(&name).is_ok() {
            tell(&name);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    left_file_systems(&mounts).for_each(|at| sweep_file_system(&at));
    sweep_folders(&memory());
}

/// Returns the mount points of leftover file systems in the kernel's list of mounts.
fn left_file_systems(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let at = |line: &str| {
        let mut words = line.split(' ');
        let (name, at) = (words.next()?, words.next()?);
        // The kernel writes a space this way.
        is_left(name, NAMESPACE).then(|| at.replace("\\040", " ").into())
    };
    mounts.lines().filter_map(at)
}

/// Unmounts a file system and removes the temporary folder around it. A folder that the user named is kept,
/// because it holds logs.
fn sweep_file_system(at: &Path) {
    let unmounted = Command::new("umount").arg("-l").arg(at).output();
    if !unmounted.is_ok_and(|it| it.status.success()) {
        return;
    }
    tell(&at.display().to_string());
    let folder = at
        .parent()
        .filter(|it| it.starts_with(std::env::temp_dir()));
    let is_ours = |folder: &&Path| {
        let name = folder.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("tickcast-chaos-")
    };
    if let Some(folder) = folder.filter(is_ours) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn sweep_folders(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Removing a folder of another user fails, and the folder stays.
        if is_left(&name, FOLDER) && fs::remove_dir_all(entry.path()).is_ok() {
            tell(&name);
        }
    }
}

fn tell(name: &str) {
    eprintln!("lab: {name} was left by a run that was killed, and is taken away");
}

fn own(kind: &str) -> String {
    format!("{kind}{}-", std::process::id())
}

/// Returns whether the process whose id is in this name is gone.
fn is_left(name: &str, kind: &str) -> bool {
    let process = || name.strip_prefix(kind)?.split_once('-')?.0.parse().ok();
    process().is_some_and(|process: u32| {
        process == std::process::id() || !Path::new(&format!("/proc/{process}")).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greater than any process id.
    const NOBODY: u32 = u32::MAX;

    #[test]
    fn leftover_of_ended_process_is_recognized() {
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
    fn file_system_of_dead_process_is_left() {
        let mounts = format!(
            "tickcast-{NOBODY}-disk /tmp/tickcast-chaos-a/disk tmpfs rw 0 0\n\
             tickcast-1-disk /tmp/tickcast-chaos-b/disk tmpfs rw 0 0\n\
             tmpfs /tmp tmpfs rw 0 0\n\
             tickcast-{NOBODY}-disk /tmp/with\\040space/disk tmpfs rw 0 0\n"
        );
        let left: Vec<PathBuf> = left_file_systems(&mounts).collect();
        let expected = ["/tmp/tickcast-chaos-a/disk", "/tmp/with space/disk"];
        assert_eq!(left, expected.map(PathBuf::from));
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
