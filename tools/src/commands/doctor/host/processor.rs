//! Checks of the processor: cores, isolation, frequency, sleep states, SMT, interrupts, kernel threads.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_tools::support::plain::listed;

use super::super::check::{Check, Fix, Subject};
use super::wanted::{Pinned, Wanted};
use crate::commands::tree::{Tree, list_of};

/// Enough for a publisher and a few subscribers that each spin on a core.
const CORES_ENOUGH: usize = 4;
/// Longest time to leave a sleep state, in microseconds. A datagram takes about as long from socket to
/// socket on one switch, so a longer one would be the largest part of the latency.
const EXIT_LATENCY_MAX_US: u64 = 10;
/// Interrupts that are named in words; the commands name all.
const NAMED_MAX: usize = 3;
/// Most interrupts that get a command.
const INTERRUPTS_MAX: usize = 512;

/// Reason why a thread must be able to run on its core.
const REFUSED: &str =
    "the publisher refuses to start with this config, because the thread can't run there";

const CPU: &str = "/sys/devices/system/cpu";
/// Governors of the kernel (Documentation/admin-guide/pm/cpufreq.rst).
const GOVERNORS: [&str; 6] = [
    "performance",
    "powersave",
    "ondemand",
    "conservative",
    "schedutil",
    "userspace",
];

/// Runs all checks of the processor.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    vec![
        cores(tree, wanted),
        isolation(tree, wanted),
        governor(tree, wanted),
        idle_states(tree, wanted),
        siblings(tree, wanted),
        interrupts(tree, wanted),
        kdamond(tree),
    ]
}

/// Returns the cores that are online; empty if the system does not report them.
fn online(tree: &Tree) -> BTreeSet<usize> {
    tree.cores(&format!("{CPU}/online")).unwrap_or_default()
}

/// Returns the cores to judge: those of the config's threads, or all that are online.
fn judged(tree: &Tree, wanted: &Wanted) -> BTreeSet<usize> {
    if wanted.pinned.is_empty() {
        online(tree)
    } else {
        wanted.cores()
    }
}

fn cores(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Cores;
    let allowed = tree.field("/proc/self/status", "Cpus_allowed_list");
    let allowed = allowed.and_then(|list| crate::commands::tree::cores_of(&list));
    let Some(mut allowed) = allowed.filter(|cores| !cores.is_empty()) else {
        return Check::unknown(id, "this system does not report the cores of this process");
    };
    // The list of a process also has cores that are off, and those that the board has room for.
    let online = online(tree);
    if !online.is_empty() {
        if let Some(off) = wanted.pinned.iter().find(|it| !online.contains(&it.core)) {
            return core_off(tree, off, &online);
        }
        allowed.retain(|core| online.contains(core));
    }
    let may_use = format!(
        "this process may use {}: {}",
        allowed.len(),
        list_of(&allowed)
    );
    let barred = wanted.pinned.iter().find(|it| !allowed.contains(&it.core));
    if let Some(barred) = barred {
        return Check::error(
            id,
            format!("{} is {}, and {may_use}", barred.setting, barred.core),
            REFUSED,
            format!(
                "choose cores of this list, or start the publisher with `taskset -c {}` or \
                 CPUAffinity= in its unit",
                list_of(&wanted.cores())
            ),
        );
    }
    let mut seen = BTreeMap::new();
    for pinned in &wanted.pinned {
        if let Some(other) = seen.insert(pinned.core, pinned.setting) {
            return Check::warning(
                id,
                format!("{other} and {} are both {}", pinned.setting, pinned.core),
                "threads on one core wait for each other, for milliseconds where one of them spins",
                "give each thread a core of its own",
            );
        }
    }
    if wanted.spins && wanted.threads > allowed.len() {
        return Check::warning(
            id,
            format!(
                "{} threads of this config spin, and {may_use}",
                wanted.threads
            ),
            "threads that spin on one core hold each other up for whole time slices of the scheduler",
            "set threads.idle to \"yield\" or {\"sleep\": {\"us\": 50}}, or use a host with more cores",
        );
    }
    if !wanted.is_configured && allowed.len() < CORES_ENOUGH {
        return Check::note(
            id,
            may_use,
            "threads that share a core wait for each other, which raises the latency",
            "wait by `yield` or `sleep` instead of `spin` (threads.idle, --idle), or use a host with \
             more cores",
        );
    }
    Check::ok(id, may_use)
}

/// Reports a pinned core that is not online.
fn core_off(tree: &Tree, pinned: &Pinned, online: &BTreeSet<usize>) -> Check {
    let Pinned { setting, core } = pinned;
    let switch = format!("{CPU}/cpu{core}/online");
    let others = format!("choose one of {}", list_of(online));
    if tree.has(&switch) {
        let found = format!("{setting} is {core}, and that core is off");
        let check = Check::error(
            Subject::Cores,
            found,
            REFUSED,
            format!("{others}, or turn it on"),
        );
        return check.fixed_by([Fix::write(&switch, "1", "0")]);
    }
    let found = format!("{setting} is {core}, and this host has no such core");
    Check::error(Subject::Cores, found, REFUSED, others)
}

fn isolation(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Isolation;
    let listed = |file: &str| tree.cores(&format!("{CPU}/{file}"));
    let tickless = listed("nohz_full").unwrap_or_default();
    let Some(isolated) = listed("isolated") else {
        return Check::unknown(id, "this system does not report isolated cores");
    };
    let named = |cores: &BTreeSet<usize>| match cores.is_empty() {
        true => "none".to_owned(),
        false => list_of(cores),
    };
    let state = format!(
        "isolated cores: {}; without a timer tick: {}",
        named(&isolated),
        named(&tickless)
    );
    if !wanted.spins {
        return Check::ok(id, state);
    }
    if wanted.pinned.is_empty() {
        return Check::note(
            id,
            format!("{state}; this config pins no thread"),
            "its threads spin, so the scheduler moves them and other processes onto each other's cores",
            "set threads.feed_core, publish_core and repair_core to isolated cores",
        );
    }
    let bare: BTreeSet<_> = wanted.cores().difference(&isolated).copied().collect();
    if bare.is_empty() {
        return Check::ok(id, state);
    }
    let list = list_of(&wanted.cores());
    Check::note(
        id,
        format!(
            "{state}; cores {} of this config are not isolated",
            list_of(&bare)
        ),
        "the scheduler runs other threads on them, and each costs a spinning thread a time slice",
        format!(
            "add `isolcpus=managed_irq,domain,{list} nohz_full={list} rcu_nocbs={list}` to the \
             kernel's command line, and boot"
        ),
    )
}

fn governor(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Governor;
    let mut slow: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut is_reported = false;
    for core in judged(tree, wanted) {
        let path = format!("{CPU}/cpu{core}/cpufreq/scaling_governor");
        let governor = tree.word(&path);
        let Some(governor) = governor.filter(|it| GOVERNORS.contains(&it.as_str())) else {
            continue;
        };
        is_reported = true;
        if governor != "performance" {
            slow.entry(governor).or_default().insert(core);
        }
    }
    if !is_reported {
        return Check::unknown(
            id,
            "this system does not report one; on a virtual machine its host chooses the frequency",
        );
    }
    if slow.is_empty() {
        return Check::ok(id, "performance");
    }
    let found: Vec<_> = (slow.iter())
        .map(|(governor, cores)| format!("{governor} on cores {}", list_of(cores)))
        .collect();
    let fixes = slow.iter().map(|(governor, cores)| {
        let list = list_of(cores);
        let set = |governor| ["cpupower", "-c", &list, "frequency-set", "-g", governor];
        Fix::command(&set("performance"), &set(governor.as_str()))
    });
    Check::note(
        id,
        found.join(", "),
        "a core below its full frequency takes longer for the first ticks of each burst",
        "",
    )
    .fixed_by(fixes)
}

/// A sleep state that takes long to leave.
struct Deep {
    cores: BTreeSet<usize>,
    name: String,
    exit_us: u64,
}

fn idle_states(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::IdleStates;
    // A program that holds this file open limits the time for all cores.
    let held_us = tree.latency_limit_us();
    if let Some(us) = held_us.filter(|us| *us <= EXIT_LATENCY_MAX_US) {
        return Check::ok(
            id,
            format!("a program keeps all cores within {us} us of waking (/dev/cpu_dma_latency)"),
        );
    }
    let mut deep: Option<Deep> = None;
    let mut is_reported = false;
    for core in online(tree) {
        let states = format!("{CPU}/cpu{core}/cpuidle");
        for state in tree.names(&states) {
            let file = |name: &str| format!("{states}/{state}/{name}");
            let Some(exit_us) = tree.number(&file("latency")) else {
                continue;
            };
            is_reported = true;
            if exit_us <= EXIT_LATENCY_MAX_US || tree.number(&file("disable")) != Some(0) {
                continue;
            }
            let deepest = deep.get_or_insert_with(|| Deep {
                cores: BTreeSet::new(),
                name: String::new(),
                exit_us: 0,
            });
            deepest.cores.insert(core);
            if exit_us > deepest.exit_us {
                deepest.exit_us = exit_us;
                deepest.name = tree.word(&file("name")).unwrap_or(state);
            }
        }
    }
    let Some(deep) = deep else {
        if is_reported {
            let found = format!("all states are left within {EXIT_LATENCY_MAX_US} us");
            return Check::ok(id, found);
        }
        return Check::unknown(
            id,
            "this system reports no sleep states; a virtual machine's host may still have them",
        );
    };
    let why = if wanted.spins && !wanted.pinned.is_empty() {
        "the threads of this config spin and never sleep, but the cores that take the network's \
         interrupts do"
    } else {
        "a core that sleeps wakes so much later for a datagram or a timer"
    };
    let list = list_of(&deep.cores);
    let base = ["cpupower", "-c", &list, "idle-set"];
    // cpupower disables the states of this latency and above.
    let least = (EXIT_LATENCY_MAX_US + 1).to_string();
    let fix = Fix::command(
        &[&base[..], &["-D", &least]].concat(),
        &[&base[..], &["-E"]].concat(),
    );
    Check::note(
        id,
        format!(
            "cores {list} may enter states that take up to {} us to leave ({})",
            deep.exit_us, deep.name
        ),
        why,
        "",
    )
    .fixed_by([fix])
}

fn siblings(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Smt;
    match tree.number(&format!("{CPU}/smt/active")) {
        Some(0) => return Check::ok(id, "off"),
        Some(1) => {}
        _ => return Check::unknown(id, "this system does not report whether it is on"),
    }
    let (online, pinned) = (online(tree), wanted.cores());
    let mut busy = BTreeSet::new();
    for &core in &pinned {
        let path = format!("{CPU}/cpu{core}/topology/thread_siblings_list");
        let others = tree.cores(&path).unwrap_or_default();
        busy.extend(
            others
                .into_iter()
                .filter(|it| *it != core && online.contains(it)),
        );
    }
    if pinned.is_empty() {
        return Check::ok(
            id,
            "on; threads.*_core must not name both cores of a thread_siblings_list",
        );
    }
    let why = "two threads on one physical core share its execution units and caches, so each is \
               slower whenever the other works";
    let shared: BTreeSet<_> = busy.intersection(&pinned).copied().collect();
    if !shared.is_empty() {
        return Check::note(
            id,
            format!(
                "cores {} of this config share physical cores",
                list_of(&shared)
            ),
            why,
            "give the threads cores of different thread_siblings_list",
        );
    }
    if busy.is_empty() {
        return Check::ok(id, "the siblings of this config's cores are off");
    }
    let fixes = busy.iter().map(|core| {
        let path = format!("{CPU}/cpu{core}/online");
        Fix::write(&path, "0", "1")
    });
    let fixes: Vec<_> = fixes.collect();
    Check::note(
        id,
        format!(
            "cores {} are the siblings of this config's cores",
            list_of(&busy)
        ),
        why,
        "keep other work away from them, or turn them off",
    )
    .fixed_by(fixes)
}

/// Returns the name of each interrupt by its number.
fn names_of_interrupts(tree: &Tree) -> BTreeMap<String, String> {
    let text = tree.text("/proc/interrupts").unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let named = lines.filter_map(|(number, rest)| {
        // Others have a name in place of a number, and no affinity.
        number.trim().parse::<u32>().ok()?;
        let name = rest.split_ascii_whitespace().last()?;
        Some((number.trim().to_owned(), name.to_owned()))
    });
    named.collect()
}

fn interrupts(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::Interrupts;
    let pinned = wanted.cores();
    if pinned.is_empty() {
        return Check::ok(id, "no thread has a core of its own to keep free");
    }
    let others: BTreeSet<_> = online(tree).difference(&pinned).copied().collect();
    let names = names_of_interrupts(tree);
    if names.is_empty() {
        return Check::unknown(id, "this system does not report its interrupts");
    }
    let (mut found, mut fixes) = (Vec::new(), Vec::new());
    for number in tree.names("/proc/irq") {
        // The kernel lists an interrupt by name once a driver uses it.
        let Some(name) = names.get(&number) else {
            continue;
        };
        let file = |name: &str| format!("/proc/irq/{number}/{name}");
        let allowed = file("smp_affinity_list");
        let effective = tree.cores(&file("effective_affinity_list"));
        let effective = effective.filter(|cores| !cores.is_empty());
        let Some(cores) = effective.or_else(|| tree.cores(&allowed)) else {
            continue;
        };
        if cores.is_disjoint(&pinned) {
            continue;
        }
        found.push(format!("{number} ({name})"));
        if !others.is_empty() && fixes.len() < INTERRUPTS_MAX {
            let before = list_of(&tree.cores(&allowed).unwrap_or(cores));
            let stays = format!("interrupt {number} stays: its driver chose its cores");
            fixes.push(Fix::write(&allowed, &list_of(&others), &before).or_else_print(&stays));
        }
    }
    if found.is_empty() {
        return Check::ok(
            id,
            format!("no interrupt goes to cores {}", list_of(&pinned)),
        );
    }
    let list = list_of(&pinned);
    let remedy = if tree.processes().contains("irqbalance") {
        format!(
            "irqbalance runs and moves them again: set IRQBALANCE_BANNED_CPULIST={list}, and restart it"
        )
    } else {
        String::new()
    };
    Check::note(
        id,
        format!(
            "{} interrupts go to cores {list} of this config: {}",
            found.len(),
            listed(found.into_iter(), NAMED_MAX)
        ),
        "each interrupt stops the thread of that core for microseconds",
        remedy,
    )
    .fixed_by(fixes)
}

fn kdamond(tree: &Tree) -> Check {
    let id = Subject::Kdamond;
    let mut running = tree.processes();
    if running.is_empty() {
        return Check::unknown(id, "this system does not report its processes");
    }
    running.retain(|name| name.starts_with("kdamond"));
    if running.is_empty() {
        return Check::ok(id, "not running");
    }
    let mut fixes = Vec::new();
    for module in ["damon_reclaim", "damon_lru_sort", "damon_stat"] {
        let path = format!("/sys/module/{module}/parameters/enabled");
        if tree.word(&path).as_deref() == Some("Y") {
            fixes.push(Fix::write(&path, "N", "Y"));
        }
    }
    const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
    for number in tree.names(ADMIN) {
        let path = format!("{ADMIN}/{number}/state");
        if tree.word(&path).as_deref() == Some("on") {
            fixes.push(Fix::write(&path, "off", "on"));
        }
    }
    let remedy = match fixes.is_empty() {
        true => "end the program that started it, often a memory manager of the host",
        false => "",
    };
    let names: Vec<_> = running.into_iter().collect();
    Check::warning(
        id,
        format!("{} runs", names.join(", ")),
        "it unmaps pages to see whether they are used, so the ring's next access faults, and it \
         may reclaim pages that a repair needs",
        remedy,
    )
    .fixed_by(fixes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict::{Error, Note, Ok, Unknown, Warning};
    use crate::commands::tree::FakedTree;

    fn allowed(cores: &str) -> FakedTree {
        let status = format!("Name:\ta\nCpus_allowed:\tf\nCpus_allowed_list:\t{cores}\n");
        FakedTree::of(&[("/proc/self/status", &status)])
    }

    fn spinning() -> Wanted {
        wanted(json!({ "threads": { "idle": "spin", "feed_core": 2, "publish_core": 3 } }))
    }

    fn runs(check: &Check) -> Vec<&str> {
        check.commands().iter().map(Fix::run).collect()
    }

    #[test]
    fn cores_fit_threads_or_are_reported() {
        let verdict = |list: &str, wanted: &Wanted| {
            let check = cores(&allowed(list).tree(), wanted);
            (check.verdict(), check.found().to_owned())
        };
        let none = Wanted::default();
        assert_eq!(verdict("0-7", &none).0, Ok);
        assert_eq!(verdict("0", &none).0, Note);
        assert_eq!(verdict("0-3", &spinning()).0, Ok);
        let (barred, found) = verdict("0-2", &spinning());
        assert_eq!(barred, Error);
        assert!(found.contains("threads.publish_core is 3"), "{found}");
        let unpinned = wanted(json!({ "threads": { "idle": "spin" } }));
        assert_eq!(verdict("0", &unpinned).0, Warning, "two threads on a core");
        assert_eq!(verdict("0-1", &unpinned).0, Ok);
        let twice = wanted(json!({ "threads": { "feed_core": 1, "publish_core": 1 } }));
        assert_eq!(verdict("0-3", &twice).0, Warning);
        for odd in ["", "x", "0-999999"] {
            assert_eq!(verdict(odd, &spinning()).0, Unknown, "{odd}");
        }
        let faked = allowed("0-7");
        faked.put(&format!("{CPU}/online"), "0-2\n");
        faked.put(&format!("{CPU}/cpu3/online"), "0\n");
        let off = cores(&faked.tree(), &spinning());
        assert_eq!(runs(&off), [format!("echo 1 > {CPU}/cpu3/online")]);
        faked.put(&format!("{CPU}/online"), "0-1,3\n");
        let missing = cores(&faked.tree(), &spinning());
        assert_eq!(missing.verdict(), Error);
        assert!(missing.found().contains("no such core"), "{missing}");
        faked.put(&format!("{CPU}/online"), "0\n");
        let few = cores(&faked.tree(), &none);
        assert_eq!(few.verdict(), Note, "cores that are off do not count");
    }

    #[test]
    fn spinning_cores_that_are_not_isolated_are_reported() {
        let faked = FakedTree::of(&[
            ("/sys/devices/system/cpu/isolated", "2-3\n"),
            ("/sys/devices/system/cpu/nohz_full", "\n"),
        ]);
        let check = |wanted| isolation(&faked.tree(), &wanted);
        assert_eq!(check(spinning()).verdict(), Ok);
        assert!(check(spinning()).found().contains("isolated cores: 2-3"));
        let unpinned = json!({ "threads": { "idle": "spin" } });
        assert_eq!(check(wanted(unpinned)).verdict(), Note);
        let sleeps = json!({ "threads": { "idle": "yield", "feed_core": 7 } });
        assert_eq!(check(wanted(sleeps)).verdict(), Ok);
        faked.put("/sys/devices/system/cpu/isolated", "2\n");
        let check = check(spinning());
        assert_eq!(check.verdict(), Note);
        assert!(check.found().contains("cores 3 of this config"), "{check}");
        assert!(check.remedy().contains("nohz_full=2-3"), "{check}");
    }

    #[test]
    fn governor_other_than_performance_is_reported() {
        let path = |core: u8| format!("{CPU}/cpu{core}/cpufreq/scaling_governor");
        let faked = FakedTree::of(&[
            ("/sys/devices/system/cpu/online", "0-3\n"),
            (&path(0), "powersave\n"),
            (&path(1), "powersave\n"),
            (&path(2), "performance\n"),
            (&path(3), "performance\n"),
        ]);
        assert_eq!(governor(&faked.tree(), &spinning()).verdict(), Ok);
        let check = governor(&faked.tree(), &Wanted::default());
        assert_eq!(check.verdict(), Note);
        assert_eq!(
            runs(&check),
            ["cpupower -c 0-1 frequency-set -g performance"]
        );
        let undo = "cpupower -c 0-1 frequency-set -g powersave";
        assert_eq!(check.commands()[0].undo(), undo);
        let none = FakedTree::of(&[("/sys/devices/system/cpu/online", "0-3\n")]);
        let verdict = governor(&none.tree(), &Wanted::default()).verdict();
        assert_eq!(verdict, Unknown);
    }

    #[test]
    fn sleep_states_that_take_long_to_leave_are_reported() {
        let state = |number: u8, file: &str| format!("{CPU}/cpu0/cpuidle/state{number}/{file}");
        let faked = FakedTree::of(&[
            ("/sys/devices/system/cpu/online", "0\n"),
            (&state(0, "latency"), "0\n"),
            (&state(0, "disable"), "0\n"),
            (&state(1, "latency"), "133\n"),
            (&state(1, "disable"), "0\n"),
            (&state(1, "name"), "C6\n"),
        ]);
        let check = idle_states(&faked.tree(), &Wanted::default());
        assert_eq!(check.verdict(), Note);
        assert!(check.found().contains("133 us to leave (C6)"), "{check}");
        assert_eq!(runs(&check), ["cpupower -c 0 idle-set -D 11"]);
        assert!(
            idle_states(&faked.tree(), &spinning())
                .why()
                .contains("spin")
        );
        faked.put(&state(1, "disable"), "1\n");
        assert_eq!(idle_states(&faked.tree(), &spinning()).verdict(), Ok);
        let none = FakedTree::of(&[]);
        assert_eq!(idle_states(&none.tree(), &spinning()).verdict(), Unknown);
        faked.put(&state(1, "disable"), "0\n");
        for (limit_us, verdict) in [(0_i32, Ok), (10, Ok), (11, Note), (2_000_000_000, Note)] {
            faked.put("/dev/cpu_dma_latency", limit_us.to_ne_bytes());
            let check = idle_states(&faked.tree(), &spinning());
            assert_eq!(check.verdict(), verdict, "{limit_us}");
        }
        faked.put("/dev/cpu_dma_latency", [255; 3]);
        assert_eq!(idle_states(&faked.tree(), &spinning()).verdict(), Note);
    }

    #[test]
    fn siblings_of_pinned_cores_are_reported() {
        let list = |core: u8| format!("{CPU}/cpu{core}/topology/thread_siblings_list");
        let faked = FakedTree::of(&[
            ("/sys/devices/system/cpu/smt/active", "1\n"),
            ("/sys/devices/system/cpu/online", "0-7\n"),
            (&list(2), "2,6\n"),
            (&list(3), "3,7\n"),
        ]);
        let check = siblings(&faked.tree(), &spinning());
        assert_eq!(check.verdict(), Note);
        let off = |core: u8| format!("echo 0 > {CPU}/cpu{core}/online");
        assert_eq!(runs(&check), [off(6), off(7)]);
        assert_eq!(siblings(&faked.tree(), &Wanted::default()).verdict(), Ok);
        faked.put(&list(2), "2-3\n");
        faked.put(&list(3), "2-3\n");
        let check = siblings(&faked.tree(), &spinning());
        assert!(check.found().contains("cores 2-3 of this config share"));
        faked.put("/sys/devices/system/cpu/smt/active", "0\n");
        assert_eq!(siblings(&faked.tree(), &spinning()).verdict(), Ok);
    }

    #[test]
    fn interrupts_of_pinned_cores_are_reported() {
        let faked = FakedTree::of(&[
            ("/sys/devices/system/cpu/online", "0-3\n"),
            (
                "/proc/interrupts",
                "     CPU0 CPU1\n 45:  1 0 PCI-MSIX-0000:00:05.0 1-edge eth0-rx-0\n",
            ),
            ("/proc/irq/45/smp_affinity_list", "0-3\n"),
            ("/proc/irq/45/effective_affinity_list", "2\n"),
            ("/proc/irq/46/smp_affinity_list", "0-3\n"),
            ("/proc/irq/46/effective_affinity_list", "2\n"),
            ("/proc/irq/default_smp_affinity", "f\n"),
        ]);
        let check = interrupts(&faked.tree(), &spinning());
        assert_eq!(check.verdict(), Note);
        assert!(check.found().contains(": 45 (eth0-rx-0)"), "{check}");
        let expected = "echo 0-1 > /proc/irq/45/smp_affinity_list || echo \
                        'interrupt 45 stays: its driver chose its cores' >&2";
        assert_eq!(runs(&check), [expected]);
        let undo = "echo 0-3 > /proc/irq/45/smp_affinity_list";
        assert_eq!(check.commands()[0].undo(), undo);
        assert_eq!(check.remedy(), "");
        faked.put("/proc/7/comm", "irqbalance\n");
        let check = interrupts(&faked.tree(), &spinning());
        assert!(check.remedy().contains("BANNED_CPULIST=2-3"), "{check}");
        faked.put("/proc/irq/45/effective_affinity_list", "1\n");
        assert_eq!(interrupts(&faked.tree(), &spinning()).verdict(), Ok);
        assert_eq!(interrupts(&faked.tree(), &Wanted::default()).verdict(), Ok);
    }

    #[test]
    fn kdamond_is_reported_with_its_switch() {
        let none = FakedTree::of(&[]);
        assert_eq!(kdamond(&none.tree()).verdict(), Unknown);
        let faked = FakedTree::of(&[("/proc/7/comm", "bash\n"), ("/proc/no/comm", "kdamond\n")]);
        assert_eq!(kdamond(&faked.tree()).verdict(), Ok);
        faked.put("/proc/77/comm", "kdamond.0\n");
        let check = kdamond(&faked.tree());
        assert_eq!(check.verdict(), Warning);
        assert!(!check.remedy().is_empty() && check.commands().is_empty());
        faked.put("/sys/module/damon_reclaim/parameters/enabled", "Y\n");
        faked.put("/sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        let check = kdamond(&faked.tree());
        let expected = [
            "echo N > /sys/module/damon_reclaim/parameters/enabled",
            "echo off > /sys/kernel/mm/damon/admin/kdamonds/0/state",
        ];
        assert_eq!((runs(&check), check.remedy()), (expected.to_vec(), ""));
    }
}
