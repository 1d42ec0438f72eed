//! Checks of memory: available, huge, pinned, shared.

use std::io;
use std::path::{Path, PathBuf};

use tickcast_transport::host::memory_limit::available_bytes_below;

use super::super::check::{Check, Fix, Subject};
use super::wanted::Wanted;
use crate::commands::tree::Tree;

/// Below this, there is no room for two rings of the default size (92 MiB each).
const MEMORY_MIN_BYTES: u64 = 256 << 20;
/// Below this, no ring can be pinned.
const MEMLOCK_MIN_BYTES: u64 = 64 << 20;
/// The bit of `CapEff` that allows a process to pin memory beyond its limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
const SHARED_MEMORY: &str = "/dev/shm";

/// Runs all checks of memory.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    vec![
        available(tree, wanted),
        transparent_huge_pages(tree),
        huge_pages(tree, wanted),
        pinned(tree, wanted),
        shared_memory(Shared::of(tree), wanted),
    ]
}

fn available(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Memory;
    let Some(bytes) = available_bytes_below(tree.root()) else {
        return Check::unknown(id, "this system does not report the available memory");
    };
    let (needed, found) = if wanted.is_configured {
        let rings = wanted.ring_bytes;
        let found = format!(
            "{} MiB are available; the rings of this config take {} MiB",
            bytes >> 20,
            rings.div_ceil(1 << 20)
        );
        (rings, found)
    } else {
        (
            MEMORY_MIN_BYTES,
            format!("{} MiB are available", bytes >> 20),
        )
    };
    if bytes >= needed {
        return Check::ok(id, found);
    }
    Check::error(
        id,
        found,
        "a channel's ring takes slots x slot_len of memory from the start",
        "free memory, or give each channel fewer slots",
    )
}

fn transparent_huge_pages(tree: &Tree) -> Check {
    let id = Subject::TransparentHugePages;
    const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let mode = tree.word(PATH).unwrap_or_default();
    let mode = mode.split_once('[').and_then(|(_, it)| it.split_once(']'));
    match mode.map(|(mode, _)| mode) {
        Some("always") => Check::note(
            id,
            "always",
            "the kernel stops threads to assemble huge pages, for milliseconds, also in the middle \
             of a burst",
            "",
        )
        .fixed_by([Fix::write(PATH, "madvise", "always")]),
        Some(mode @ ("madvise" | "never")) => Check::ok(id, mode),
        _ => Check::unknown(id, "this system does not report transparent huge pages"),
    }
}

/// A mounted hugetlbfs.
struct HugeMount {
    at: PathBuf,
    page_kib: u64,
}

/// Returns all mounted hugetlbfs, the deepest first.
fn huge_mounts(tree: &Tree) -> Vec<HugeMount> {
    let text = tree.text("/proc/self/mountinfo").unwrap_or_default();
    let default_kib = tree
        .field("/proc/meminfo", "Hugepagesize")
        .and_then(|size| size.split_ascii_whitespace().next()?.parse().ok());
    let mut mounts: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let (own, file_system) = line.split_once(" - ")?;
            let mut file_system = file_system.split_ascii_whitespace();
            if file_system.next()? != "hugetlbfs" {
                return None;
            }
            let options = file_system.nth(1).unwrap_or_default().split(',');
            let mut sizes = options.filter_map(|option| option.strip_prefix("pagesize="));
            let page_kib = sizes.next().and_then(kib_of).or(default_kib)?;
            let at = own.split_ascii_whitespace().nth(4)?.into();
            Some(HugeMount { at, page_kib })
        })
        .collect();
    mounts.sort_by_key(|mount| std::cmp::Reverse(mount.at.components().count()));
    mounts
}

/// Parses a page size such as `2M` into KiB.
fn kib_of(size: &str) -> Option<u64> {
    let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
    let shift = match unit {
        "K" => 0,
        "M" => 10,
        "G" => 20,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|kib| *kib > 0)
}

fn huge_pages(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::HugePages;
    let mounts = huge_mounts(tree);
    let mut needed: Option<(u64, u64)> = None;
    for (file, bytes) in &wanted.files {
        let mut above = mounts.iter().filter(|it| file.starts_with(&it.at));
        if let Some(HugeMount { page_kib, .. }) = above.next() {
            let pages = bytes.div_ceil(page_kib << 10);
            let (_, sum) = needed.get_or_insert((*page_kib, 0));
            *sum = sum.saturating_add(pages);
        }
    }
    let Some((page_kib, needed)) = needed else {
        let free = tree.field("/proc/meminfo", "HugePages_Free");
        let free: u64 = free.and_then(|it| it.parse().ok()).unwrap_or(0);
        if wanted.is_configured && free > 0 {
            return Check::note(
                id,
                format!("{free} are reserved and free, and this config has no ring on hugetlbfs"),
                "reserved pages are no memory for anything else",
                "put ring_dir or the path of a shm fan-out on hugetlbfs, or release the pages",
            );
        }
        return Check::ok(id, "none are needed");
    };
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{page_kib}kB");
    let path = format!("{folder}/nr_hugepages");
    let (free, total) = (
        tree.number(&format!("{folder}/free_hugepages")),
        tree.number(&path),
    );
    let (Some(free), Some(total)) = (free, total) else {
        return Check::unknown(
            id,
            format!(
                "this system does not report pages of {page_kib} KiB; this config needs {needed}"
            ),
        );
    };
    let found =
        format!("{free} of {page_kib} KiB are free; the rings of this config need {needed}");
    if free >= needed {
        return Check::ok(id, found);
    }
    let more = total.saturating_add(needed - free).to_string();
    Check::error(
        id,
        found,
        "the publisher can't create a ring on hugetlbfs without free pages for all of it",
        "reserve them at boot (hugepages= on the kernel's command line) if memory is too scattered",
    )
    .fixed_by([Fix::write(&path, &more, &total.to_string())])
}

/// Checks the limit of memory that a process may pin, where there is a reason to pin any.
fn pinned(tree: &Tree, wanted: &Wanted) -> Check {
    if wanted.is_configured || tree.has("/sys/class/infiniband") {
        return memlock(tree, wanted);
    }
    Check::ok(
        Subject::Memlock,
        "this host has no RDMA device, for which memory is pinned",
    )
}

/// Checks the limit of memory that a process may pin.
pub(in super::super) fn memlock(tree: &Tree, wanted: &Wanted) -> Check {
    let limits = tree.text("/proc/self/limits").unwrap_or_default();
    let status = tree.text("/proc/self/status").unwrap_or_default();
    memlock_of(&limits, &status, wanted)
}

fn memlock_of(limits: &str, status: &str, wanted: &Wanted) -> Check {
    let id = Subject::Memlock;
    if wanted.is_configured && wanted.pinned_bytes.is_none() {
        return Check::ok(id, "this config pins no memory");
    }
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    if capabilities.unwrap_or(0) & CAP_IPC_LOCK != 0 {
        return Check::ok(id, "this user may pin memory (CAP_IPC_LOCK)");
    }
    let why = "every ring and every receive buffer of RDMA is pinned: slots x slot_len, and receive \
               depth x (64 + MTU)";
    let raise = "raise the limit: `ulimit -l unlimited`, LimitMEMLOCK=infinity, or CAP_IPC_LOCK";
    let needed = wanted.pinned_bytes.unwrap_or(MEMLOCK_MIN_BYTES);
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => Check::ok(id, "unlimited"),
        Some((_, Ok(bytes))) if bytes >= needed => {
            let remedy = "check that their sum fits, or raise the limit: `ulimit -l unlimited`, \
                          LimitMEMLOCK=infinity";
            Check::note(id, format!("{bytes} bytes may be pinned"), why, remedy)
        }
        Some((_, Ok(soft))) => {
            let found = match wanted.pinned_bytes {
                Some(needed) => {
                    format!("only {soft} bytes may be pinned, and the rings take {needed}")
                }
                None => format!("only {soft} bytes may be pinned"),
            };
            Check::error(id, found, why, raise)
        }
        _ => Check::unknown(
            id,
            "this system does not report the limit; check `ulimit -l`",
        ),
    }
}

/// The tmpfs of shared memory.
struct Shared {
    created: io::Result<()>,
    /// Free and total bytes; `None` if it has no limit.
    space: Option<(u64, u64)>,
}

impl Shared {
    /// Creates a file without a name, and asks for the space.
    fn of(tree: &Tree) -> Self {
        let folder = tree.at(SHARED_MEMORY);
        let space = rustix::fs::statvfs(&folder).ok();
        let space = space.filter(|it| it.f_blocks > 0).map(|it| {
            let bytes = |blocks: u64| blocks.saturating_mul(it.f_frsize);
            (bytes(it.f_bavail), bytes(it.f_blocks))
        });
        Self {
            created: tempfile::tempfile_in(folder).map(drop),
            space,
        }
    }
}

fn shared_memory(shared: Shared, wanted: &Wanted) -> Check {
    let id = Subject::SharedMemory;
    let needed = (wanted.files.iter())
        .filter(|(path, _)| path.starts_with(Path::new(SHARED_MEMORY)))
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    if let Err(error) = shared.created {
        let found = format!("no file can be created in {SHARED_MEMORY}: {error}");
        let why = "it holds the rings of subscribers in the publisher's host, journals, and \
                   rings that outlive a publisher";
        let remedy = "in a container, mount the host's /dev/shm or a tmpfs of its own there";
        let mount = ["mount", "-t", "tmpfs", "tmpfs", SHARED_MEMORY];
        let fix = Fix::command(&mount, &["umount", SHARED_MEMORY]);
        let check = if needed > 0 {
            Check::error(id, found, why, remedy)
        } else {
            Check::note(id, found, why, remedy)
        };
        return check.fixed_by([fix]);
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    match shared.space {
        Some((free, total)) if needed > free => {
            let size = |bytes| format!("remount,size={}m", mib(bytes));
            let (more, before) = (size(total.saturating_add(needed - free)), size(total));
            let mount = |size: &str| {
                Fix::command(
                    &["mount", "-o", size, SHARED_MEMORY],
                    &["mount", "-o", &before, SHARED_MEMORY],
                )
            };
            Check::warning(
                id,
                format!(
                    "{} MiB are free in {SHARED_MEMORY}, and the files of this config take {} MiB",
                    free >> 20,
                    mib(needed)
                ),
                "a process that writes beyond the space of a tmpfs ends by SIGBUS; files of an \
                 earlier run may already be counted",
                "",
            )
            .fixed_by([mount(&more)])
        }
        Some((free, _)) => Check::ok(
            id,
            format!("{} MiB are free in {SHARED_MEMORY}", free >> 20),
        ),
        None => Check::ok(id, format!("files can be created in {SHARED_MEMORY}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    fn runs(check: &Check) -> Vec<&str> {
        check.commands().iter().map(Fix::run).collect()
    }

    #[test]
    fn memory_short_of_the_rings_is_reported() {
        let faked = FakedTree::of(&[("/proc/meminfo", "MemAvailable:   1048576 kB\n")]);
        let check = |wanted: &Wanted| available(&faked.tree(), wanted);
        let none = Wanted::default();
        assert_eq!(check(&none).verdict(), Verdict::Ok);
        let large = Wanted {
            is_configured: true,
            ring_bytes: 2 << 30,
            ..Wanted::default()
        };
        let finding = check(&large);
        assert_eq!(finding.verdict(), Verdict::Error);
        assert!(finding.found().contains("take 2048 MiB"), "{finding}");
        assert_eq!(check(&wanted(json!({}))).verdict(), Verdict::Ok);
        faked.put("/proc/meminfo", "MemAvailable:   1024 kB\n");
        assert_eq!(check(&none).verdict(), Verdict::Error);
        faked.put("/proc/meminfo", "MemAvailable: lots\n");
        assert_eq!(check(&large).verdict(), Verdict::Unknown);
    }

    #[test]
    fn transparent_huge_pages_for_all_are_reported() {
        const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
        let faked = FakedTree::of(&[]);
        for (text, verdict) in [
            ("[always] madvise never\n", Verdict::Note),
            ("always [madvise] never\n", Verdict::Ok),
            ("]always[\n", Verdict::Unknown),
            ("[often]\n", Verdict::Unknown),
        ] {
            faked.put(PATH, text);
            let check = transparent_huge_pages(&faked.tree());
            assert_eq!(check.verdict(), verdict, "{text}");
            assert_eq!(check.commands().is_empty(), verdict != Verdict::Note);
        }
    }

    #[test]
    fn huge_pages_short_of_the_rings_are_reported() {
        let mounts = "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=1k\n\
                      26 24 0:24 / /huge rw shared:1 - hugetlbfs none rw,pagesize=2M\nodd\n";
        let folder = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let (free, total) = (
            format!("{folder}/free_hugepages"),
            format!("{folder}/nr_hugepages"),
        );
        let faked = FakedTree::of(&[
            ("/proc/self/mountinfo", mounts),
            (
                "/proc/meminfo",
                "HugePages_Free:       3\nHugepagesize:  2048 kB\n",
            ),
            (&free, "3\n"),
            (&total, "10\n"),
        ]);
        let rings = |path: &str, mib: u64| Wanted {
            is_configured: true,
            files: vec![(path.into(), mib << 20)],
            ..Wanted::default()
        };
        let check = huge_pages(&faked.tree(), &rings("/huge/ring", 9));
        assert_eq!(check.verdict(), Verdict::Error, "{check}");
        assert_eq!(runs(&check), [format!("echo 12 > {total}")]);
        assert_eq!(check.commands()[0].undo(), format!("echo 10 > {total}"));
        let verdict = |wanted| huge_pages(&faked.tree(), &wanted).verdict();
        assert_eq!(verdict(rings("/huge/ring", 6)), Verdict::Ok);
        faked.put(&free, "many\n");
        assert_eq!(verdict(rings("/huge/ring", 6)), Verdict::Unknown);
        let unused = verdict(rings("/dev/shm/ring", 9));
        assert_eq!(unused, Verdict::Note, "reserved for nothing");
        assert_eq!(verdict(Wanted::default()), Verdict::Ok);
        for size in ["", "M", "0M", "2T", "99999999999999999999G"] {
            assert_eq!(kib_of(size), None, "{size}");
        }
    }

    #[test]
    fn memlock_check_reads_limits_and_capabilities() {
        let limits =
            |soft: &str| format!("Limit Soft Hard\nMax locked memory {soft} {soft} bytes\n");
        let none = "Name:\ta\nCapEff:\t0000000000000000\n";
        let any = Wanted::default();
        let verdict = |soft, status| memlock_of(&limits(soft), status, &any).verdict();
        assert_eq!(verdict("unlimited", none), Verdict::Ok);
        assert_eq!(verdict("8388608", none), Verdict::Error);
        assert_eq!(verdict("134217728", none), Verdict::Note);
        let may = "CapEff:\t0000000000004000\n";
        assert_eq!(verdict("8388608", may), Verdict::Ok);
        assert_eq!(memlock_of("", none, &any).verdict(), Verdict::Unknown);
        assert_eq!(verdict("some", none), Verdict::Unknown);
        let rings = |pinned_bytes| Wanted {
            is_configured: true,
            pinned_bytes,
            ..Wanted::default()
        };
        let tree = FakedTree::of(&[("/proc/self/limits", &limits("8388608"))]);
        assert_eq!(pinned(&tree.tree(), &any).verdict(), Verdict::Ok);
        tree.put("/sys/class/infiniband/mlx5_0/node_type", "1\n");
        assert_eq!(pinned(&tree.tree(), &any).verdict(), Verdict::Error);
        let verdict = |wanted| memlock_of(&limits("134217728"), none, &wanted).verdict();
        assert_eq!(verdict(rings(Some(1 << 30))), Verdict::Error);
        assert_eq!(verdict(rings(Some(1 << 20))), Verdict::Note);
        assert_eq!(verdict(rings(None)), Verdict::Ok);
    }

    #[test]
    fn shared_memory_without_room_is_reported() {
        let shared = |created, space| Shared { created, space };
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let records = Wanted {
            files: vec![
                ("/dev/shm/records".into(), 100 << 20),
                ("/x".into(), 1 << 40),
            ],
            ..Wanted::default()
        };
        let none = Wanted::default();
        let check = shared_memory(shared(denied(), None), &none);
        assert_eq!(check.verdict(), Verdict::Note);
        assert_eq!(runs(&check), ["mount -t tmpfs tmpfs /dev/shm"]);
        let check = shared_memory(shared(denied(), None), &records);
        assert_eq!(check.verdict(), Verdict::Error);
        let check = shared_memory(shared(Ok(()), Some((50 << 20, 64 << 20))), &records);
        assert_eq!(check.verdict(), Verdict::Warning);
        assert_eq!(runs(&check), ["mount -o remount,size=114m /dev/shm"]);
        assert_eq!(
            check.commands()[0].undo(),
            "mount -o remount,size=64m /dev/shm"
        );
        for space in [None, Some((200 << 20, 300 << 20))] {
            let check = shared_memory(shared(Ok(()), space), &records);
            assert_eq!(check.verdict(), Verdict::Ok, "{check}");
        }
    }
}
