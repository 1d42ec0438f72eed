//! Small files of /proc and /sys, read with bounds.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use tickcast_transport::host::files::{open_input, read_at_most};

/// Longest file that is read: `/proc/interrupts` of a host with hundreds of cores has some MiB.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Most entries of a directory: a host has at most a few ten thousand processes and interrupts.
const ENTRIES_MAX: usize = 1 << 16;
/// Highest number of a core in a list. The kernel supports fewer.
const CORES_MAX: usize = 1 << 14;
/// Longest word of a file in a report, in characters.
const WORD_LEN_MAX: usize = 64;

/// The files below a root: this host's, or a faked tree. A file that is missing, too long, or of another kind
/// than a regular one counts as not reported.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Returns the files of this host.
    pub(crate) fn of_this_host() -> Self {
        Self { root: "/".into() }
    }

    /// Returns whether these are the files of this host.
    pub(crate) fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the place of an absolute path of the host.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the contents of a file, with the replacement character for what is not UTF-8.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let path = self.at(path);
        let file = open_input(&path).ok()?;
        let bytes = read_at_most(&file, &path, FILE_BYTES_MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the first line of a file, trimmed and cut to 64 characters.
    pub(crate) fn word(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.chars().take(WORD_LEN_MAX).collect())
    }

    /// Returns the number that a file holds alone.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Returns the list of cores that a file holds.
    pub(crate) fn cores(&self, path: &str) -> Option<BTreeSet<usize>> {
        cores_of(self.text(path)?.trim())
    }

    /// Returns the longest time in microseconds that programs allow cores to wake: 2 s if none limits it.
    /// Reading the device limits nothing.
    pub(crate) fn latency_limit_us(&self) -> Option<u64> {
        let mut file = fs::File::open(self.at("/dev/cpu_dma_latency")).ok()?;
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).ok()?;
        i32::from_ne_bytes(bytes).try_into().ok()
    }

    /// Returns the value of a name in a file of lines `name: value`.
    pub(crate) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
        Some(value.trim().to_owned())
    }

    /// Returns the names in a directory, sorted. Names that are not UTF-8 are left out.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else {
            return Vec::new();
        };
        let entries = entries.take(ENTRIES_MAX).flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Returns whether there is a file or directory of this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Returns the names of all running processes.
    pub(crate) fn processes(&self) -> BTreeSet<String> {
        let names = self.names("/proc").into_iter();
        let ids = names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
        ids.filter_map(|id| self.word(&format!("/proc/{id}/comm")))
            .collect()
    }

    /// Returns the value of a counter in a file of the form of `/proc/net/snmp`: pairs of lines with a
    /// group's names, then its values.
    pub(crate) fn counter(&self, path: &str, group: &str, name: &str) -> Option<u64> {
        let text = self.text(path)?;
        let prefix = format!("{group}: ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let (names, values) = (lines.next()?, lines.next()?);
        let at = names.split_ascii_whitespace().position(|it| it == name)?;
        values.split_ascii_whitespace().nth(at)?.parse().ok()
    }

    /// Returns a counter of an interface.
    pub(crate) fn statistic(&self, interface: &str, name: &str) -> Option<u64> {
        self.number(&of_interface(interface, &format!("statistics/{name}"))?)
    }
}

/// Returns the path of an interface's file; `None` if the name can't be that of an interface.
pub(crate) fn of_interface(interface: &str, file: &str) -> Option<String> {
    let is_name = !interface.contains('/') && !matches!(interface, "" | "." | "..");
    is_name.then(|| format!("/sys/class/net/{interface}/{file}"))
}

/// Parses a list of cores as the kernel writes it: `0-3,8`. `None` if it is none, or names cores beyond
/// 16383.
pub(crate) fn cores_of(list: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CORES_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Writes a list of cores as the kernel does: `0-3,8`.
pub(crate) fn list_of(cores: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let runs = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Contents that no kernel writes.
#[cfg(test)]
pub(crate) const ODD: [&str; 7] = [
    "",
    "\n",
    "-1\n",
    "99999999999999999999999\n",
    "0-99999999\n",
    ":\n::\n \n",
    "\u{fffd}\u{1b}[2J\n",
];

/// A faked tree of /proc and /sys, in a directory of its own.
#[cfg(test)]
pub(crate) struct FakedTree {
    folder: tempfile::TempDir,
}

#[cfg(test)]
impl FakedTree {
    /// Creates a tree of these files.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tree = Self { folder };
        for (path, text) in files {
            tree.put(path, text);
        }
        tree
    }

    /// Writes a file, also in place of another.
    pub(crate) fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.tree().at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Returns the tree for checks.
    pub(crate) fn tree(&self) -> Tree {
        Tree {
            root: self.folder.path().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_are_read_and_written_as_the_kernel_does() {
        let cores = cores_of("0-3,8,10-11").unwrap();
        assert_eq!(cores, BTreeSet::from([0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list_of(&cores), "0-3,8,10-11");
        assert_eq!(cores_of(""), Some(BTreeSet::new()));
        assert_eq!(list_of(&BTreeSet::new()), "");
        for wrong in ["a", "1-", "-1", "0-99999999999", "1-2-3", "0x1"] {
            assert_eq!(cores_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn files_that_are_odd_count_as_not_reported() {
        let faked = FakedTree::of(&[("/proc/empty", ""), ("/proc/word", " a \nb\n")]);
        faked.put("/proc/bytes", b"\xff\xfe\n");
        faked.put("/proc/long", vec![b'1'; FILE_BYTES_MAX as usize + 1]);
        faked.put("/proc/folder/file", "1");
        let tree = faked.tree();
        let pipe = tree.at("/proc/pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in ["/proc/long", "/proc/folder", "/proc/pipe", "/proc/none"] {
            assert_eq!(tree.text(path), None, "{path}");
        }
        assert_eq!(tree.word("/proc/word").as_deref(), Some("a"));
        assert_eq!(tree.word("/proc/empty"), None);
        assert_eq!(
            tree.word("/proc/bytes").as_deref(),
            Some("\u{fffd}\u{fffd}")
        );
        assert_eq!(tree.number("/proc/word"), None);
        assert_eq!(tree.names("/proc/word"), Vec::<String>::new());
        assert_eq!(tree.statistic("../..", "rx_dropped"), None);
    }

    #[test]
    fn counters_are_found_by_group_and_name() {
        let text = "Ip: Forwarding InReceives\nIp: 1 55\nUdp: A RcvbufErrors\nUdp: 1 7\nTcp: A\n";
        let faked = FakedTree::of(&[("/proc/net/snmp", text)]);
        let counter = |group, name| faked.tree().counter("/proc/net/snmp", group, name);
        assert_eq!(counter("Ip", "InReceives"), Some(55));
        assert_eq!(counter("Udp", "RcvbufErrors"), Some(7));
        assert_eq!(counter("Udp", "InReceives"), None);
        assert_eq!(counter("Tcp", "A"), None);
    }
}
