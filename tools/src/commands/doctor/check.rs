//! The result of a check: the subject, the verdict, the reason, and the commands that change the host.

use std::fmt;

use serde::{Serialize, Serializer};
use tickcast_tools::support::plain::one_line;

/// Names the subjects of all checks. docs/DOCTOR.md has at least one row for each.
macro_rules! subjects {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// The subject of a check. Its identifier never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Subject {
            $($(#[$doc])* $name,)*
        }

        impl Subject {
            /// All subjects.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the identifier in reports.
            pub(super) const fn id(self) -> &'static str {
                match self {
                    $(Self::$name => $id,)*
                }
            }
        }
    };
}

subjects! {
    /// The config of `--config`, as a publisher on this host checks it.
    Config = "config",
    /// Cores that this process may use, against the config's threads.
    Cores = "cores",
    /// Cores that the scheduler leaves alone.
    Isolation = "isolation",
    /// Frequency governor.
    Governor = "governor",
    /// Sleep states of cores.
    IdleStates = "c-states",
    /// Cores that share their execution units.
    Smt = "smt",
    /// Cores beside the device.
    Numa = "numa",
    /// Cores that interrupts go to.
    Interrupts = "irq-affinity",
    /// The kernel's monitor of memory accesses.
    Kdamond = "kdamond",
    /// CPU time that control groups grant.
    CpuQuota = "cgroup-cpu",
    /// Cores that control groups grant.
    CpuSet = "cgroup-cpuset",
    /// Memory that control groups grant.
    MemoryLimit = "cgroup-memory",
    /// Available memory.
    Memory = "memory",
    /// Transparent huge pages.
    TransparentHugePages = "thp",
    /// Reserved huge pages.
    HugePages = "huge-pages",
    /// The limit of pinned memory.
    Memlock = "memlock",
    /// The tmpfs of rings and journals.
    SharedMemory = "shared-memory",
    /// State and flags of an interface.
    Interface = "interface",
    /// Length of packets.
    Mtu = "mtu",
    /// Limits of socket buffers.
    SocketBuffers = "socket-buffers",
    /// Datagrams that found no room in a socket.
    SocketDrops = "socket-drops",
    /// Packets that found no room between device and protocol.
    SoftnetDrops = "softnet-drops",
    /// Packets that a device or its driver dropped.
    NicDrops = "nic-drops",
    /// Lengths of a device's rings.
    NicRings = "nic-rings",
    /// Polling of devices by sockets.
    BusyPoll = "busy-poll",
    /// Interrupts of devices that sockets poll.
    NicDefer = "nic-defer",
    /// A datagram to a group and back on this host.
    Multicast = "multicast",
    /// The route of the groups.
    MulticastRoute = "multicast-route",
    /// The check of source addresses.
    ReversePath = "rp-filter",
    /// Group memberships.
    IgmpMembership = "igmp-membership",
    /// The querier that keeps memberships alive.
    IgmpQuerier = "igmp-querier",
    /// Other publishers on the config's groups.
    GroupsInUse = "groups-in-use",
    /// The clock source of the kernel.
    ClockSource = "clock-source",
    /// The agreement of this host's clock with others.
    ClockSync = "clock-sync",
    /// RDMA devices in general.
    Rdma = "rdma",
    /// The build's support of RDMA.
    RdmaBuild = "rdma-build",
    /// Access to the device files of verbs.
    RdmaRights = "rdma-rights",
    /// The list of RDMA devices.
    RdmaDevices = "rdma-devices",
    /// The interface that `--interface` names, among RDMA devices.
    RdmaInterface = "rdma-interface",
    /// State of an RDMA port.
    RdmaPort = "rdma-port",
    /// Identifiers of an RDMA port.
    RdmaGids = "rdma-gids",
    /// Counters of an RDMA device.
    RdmaCounters = "rdma-counters",
    /// Congestion of the network of an RDMA port.
    RdmaCongestion = "rdma-congestion",
    /// Packets that an RDMA port discarded or received damaged.
    RdmaDiscards = "rdma-discards",
    /// Packet length of an RDMA device.
    RdmaMtu = "rdma-mtu",
    /// Datagrams through an RDMA port and back.
    RdmaLoopback = "rdma-loopback",
    /// Accesses to memory that an RDMA device grants and refuses.
    RdmaAccess = "rdma-access",
    /// Publisher and subscribers over an RDMA device.
    RdmaSelftest = "rdma-selftest",
    /// Datagrams that reach the other host whole.
    Peer = "peer",
    /// Datagrams stop at the send call.
    PeerSend = "peer-send",
    /// Datagrams stop before the sender's interface.
    PeerSender = "peer-sender-interface",
    /// Datagrams stop between the two interfaces.
    PeerReceiver = "peer-receiver-interface",
    /// Datagrams stop in the receiver's IP layer.
    PeerIp = "peer-receiver-ip",
    /// Datagrams stop before the receiver's socket.
    PeerSocket = "peer-receiver-socket",
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.id())
    }
}

/// The verdict of a check, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// The host is as it should be.
    Ok,
    /// The host does not say, or what it says makes no sense.
    Unknown,
    /// It works, with more latency than necessary.
    Note,
    /// Datagrams are lost and repaired, or threads stand still.
    Warning,
    /// It does not work.
    Error,
}

impl Verdict {
    /// All verdicts, the worst first.
    pub(super) const ALL: [Self; 5] = [
        Self::Error,
        Self::Warning,
        Self::Note,
        Self::Unknown,
        Self::Ok,
    ];

    /// Returns the word in reports.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One line of shell that changes this host, and the line that takes it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    run: String,
    undo: String,
}

impl Fix {
    /// Returns the fix of two commands, given as words.
    pub(super) fn command<Word: AsRef<str>>(run: &[Word], undo: &[Word]) -> Self {
        Self {
            run: words(run),
            undo: words(undo),
        }
    }

    /// Returns the fix that sets a sysctl.
    pub(super) fn sysctl(name: &str, value: impl fmt::Display, before: impl fmt::Display) -> Self {
        let set = |value: &dyn fmt::Display| words(&["sysctl", "-w", &format!("{name}={value}")]);
        Self {
            run: set(&value),
            undo: set(&before),
        }
    }

    /// Returns the fix that writes a line into a file of the kernel.
    pub(super) fn write(path: &str, value: &str, before: &str) -> Self {
        let write = |value| format!("echo {} > {}", quoted(value), quoted(path));
        Self {
            run: write(value),
            undo: write(before),
        }
    }

    /// Reports on standard error if the command fails, so that a script goes on.
    pub(super) fn or_else_print(mut self, otherwise: &str) -> Self {
        self.run = format!("{} || echo {} >&2", self.run, quoted(otherwise));
        self
    }

    /// Returns the command.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Returns the command that takes it back.
    pub(super) fn undo(&self) -> &str {
        &self.undo
    }
}

/// Joins words into a line of shell.
fn words<Word: AsRef<str>>(words: &[Word]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| quoted(word.as_ref())).collect();
    quoted.join(" ")
}

/// Returns a word that a POSIX shell reads as exactly this text. Control characters become spaces, because a
/// fix is one line.
fn quoted(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", one_line(word).replace('\'', r"'\''"))
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    id: Subject,
    verdict: Verdict,
    found: String,
    /// Empty if all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
    /// Empty if nothing is left to do by hand.
    #[serde(rename = "do", skip_serializing_if = "String::is_empty")]
    remedy: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commands: Vec<Fix>,
}

impl Check {
    /// Returns the result of a check that found the host as it should be.
    pub(super) fn ok(id: Subject, found: impl Into<String>) -> Self {
        Self {
            id,
            verdict: Verdict::Ok,
            found: one_line(&found.into()),
            why: String::new(),
            remedy: String::new(),
            commands: Vec::new(),
        }
    }

    /// Returns the result of a check that this host does not answer.
    pub(super) fn unknown(id: Subject, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Unknown,
            ..Self::ok(id, found)
        }
    }

    /// Returns the result of a check that this host does not answer, with the way to find out.
    pub(super) fn unknown_but(
        id: Subject,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Unknown,
            ..Self::note(id, found, why, remedy)
        }
    }

    /// Returns the result of a check that found a limitation.
    pub(super) fn note(
        id: Subject,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Note,
            why: one_line(&why.into()),
            remedy: one_line(&remedy.into()),
            ..Self::ok(id, found)
        }
    }

    /// Returns the result of a check that found something that does not work.
    pub(super) fn error(
        id: Subject,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Error,
            ..Self::note(id, found, why, remedy)
        }
    }

    /// Returns the result of a check that found a cause of loss or of threads that stand still.
    pub(super) fn warning(
        id: Subject,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warning,
            ..Self::note(id, found, why, remedy)
        }
    }

    /// Adds the commands that fix it.
    pub(super) fn fixed_by(mut self, commands: impl IntoIterator<Item = Fix>) -> Self {
        self.commands.extend(commands);
        self
    }

    /// Returns the subject.
    pub(super) const fn id(&self) -> Subject {
        self.id
    }

    /// Returns the verdict.
    pub(super) const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the result in words.
    pub(super) fn found(&self) -> &str {
        &self.found
    }

    /// Returns the reason why the result matters.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Returns the remedy in words.
    pub(super) fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Returns the commands that fix it.
    pub(super) fn commands(&self) -> &[Fix] {
        &self.commands
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Error => "ERROR",
            verdict => verdict.word(),
        };
        write!(f, "{word:<8} {}: {}", self.id, self.found)?;
        if !self.why.is_empty() {
            write!(f, "\n         why: {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n         do:  {}", self.remedy)?;
        }
        for fix in &self.commands {
            write!(f, "\n         run: {}", fix.run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_unique_and_kebab_case() {
        let mut ids: Vec<&str> = Subject::ALL.iter().map(|it| it.id()).collect();
        let is_kebab = |id: &&str| id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(ids.iter().all(is_kebab), "{ids:?}");
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn words_of_a_fix_are_quoted_for_a_shell() {
        let fix = Fix::command(
            &["ethtool", "-G", "a b", "$(reboot)", "it's", ""],
            &["a\nb"],
        );
        assert_eq!(fix.run(), r"ethtool -G 'a b' '$(reboot)' 'it'\''s' ''");
        assert_eq!(fix.undo(), "'a b'");
        let fix = Fix::write("/sys/a;b", "0-1", "0-3").or_else_print("it stays");
        assert_eq!(fix.run(), "echo 0-1 > '/sys/a;b' || echo 'it stays' >&2");
        let fix = Fix::sysctl("net.core.rmem_max", 8, 4);
        assert_eq!(fix.run(), "sysctl -w net.core.rmem_max=8");
        assert_eq!(fix.undo(), "sysctl -w net.core.rmem_max=4");
    }

    #[test]
    fn result_in_words_has_no_control_characters() {
        let check = Check::note(Subject::Cores, "a\u{1b}[31m\nb", "c\rd", "e")
            .fixed_by([Fix::command(&["true"], &["true"])]);
        let expected = "note     cores: a [31m b\n         why: c d\n         do:  e\n         \
                        run: true";
        assert_eq!(check.to_string(), expected);
    }
}
