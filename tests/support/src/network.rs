//! Networks of a test's own: namespaces, where the system lets the test's user create them.

use std::ffi::OsStr;
use std::fs::read_link;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::{PATIENCE, Running, text, wait_for};

const INSIDE: &str = "TICKCAST_OWN_NETWORK";

/// The network of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnNetwork {
    /// The test ran and passed in a network of its own, in another process. Nothing is left to do.
    Ran,
    /// This process is the one in that network.
    Inside,
    /// The system refuses such a network.
    Denied,
}

/// Runs this test again in user and network namespaces of its own, with loopback alone.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn own_network(test: &str) -> OwnNetwork {
    own_network_by(test, &["--map-root-user", "--net"])
}

/// Runs this test again in a network namespace of its own, with the rights of this process's user. Only those
/// of root's own namespace permit an XDP program.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn own_network_of_root(test: &str) -> OwnNetwork {
    own_network_by(test, &["--net"])
}

fn own_network_by(test: &str, namespaces: &[&str]) -> OwnNetwork {
    if std::env::var_os(INSIDE).is_some() {
        return OwnNetwork::Inside;
    }
    let inside = || {
        let mut command = Command::new("unshare");
        let up = "ip link set lo up && exec \"$@\"";
        command.args(namespaces).args(["sh", "-c", up, "sh"]);
        command
    };
    let probe = inside().arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return OwnNetwork::Denied;
    }
    let output = inside()
        .arg(std::env::current_exe().expect("a test has a path"))
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("it starts");
    let said = text(&output.stdout);
    // A name that matches no test would pass as well.
    let ran = output.status.success() && said.contains("1 passed");
    let complained = text(&output.stderr);
    assert!(ran, "{said}\n{complained}");
    for skipped in complained.lines().filter(|it| it.starts_with("SKIPPED")) {
        eprintln!("{skipped}");
    }
    OwnNetwork::Ran
}

/// Another host: a network namespace with loopback, and a pair of devices between it and the test's own
/// network. Dropping it removes them.
#[derive(Debug)]
pub struct Neighbour {
    /// The process that keeps the namespace, and its id.
    _keeper: Running,
    id: u32,
}

impl Neighbour {
    /// The address of the test's own network towards the neighbour.
    pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
    const INTERFACE: &str = "veth1";

    /// Creates the neighbour of a test in a network of its own ([`OwnNetwork::Inside`]). Returns `None` if
    /// the system has no such devices.
    ///
    /// # Panics
    /// If a step fails for another reason.
    #[must_use]
    pub fn new() -> Option<Self> {
        let span = PATIENCE.as_secs().to_string();
        let mut keeper = Running::start(Command::new("unshare").args(["--net", "sleep", &span]));
        let id = keeper.child().id();
        let network = |of: &str| read_link(format!("/proc/{of}/ns/net")).ok();
        wait_for("the neighbour's network", || {
            let theirs = network(&id.to_string())?;
            (Some(theirs) != network("self")).then_some(())
        });
        let neighbour = Self {
            _keeper: keeper,
            id,
        };
        let ours = format!(
            "ip link add veth0 type veth peer name {} netns {id} || exit 3; \
             ip address add {}/24 dev veth0 && ip link set veth0 up",
            Self::INTERFACE,
            Self::OURS
        );
        let status = Command::new("sh").args(["-c", &ours]).status();
        let status = status.expect("a shell");
        if status.code() == Some(3) {
            return None;
        }
        assert!(status.success(), "{ours}");
        let theirs = format!(
            "ip link set lo up && ip address add 10.99.0.2/24 dev {0} && ip link set {0} up",
            Self::INTERFACE
        );
        let status = neighbour.command("sh").args(["-c", &theirs]).status();
        assert!(status.expect("a shell").success(), "{theirs}");
        Some(neighbour)
    }

    /// Returns a command that runs a program on the neighbour.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let network = format!("--net=/proc/{}/ns/net", self.id);
        command.arg(network).arg(program);
        command
    }
}
