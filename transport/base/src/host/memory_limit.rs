//! Memory that this process can still have, limited by the host and by its control groups. Checked before
//! a ring takes its pages, because an overdraft makes the kernel kill a process.

use std::fs::read_to_string;
use std::path::Path;

/// Returns the bytes available without swapping or hitting a limit: the least of `MemAvailable` in
/// `/proc/meminfo` and of the memory left in each control group (v2) of this process. `None` if the
/// operating system reports none of these.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    available_bytes_below(Path::new("/"))
}

/// Returns the bytes of [`available_bytes`], by the files of `/proc` and `/sys` below `root`.
#[must_use]
pub fn available_bytes_below(root: &Path) -> Option<u64> {
    let host = read_to_string(root.join("proc/meminfo")).ok();
    let host = host.and_then(|text| field(&text, "MemAvailable:")?.checked_mul(1024));
    let groups = read_to_string(root.join("proc/self/cgroup")).ok();
    let group = groups.and_then(|text| left_in_groups(&root.join("sys/fs/cgroup"), &text));
    host.into_iter().chain(group).min()
}

/// Returns the number of a name, in text of one `name number` per line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut found = lines.find_map(|mut words| (words.next()? == name).then_some(words))?;
    found.next()?.parse().ok()
}

/// Returns the least memory left in the group that `/proc/self/cgroup` names and in its ancestors.
fn left_in_groups(root: &Path, groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own = root.join(path);
    let up = own.ancestors().take_while(|path| path.starts_with(root));
    up.filter_map(left_in_group).min()
}

/// Returns limit minus use, if the group has a limit. Cached file pages count as use there, but do not
/// count here, because they are reclaimed on demand (as in `MemAvailable`).
fn left_in_group(path: &Path) -> Option<u64> {
    let read = |name: &str| read_to_string(path.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = ["active_file", "inactive_file"].map(|name| field(&stat, name).unwrap_or(0));
    let cached = cached[0].saturating_add(cached[1]);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, remove_dir_all, write};

    use super::*;

    #[test]
    fn meminfo_field_is_matched_by_full_name() {
        let text = "MemTotal:       24684084 kB\nMemAvailableX: 3 kB\n\nMemAvailable:   17 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(17));
        assert_eq!(field(text, "MemFree:"), None);
        assert_eq!(field("MemFree:", "MemFree:"), None);
        assert_eq!(field("MemFree: lots", "MemFree:"), None);
    }

    #[test]
    fn tightest_group_upward_decides_without_cache() {
        let root = std::env::temp_dir().join(format!("tickcast-groups-{}", std::process::id()));
        let put = |path: &str, files: &[(&str, &str)]| {
            create_dir_all(root.join(path)).unwrap();
            for (name, text) in files {
                write(root.join(path).join(name), text).unwrap();
            }
        };
        put("", &[("memory.current", "5000\n")]);
        put(
            "a",
            &[("memory.max", "1000\n"), ("memory.current", "900\n")],
        );
        put(
            "a",
            &[("memory.stat", "anon 1\nactive_file 30\ninactive_file 70\n")],
        );
        put(
            "a/b",
            &[("memory.max", "max\n"), ("memory.current", "900\n")],
        );
        put(
            "a/c",
            &[("memory.max", "100\n"), ("memory.current", "130\n")],
        );
        assert_eq!(left_in_groups(&root, "4:memory:/x\n0::/a/b\n"), Some(200));
        assert_eq!(left_in_groups(&root, "0::/a/c\n"), Some(0));
        assert_eq!(left_in_groups(&root, "0::/\n"), None);
        assert_eq!(left_in_groups(&root, "4:memory:/a\n"), None);
        // A group that is not visible from here sets no known limit.
        assert_eq!(left_in_groups(&root, "0::/../a\n"), None);
        remove_dir_all(&root).unwrap();
    }

    #[test]
    fn available_memory_of_host_is_plausible() {
        let Some(available) = available_bytes() else {
            println!("SKIPPED: this system tells nothing of its memory");
            return;
        };
        assert!((1 << 20..1 << 50).contains(&available), "{available}");
    }
}
