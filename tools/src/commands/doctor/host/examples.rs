//! Hosts for the rows of docs/DOCTOR.md, as faked trees: each row has one that triggers it, and one that
//! does not. All checks run over each of them, so a check that is left out of the list fails here.

use serde_json::{Value, json};

use super::super::check::{Check, Subject, Verdict};
use super::wanted::{Wanted, wanted};
use super::{Tree, checks};
use crate::commands::tree::{FakedTree, ODD};

/// The files of a host.
type Files = &'static [(&'static str, &'static str)];

/// A row of the table, on two hosts.
struct Row {
    id: Subject,
    /// Needs of the config.
    wanted: fn() -> Wanted,
    /// Files of a host as it should be.
    sound: Files,
    /// Files that the other host has in place of these, or besides.
    defect: Files,
    /// Verdict on the other host.
    verdict: Verdict,
    /// Files without which, or with odd contents, the verdict is unknown.
    sources: &'static [&'static str],
}

impl Row {
    /// Returns the worst verdict of the row's subject among all checks.
    fn verdict(&self, tree: &Tree) -> Verdict {
        let own = |check: &Check| (check.id() == self.id).then(|| check.verdict());
        let checks = checks(tree, &(self.wanted)());
        let worst = checks.iter().filter_map(own).max();
        worst.unwrap_or_else(|| panic!("no check of {}", self.id))
    }

    fn sound(&self) -> FakedTree {
        FakedTree::of(self.sound)
    }
}

/// Needs without a config.
fn any() -> Wanted {
    Wanted::default()
}

/// Needs of a config with the defaults, on eth0.
fn plain() -> Wanted {
    wanted(json!({}))
}

/// Needs of a config whose threads spin on cores 0 and 1, and of an input on eth0.
fn spinning() -> Wanted {
    wanted(with_input(
        json!({ "threads": { "idle": "spin", "feed_core": 0, "publish_core": 1 } }),
    ))
}

/// Needs of a config whose input on eth0 polls the device.
fn polling() -> Wanted {
    let mut settings = with_input(json!({}));
    settings["inputs"][0]["busy_poll_us"] = json!(50);
    wanted(settings)
}

/// Needs of a config with verbs.
fn verbs() -> Wanted {
    wanted(json!({ "channels": [{
        "id": 1, "name": "all", "slots": 1024, "slot_len": 1024,
        "fan_out": [{ "transport": "verbs", "lines": [{ "group": "239.255.90.1" }] }],
    }] }))
}

/// Needs of a config with rings on hugetlbfs.
fn huge() -> Wanted {
    wanted(json!({ "ring_dir": "/huge" }))
}

fn with_input(mut settings: Value) -> Value {
    settings["inputs"] = json!([{
        "source": 1, "kind": "udp", "receive_buffer_bytes": 9_000_000,
        "lines": [{ "listen": "239.1.1.1:100" }],
    }]);
    settings
}

const PROCESSES: (&str, &str) = ("/proc/7/comm", "bash\n");
const IGMP: &str = "Idx Device : Count Querier Group Users Timer Reporter\n4 eth0 : 1 V3\n\
                    \t010101EF 1 1:00000AFC 0\n";
const IGMP_ELSEWHERE: &str = "Idx Device : Count Querier Group Users Timer Reporter\n4 eth1 : 1 V3\n\
                              \t010101EF 1 1:00000AFC 0\n";
const IGMP_OLD: &str = "Idx Device : Count Querier Group Users Timer Reporter\n4 eth0 : 1 V2\n\
                        \t010101EF 1 1:00000AFC 0\n";
const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\n\
                      eth0 00000000 0 0003 0 0 0 00000000 0\n";
const ROUTES_ELSEWHERE: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\n\
                                eth1 00000000 0 0003 0 0 0 00000000 0\n";
const HUGE_MOUNT: (&str, &str) = (
    "/proc/self/mountinfo",
    "26 24 0:24 / /huge rw - hugetlbfs none rw,pagesize=2M\n",
);

/// All rows whose checks only read files.
const ROWS: &[Row] = &[
    Row {
        id: Subject::Cores,
        wanted: spinning,
        sound: &[
            ("/proc/self/status", "Cpus_allowed_list:\t0-3\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
        ],
        defect: &[("/sys/devices/system/cpu/online", "0,2-3\n")],
        verdict: Verdict::Error,
        sources: &["/proc/self/status"],
    },
    Row {
        id: Subject::Isolation,
        wanted: spinning,
        sound: &[("/sys/devices/system/cpu/isolated", "0-1\n")],
        defect: &[("/sys/devices/system/cpu/isolated", "\n")],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/cpu/isolated"],
    },
    Row {
        id: Subject::Governor,
        wanted: spinning,
        sound: &[(
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "performance\n",
        )],
        defect: &[(
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "powersave\n",
        )],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"],
    },
    Row {
        id: Subject::IdleStates,
        wanted: any,
        sound: &[
            ("/sys/devices/system/cpu/online", "0\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0\n"),
        ],
        defect: &[(
            "/sys/devices/system/cpu/cpu0/cpuidle/state1/latency",
            "133\n",
        )],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/cpu/cpu0/cpuidle/state1/latency"],
    },
    Row {
        id: Subject::Smt,
        wanted: spinning,
        sound: &[
            ("/sys/devices/system/cpu/smt/active", "0\n"),
            (
                "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0-1\n",
            ),
        ],
        defect: &[
            ("/sys/devices/system/cpu/smt/active", "1\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
        ],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/cpu/smt/active"],
    },
    Row {
        id: Subject::Interrupts,
        wanted: spinning,
        sound: &[
            ("/proc/interrupts", "45: 1 0 PCI-MSIX eth0-rx-0\n"),
            ("/proc/irq/45/effective_affinity_list", "2\n"),
        ],
        defect: &[("/proc/irq/45/effective_affinity_list", "0-3\n")],
        verdict: Verdict::Note,
        sources: &["/proc/interrupts"],
    },
    Row {
        id: Subject::Kdamond,
        wanted: any,
        sound: &[PROCESSES],
        defect: &[("/proc/8/comm", "kdamond.0\n")],
        verdict: Verdict::Warning,
        sources: &[],
    },
    Row {
        id: Subject::CpuQuota,
        wanted: spinning,
        sound: &[
            ("/proc/self/cgroup", "0::/a\n"),
            ("/sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ],
        defect: &[("/sys/fs/cgroup/a/cpu.max", "50000 100000\n")],
        verdict: Verdict::Warning,
        sources: &["/proc/self/cgroup"],
    },
    Row {
        id: Subject::CpuSet,
        wanted: spinning,
        sound: &[
            ("/proc/self/cgroup", "0::/a\n"),
            ("/sys/fs/cgroup/a/cpuset.cpus.effective", "0-3\n"),
        ],
        defect: &[("/sys/fs/cgroup/a/cpuset.cpus.effective", "2-3\n")],
        verdict: Verdict::Error,
        sources: &["/proc/self/cgroup"],
    },
    Row {
        id: Subject::MemoryLimit,
        wanted: plain,
        sound: &[
            ("/proc/self/cgroup", "0::/a\n"),
            ("/sys/fs/cgroup/a/memory.max", "max\n"),
        ],
        defect: &[("/sys/fs/cgroup/a/memory.max", "4096\n")],
        verdict: Verdict::Error,
        sources: &["/proc/self/cgroup"],
    },
    Row {
        id: Subject::Memory,
        wanted: plain,
        sound: &[("/proc/meminfo", "MemAvailable: 1048576 kB\n")],
        defect: &[("/proc/meminfo", "MemAvailable: 4 kB\n")],
        verdict: Verdict::Error,
        sources: &["/proc/meminfo"],
    },
    Row {
        id: Subject::TransparentHugePages,
        wanted: any,
        sound: &[(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        )],
        defect: &[(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never\n",
        )],
        verdict: Verdict::Note,
        sources: &["/sys/kernel/mm/transparent_hugepage/enabled"],
    },
    Row {
        id: Subject::HugePages,
        wanted: huge,
        sound: &[
            HUGE_MOUNT,
            (
                "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "64\n",
            ),
            (
                "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "64\n",
            ),
        ],
        defect: &[(
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "0\n",
        )],
        verdict: Verdict::Error,
        sources: &[
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        ],
    },
    Row {
        id: Subject::Memlock,
        wanted: verbs,
        sound: &[(
            "/proc/self/limits",
            "Max locked memory unlimited unlimited bytes\n",
        )],
        defect: &[("/proc/self/limits", "Max locked memory 65536 65536 bytes\n")],
        verdict: Verdict::Error,
        sources: &["/proc/self/limits"],
    },
    Row {
        id: Subject::Interface,
        wanted: plain,
        sound: &[("/sys/class/net/eth0/flags", "0x1003\n")],
        defect: &[("/sys/class/net/eth0/flags", "0x1002\n")],
        verdict: Verdict::Error,
        sources: &["/sys/class/net/eth0/flags"],
    },
    Row {
        id: Subject::Mtu,
        wanted: plain,
        sound: &[("/sys/class/net/eth0/mtu", "1500\n")],
        defect: &[("/sys/class/net/eth0/mtu", "1400\n")],
        verdict: Verdict::Warning,
        sources: &["/sys/class/net/eth0/mtu"],
    },
    Row {
        id: Subject::Numa,
        wanted: spinning,
        sound: &[
            ("/sys/class/net/eth0/device/numa_node", "0\n"),
            ("/sys/devices/system/node/node0/cpulist", "0-7\n"),
        ],
        defect: &[("/sys/devices/system/node/node0/cpulist", "8-15\n")],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/node/node0/cpulist"],
    },
    Row {
        id: Subject::NicDrops,
        wanted: plain,
        sound: &[("/sys/class/net/eth0/statistics/rx_missed_errors", "0\n")],
        defect: &[("/sys/class/net/eth0/statistics/rx_missed_errors", "9\n")],
        verdict: Verdict::Warning,
        sources: &["/sys/class/net/eth0/statistics/rx_missed_errors"],
    },
    Row {
        id: Subject::SoftnetDrops,
        wanted: any,
        sound: &[("/proc/net/softnet_stat", "00ff 00000000 0\n")],
        defect: &[("/proc/net/softnet_stat", "00ff 00000003 0\n")],
        verdict: Verdict::Warning,
        sources: &["/proc/net/softnet_stat"],
    },
    Row {
        id: Subject::SocketBuffers,
        wanted: spinning,
        sound: &[
            ("/proc/sys/net/core/rmem_max", "16777216\n"),
            ("/proc/sys/net/core/wmem_max", "16777216\n"),
        ],
        defect: &[("/proc/sys/net/core/rmem_max", "212992\n")],
        verdict: Verdict::Warning,
        sources: &["/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"],
    },
    Row {
        id: Subject::SocketDrops,
        wanted: any,
        sound: &[("/proc/net/snmp", "Udp: RcvbufErrors\nUdp: 0\n")],
        defect: &[("/proc/net/snmp", "Udp: RcvbufErrors\nUdp: 3\n")],
        verdict: Verdict::Note,
        sources: &["/proc/net/snmp"],
    },
    Row {
        id: Subject::BusyPoll,
        wanted: spinning,
        sound: &[("/proc/sys/net/core/busy_read", "50\n")],
        defect: &[("/proc/sys/net/core/busy_read", "0\n")],
        verdict: Verdict::Note,
        sources: &["/proc/sys/net/core/busy_read"],
    },
    Row {
        id: Subject::NicDefer,
        wanted: polling,
        sound: &[
            ("/sys/class/net/eth0/napi_defer_hard_irqs", "2\n"),
            ("/sys/class/net/eth0/gro_flush_timeout", "200000\n"),
        ],
        defect: &[("/sys/class/net/eth0/gro_flush_timeout", "0\n")],
        verdict: Verdict::Note,
        sources: &[
            "/sys/class/net/eth0/napi_defer_hard_irqs",
            "/sys/class/net/eth0/gro_flush_timeout",
        ],
    },
    Row {
        id: Subject::MulticastRoute,
        wanted: plain,
        sound: &[("/proc/net/route", ROUTES)],
        defect: &[("/proc/net/route", ROUTES_ELSEWHERE)],
        verdict: Verdict::Note,
        sources: &["/proc/net/route"],
    },
    Row {
        id: Subject::ReversePath,
        wanted: plain,
        sound: &[
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0\n"),
            ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n"),
        ],
        defect: &[("/proc/sys/net/ipv4/conf/eth0/rp_filter", "1\n")],
        verdict: Verdict::Note,
        sources: &[
            "/proc/sys/net/ipv4/conf/all/rp_filter",
            "/proc/sys/net/ipv4/conf/eth0/rp_filter",
        ],
    },
    Row {
        id: Subject::IgmpMembership,
        wanted: spinning,
        sound: &[("/proc/net/igmp", IGMP)],
        defect: &[("/proc/net/igmp", IGMP_ELSEWHERE)],
        verdict: Verdict::Warning,
        sources: &["/proc/net/igmp"],
    },
    Row {
        id: Subject::IgmpQuerier,
        wanted: spinning,
        sound: &[("/proc/net/igmp", IGMP)],
        defect: &[("/proc/net/igmp", IGMP_OLD)],
        verdict: Verdict::Note,
        sources: &["/proc/net/igmp"],
    },
    Row {
        id: Subject::SharedMemory,
        wanted: any,
        sound: &[("/dev/shm/file", "")],
        defect: &[("/dev/shm", "a file in place of the folder")],
        verdict: Verdict::Note,
        sources: &[],
    },
    Row {
        id: Subject::ClockSource,
        wanted: any,
        sound: &[(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n",
        )],
        defect: &[(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet\n",
        )],
        verdict: Verdict::Note,
        sources: &["/sys/devices/system/clocksource/clocksource0/current_clocksource"],
    },
    Row {
        id: Subject::ClockSync,
        wanted: any,
        sound: &[("/proc/7/comm", "ptp4l\n"), ("/proc/8/comm", "phc2sys\n")],
        defect: &[("/proc/8/comm", "bash\n")],
        verdict: Verdict::Note,
        sources: &[],
    },
];

/// Subjects whose checks use sockets, devices or another host. Their tests stand beside them.
const NOT_OF_FILES: &[Subject] = &[
    Subject::Config,
    Subject::NicRings,
    Subject::Multicast,
    Subject::GroupsInUse,
    Subject::Rdma,
    Subject::RdmaBuild,
    Subject::RdmaRights,
    Subject::RdmaDevices,
    Subject::RdmaInterface,
    Subject::RdmaPort,
    Subject::RdmaGids,
    Subject::RdmaCounters,
    Subject::RdmaCongestion,
    Subject::RdmaDiscards,
    Subject::RdmaMtu,
    Subject::RdmaLoopback,
    Subject::RdmaAccess,
    Subject::RdmaSelftest,
    Subject::Peer,
    Subject::PeerSend,
    Subject::PeerSender,
    Subject::PeerReceiver,
    Subject::PeerIp,
    Subject::PeerSocket,
];

#[test]
fn subjects_of_files_all_have_a_row() {
    for id in Subject::ALL {
        let rows = ROWS.iter().filter(|row| row.id == *id).count();
        let others = NOT_OF_FILES.iter().filter(|it| *it == id).count();
        assert_eq!(rows + others, 1, "{id}");
    }
}

#[test]
fn rows_hold_on_one_host_and_not_on_another() {
    for row in ROWS {
        let sound = row.sound();
        assert_eq!(row.verdict(&sound.tree()), Verdict::Ok, "{}", row.id);
        let broken: Vec<_> = (row.sound.iter())
            .filter(|(path, _)| {
                // A file may stand in place of a folder.
                let replaces = |by: &&(&str, &str)| path.starts_with(by.0);
                !row.defect.iter().any(|by| replaces(&by))
            })
            .chain(row.defect)
            .copied()
            .collect();
        let broken = FakedTree::of(&broken);
        assert_eq!(row.verdict(&broken.tree()), row.verdict, "{}", row.id);
    }
}

/// A check whose file is missing or makes no sense says so: it neither panics nor calls the host sound.
#[test]
fn files_that_make_no_sense_give_unknown_verdicts() {
    let odd = || ODD.into_iter().chain(["odd : odd odd odd\n"]);
    for row in ROWS {
        for source in row.sources {
            for text in odd() {
                // An empty list of cores is one, also of isolated ones.
                if row.id == Subject::Isolation && text.trim().is_empty() {
                    continue;
                }
                let faked = row.sound();
                faked.put(source, text);
                let tree = faked.tree();
                let found = row.verdict(&tree);
                assert_eq!(found, Verdict::Unknown, "{} {source} {text:?}", row.id);
            }
            let others: Vec<_> = row.sound.iter().filter(|it| it.0 != *source).collect();
            let others: Vec<_> = others.into_iter().copied().collect();
            let faked = FakedTree::of(&others);
            let found = row.verdict(&faked.tree());
            let expected = match row.id {
                // No such folder: the host has no such interface.
                Subject::Interface => Verdict::Error,
                _ => Verdict::Unknown,
            };
            assert_eq!(found, expected, "{} without {source}", row.id);
        }
    }
}
