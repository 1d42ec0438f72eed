//! Checks of control groups: CPU time, cores, memory.
//!
//! The groups are those of this process. A service has its own, so run the doctor within its unit or
//! container to check that one.

use std::collections::BTreeSet;

use super::super::check::{Check, Fix, Subject};
use super::wanted::Wanted;
use crate::commands::tree::{Tree, list_of};

/// Longest chain of groups that is followed upwards.
const DEPTH_MAX: usize = 32;
const ROOT: &str = "/sys/fs/cgroup";

/// Runs all checks of control groups.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    let groups = Groups::of(tree);
    vec![
        groups.cpu_time(tree, wanted),
        groups.cores(tree, wanted),
        groups.memory(tree, wanted),
    ]
}

/// The control groups (version 2) of this process: its own first, then those above it. Empty if the system
/// does not report them.
struct Groups(Vec<String>);

impl Groups {
    fn of(tree: &Tree) -> Self {
        let text = tree.text("/proc/self/cgroup").unwrap_or_default();
        let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
            return Self(Vec::new());
        };
        // A path with `..` names a group that is not visible from here.
        if path.split('/').any(|part| part == "..") {
            return Self(vec![ROOT.to_owned()]);
        }
        let mut all = Vec::new();
        let mut path = format!("{ROOT}/{path}");
        while path.len() > ROOT.len() && all.len() < DEPTH_MAX {
            path.truncate(path.trim_end_matches('/').len());
            let above = path.rfind('/').unwrap_or(0);
            if path.len() > ROOT.len() {
                all.push(path.clone());
            }
            path.truncate(above);
        }
        all.push(ROOT.to_owned());
        Self(all)
    }

    /// Returns whether the system reports the groups of this process.
    const fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Reports the tightest quota of CPU time.
    fn cpu_time(&self, tree: &Tree, wanted: &Wanted) -> Check {
        let id = Subject::CpuQuota;
        let (mut quotas, mut is_odd) = (Vec::new(), !self.are_known());
        for group in &self.0 {
            let path = format!("{group}/cpu.max");
            let Some(line) = tree.word(&path) else {
                continue;
            };
            match cores_of_quota(&line) {
                Some(cores) => quotas.push((cores, path, line)),
                None => is_odd |= !line.starts_with("max "),
            }
        }
        let tightest = quotas.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((cores, path, line)) = tightest else {
            return no_limit(id, is_odd);
        };
        let found = format!("{cores:.2} cores' time in each period ({path})");
        let why = "the kernel stops all threads of the group for the rest of each period once its \
                   time is used up: up to 100 ms without a datagram";
        let fix = Fix::write(&path, "max", &line);
        if wanted.spins {
            let remedy = "remove the quota (CPUQuota= of the unit, or the container's cpus), because \
                          a spinning thread always uses it up";
            return Check::warning(id, found, why, remedy).fixed_by([fix]);
        }
        let remedy = "remove the quota (CPUQuota= of the unit, or the container's cpus)";
        Check::note(id, found, why, remedy).fixed_by([fix])
    }

    /// Reports pinned cores that a group does not grant.
    fn cores(&self, tree: &Tree, wanted: &Wanted) -> Check {
        let id = Subject::CpuSet;
        let sets = self.0.iter().filter_map(|group| {
            let cores = tree.cores(&format!("{group}/cpuset.cpus.effective"))?;
            (!cores.is_empty()).then_some((group, cores))
        });
        let Some((group, granted)) = sets.min_by_key(|(_, cores)| cores.len()) else {
            return no_limit(id, !self.are_known());
        };
        let found = format!("{group} grants cores {}", list_of(&granted));
        let barred: BTreeSet<_> = wanted.cores().difference(&granted).copied().collect();
        if barred.is_empty() {
            return Check::ok(id, found);
        }
        let path = format!("{group}/cpuset.cpus");
        let all: BTreeSet<_> = granted.union(&barred).copied().collect();
        let before = list_of(&tree.cores(&path).unwrap_or_default());
        Check::error(
            id,
            format!(
                "{found}, and this config pins threads to {}",
                list_of(&barred)
            ),
            "a thread can't be pinned outside its control group, so the publisher refuses to start",
            "grant them (AllowedCPUs= of the unit, or the container's cpuset)",
        )
        .fixed_by([Fix::write(&path, &list_of(&all), &before)])
    }

    /// Reports a limit of memory below the rings.
    fn memory(&self, tree: &Tree, wanted: &Wanted) -> Check {
        let id = Subject::MemoryLimit;
        let (mut limits, mut is_odd) = (Vec::new(), !self.are_known());
        for group in &self.0 {
            let path = format!("{group}/memory.max");
            match tree.number(&path) {
                Some(bytes) => limits.push((bytes, path)),
                None => is_odd |= tree.word(&path).is_some_and(|word| word != "max"),
            }
        }
        let Some((bytes, path)) = limits.into_iter().min() else {
            return no_limit(id, is_odd);
        };
        let found = format!("at most {} MiB ({path})", bytes >> 20);
        if !wanted.is_configured || bytes >= wanted.ring_bytes {
            return Check::ok(id, found);
        }
        Check::error(
            id,
            format!(
                "{found}; the rings of this config take {} MiB",
                wanted.ring_bytes.div_ceil(1 << 20)
            ),
            "the kernel kills a process that exceeds the limit of its group",
            "raise it (MemoryMax= of the unit, or the container's memory), or give each channel fewer \
             slots",
        )
        .fixed_by([Fix::write(&path, "max", &bytes.to_string())])
    }
}

/// Returns the number of cores whose time a group has in each period: 0.5 for `50000 100000`. `None` for
/// `max 100000`, and for what is no quota.
fn cores_of_quota(line: &str) -> Option<f64> {
    let (quota, period) = line.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Returns the result for groups without a limit, or with files that make no sense.
fn no_limit(id: Subject, is_odd: bool) -> Check {
    if is_odd {
        return Check::unknown(
            id,
            "this system does not report the limits of control groups",
        );
    }
    Check::ok(id, "no limit")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    fn in_group(files: &[(&str, &str)]) -> FakedTree {
        let faked = FakedTree::of(files);
        faked.put("/proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
        faked
    }

    fn spinning() -> Wanted {
        wanted(json!({ "threads": { "idle": "spin", "feed_core": 2, "publish_core": 3 } }))
    }

    fn run(check: &Check) -> (&str, &str) {
        let fix = check.commands().first().unwrap();
        (fix.run(), fix.undo())
    }

    #[test]
    fn groups_are_followed_to_the_root() {
        let groups =
            |text: &str| Groups::of(&FakedTree::of(&[("/proc/self/cgroup", text)]).tree()).0;
        let of = |paths: &[&str]| -> Vec<String> {
            paths.iter().map(|path| format!("{ROOT}{path}")).collect()
        };
        assert_eq!(groups("0::/a/b\n"), of(&["/a/b", "/a", ""]));
        assert_eq!(groups("0::/a/\n"), of(&["/a", ""]));
        assert_eq!(groups("0::/\n"), of(&[""]));
        assert_eq!(groups("0::/../../etc\n"), of(&[""]));
        assert_eq!(groups("4:memory:/a\n"), of(&[]));
        let deep = format!("0::/{}\n", "a/".repeat(1_000));
        assert!(groups(&deep).len() <= DEPTH_MAX + 1);
    }

    #[test]
    fn cpu_quota_of_a_group_is_reported() {
        let faked = in_group(&[
            ("/sys/fs/cgroup/a/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
        ]);
        let check = |wanted: &Wanted| Groups::of(&faked.tree()).cpu_time(&faked.tree(), wanted);
        let finding = check(&spinning());
        assert_eq!(finding.verdict(), Verdict::Warning);
        assert!(finding.found().starts_with("0.50 cores"), "{finding}");
        let expected = (
            "echo max > /sys/fs/cgroup/a/cpu.max",
            "echo '50000 100000' > /sys/fs/cgroup/a/cpu.max",
        );
        assert_eq!(run(&finding), expected);
        assert_eq!(check(&Wanted::default()).verdict(), Verdict::Note);
        faked.put("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
        let tightest = check(&spinning());
        assert!(tightest.found().starts_with("0.50 cores"), "{tightest}");
        faked.put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        for (text, verdict) in [
            ("max 100000\n", Verdict::Ok),
            ("1 0\n", Verdict::Unknown),
            ("many\n", Verdict::Unknown),
        ] {
            faked.put("/sys/fs/cgroup/a/cpu.max", text);
            assert_eq!(check(&spinning()).verdict(), verdict, "{text}");
        }
    }

    #[test]
    fn cores_that_a_group_withholds_are_reported() {
        let faked = in_group(&[
            ("/sys/fs/cgroup/a/b/cpuset.cpus.effective", "0-2\n"),
            ("/sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
        ]);
        let check = |wanted: &Wanted| Groups::of(&faked.tree()).cores(&faked.tree(), wanted);
        let finding = check(&spinning());
        assert_eq!(finding.verdict(), Verdict::Error);
        assert!(finding.found().ends_with("pins threads to 3"), "{finding}");
        assert_eq!(run(&finding).0, "echo 0-3 > /sys/fs/cgroup/a/b/cpuset.cpus");
        assert_eq!(check(&Wanted::default()).verdict(), Verdict::Ok);
        faked.put("/sys/fs/cgroup/a/b/cpuset.cpus.effective", "2-3\n");
        assert_eq!(check(&spinning()).verdict(), Verdict::Ok);
    }

    #[test]
    fn memory_limit_below_the_rings_is_reported() {
        let faked = in_group(&[("/sys/fs/cgroup/a/memory.max", "1048576\n")]);
        let check = |wanted: &Wanted| Groups::of(&faked.tree()).memory(&faked.tree(), wanted);
        let finding = check(&spinning());
        assert_eq!(finding.verdict(), Verdict::Error);
        let expected = (
            "echo max > /sys/fs/cgroup/a/memory.max",
            "echo 1048576 > /sys/fs/cgroup/a/memory.max",
        );
        assert_eq!(run(&finding), expected);
        assert_eq!(check(&Wanted::default()).verdict(), Verdict::Ok);
        faked.put("/sys/fs/cgroup/a/memory.max", "1073741824\n");
        assert_eq!(check(&spinning()).verdict(), Verdict::Ok);
        faked.put("/sys/fs/cgroup/a/memory.max", "max\n");
        assert_eq!(check(&spinning()).verdict(), Verdict::Ok);
        faked.put("/sys/fs/cgroup/a/memory.max", "much\n");
        assert_eq!(check(&spinning()).verdict(), Verdict::Unknown);
    }
}
