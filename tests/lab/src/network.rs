//! Networks of namespaces that a run creates and removes. The host's own network stays untouched.
//!
//! The next run removes the namespaces of a killed run.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use tickcast_tools::exit::ToolError;

/// Prefix of names of namespaces and file systems. The process id follows.
pub(crate) const NAMESPACE: &str = "tickcast-";

/// One end of a network: the place where a process runs.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The namespace; `None`: the host's own.
    namespace: Option<String>,
    /// Address of the end, in its namespace.
    pub(crate) address: Ipv4Addr,
}

impl End {
    /// The host itself.
    pub(crate) const LOOPBACK: Self = Self {
        namespace: None,
        address: Ipv4Addr::LOCALHOST,
    };

    /// Returns a command that runs `program` at this end. The program replaces the started process, so it
    /// is not a child of it.
    pub(crate) fn command(&self, program: &Path) -> Command {
        match &self.namespace {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        }
    }
}

/// Namespaces and the devices between them. Dropping it removes them.
#[derive(Debug, Default)]
pub(crate) struct Network {
    names: Vec<String>,
    /// Namespace of the bridge.
    middle: Option<String>,
    /// The sender's end, then the receivers' ends.
    pub(crate) ends: Vec<End>,
}

impl Network {
    /// Returns a network with all ends on loopback.
    pub(crate) fn loopback(ends: usize) -> Self {
        let mut network = Self::default();
        network.ends = vec![End::LOOPBACK; ends];
        network
    }

    /// Creates two ends with a pair of devices between them.
    ///
    /// # Errors
    /// [`ToolError::Host`] names the step that the host refused.
    pub(crate) fn pair(mtu: usize) -> Result<Self, ToolError> {
        let mut network = Self::default();
        let (a, b) = (network.add_end()?, network.add_end()?);
        let mtu = mtu.to_string();
        ip(&[
            "link", "add", "veth0", "mtu", &mtu, "netns", &a, "type", "veth", "peer", "name",
            "veth0", "mtu", &mtu, "netns", &b,
        ])?;
        (0..2).try_for_each(|at| network.set_up(at))?;
        Ok(network)
    }

    /// Creates `ends` ends at a bridge.
    ///
    /// # Errors
    /// [`ToolError::Host`] names the step that the host refused.
    pub(crate) fn bridge(ends: usize, mtu: usize) -> Result<Self, ToolError> {
        let mut network = Self::default();
        let middle = network.add("bridge")?;
        let mtu = mtu.to_string();
        // Without snooping the bridge floods every group to every port, as a switch without an IGMP
        // querier.
        let bridge = ["type", "bridge", "mcast_snooping", "0"];
        let link = ["-n", &middle, "link", "add", "bridge0", "mtu", &mtu];
        ip(&[&link[..], &bridge].concat())?;
        ip(&["-n", &middle, "link", "set", "bridge0", "up"])?;
        for at in 0..ends {
            let (end, port) = (network.add_end()?, port(at));
            ip(&[
                "link", "add", "veth0", "mtu", &mtu, "netns", &end, "type", "veth", "peer", "name",
                &port, "mtu", &mtu, "netns", &middle,
            ])?;
            ip(&[
                "-n", &middle, "link", "set", &port, "master", "bridge0", "up",
            ])?;
            network.set_up(at)?;
        }
        network.middle = Some(middle);
        Ok(network)
    }

    /// Takes an end's port at the bridge down or up, like a cable that is pulled out and plugged in.
    ///
    /// # Errors
    /// [`ToolError::Host`] if the host refuses, or if the network has no bridge.
    pub(crate) fn plug(&self, at: usize, is_in: bool) -> Result<(), ToolError> {
        let state = if is_in { "up" } else { "down" };
        ip(&["-n", self.middle()?, "link", "set", &port(at), state])
    }

    /// Limits the traffic to an end to this many kbit/s; `None` removes the limit.
    ///
    /// # Errors
    /// [`ToolError::Host`] if the host refuses, or if the network has no bridge.
    pub(crate) fn limit(&self, at: usize, kbit_per_s: Option<u32>) -> Result<(), ToolError> {
        let (middle, port) = (self.middle()?, port(at));
        let on = ["dev", &port, "root"];
        match kbit_per_s {
            None => run("tc", &[&["-n", middle, "qdisc", "del"], &on[..]].concat()),
            Some(rate) => {
                let rate = format!("{rate}kbit");
                let tbf = ["tbf", "rate", &rate, "burst", "16kb", "latency", "20ms"];
                run(
                    "tc",
                    &[&["-n", middle, "qdisc", "replace"], &on[..], &tbf].concat(),
                )
            }
        }
    }

    fn middle(&self) -> Result<&str, ToolError> {
        let none = || ToolError::Problem("this network has no bridge".into());
        self.middle.as_deref().ok_or_else(none)
    }

    fn add(&mut self, what: &str) -> Result<String, ToolError> {
        let name = own_name(what);
        ip(&["netns", "add", &name]).map_err(|error| {
            if namespaces().contains(&name) {
                return refused(format!(
                    "the namespace {name} is there already; `ip netns del {name}` takes it away"
                ));
            }
            error
        })?;
        self.names.push(name.clone());
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(name)
    }

    fn add_end(&mut self) -> Result<String, ToolError> {
        let n = self.ends.len() as u8;
        let name = self.add(&n.to_string())?;
        self.ends.push(End {
            namespace: Some(name.clone()),
            address: Ipv4Addr::new(10, 99, 0, n + 1),
        });
        Ok(name)
    }

    /// Gives the end its address and brings it up.
    fn set_up(&self, at: usize) -> Result<(), ToolError> {
        let End { namespace, address } = &self.ends[at];
        let name = namespace.as_deref().unwrap_or_default();
        let address = format!("{address}/24");
        ip(&["-n", name, "addr", "add", &address, "dev", "veth0"])?;
        ip(&["-n", name, "link", "set", "veth0", "up"])?;
        ip(&["-n", name, "route", "add", "224.0.0.0/4", "dev", "veth0"])
    }

    /// Checks whether this host lets us create namespaces. The error says why not.
    pub(crate) fn is_possible() -> Result<(), ToolError> {
        let mut network = Self::default();
        network.add("try").map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // The next run removes namespaces that can't be removed now.
            let _ = remove(name);
        }
    }
}

/// Returns this process's name of a namespace.
fn own_name(what: &str) -> String {
    format!("{NAMESPACE}{}-{what}", std::process::id())
}

/// Returns all named namespaces of this host, or none if the host does not list them.
pub(crate) fn namespaces() -> Vec<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let text = listed.map(|output| output.stdout).unwrap_or_default();
    // A line is a name, with an optional number in brackets.
    let lines = String::from_utf8_lossy(&text);
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Removes a namespace, whichever process created it.
///
/// # Errors
/// [`ToolError::Host`] if the host refuses.
pub(crate) fn remove(namespace: &str) -> Result<(), ToolError> {
    ip(&["netns", "del", namespace])
}

/// Returns the device at the bridge that an end is plugged into.
fn port(at: usize) -> String {
    format!("port{at}")
}

fn ip(args: &[&str]) -> Result<(), ToolError> {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> Result<(), ToolError> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ToolError::Start {
            path: program.into(),
            source,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(refused(format!(
        "`{program} {}` failed: {}",
        args.join(" "),
        said.trim()
    )))
}

fn refused(why: String) -> ToolError {
    ToolError::Host {
        what: "set up a network",
        source: io::Error::other(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_tools::exit::Exit;

    #[test]
    fn existing_namespace_stays_and_error_has_remedy() {
        let mut first = Network::default();
        if let Err(error) = first.add("twice") {
            println!("SKIPPED: this host has no namespaces for us: {error}");
            return;
        }
        let error = Network::default().add("twice").unwrap_err();
        let name = own_name("twice");
        assert_eq!(error.exit(), Exit::Internal);
        assert!(
            error.to_string().contains(&format!("ip netns del {name}")),
            "{error}"
        );
        assert!(namespaces().contains(&name), "it is not ours to remove");
        drop(first);
        assert!(!namespaces().contains(&name), "it goes with who made it");
    }
}
