//! Networks of namespaces that a run makes for itself, and takes away again; what a run that was killed
//! leaves, the next one does ([`leftovers`]). Nothing of the host's own network is touched.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::leftovers;
use tickcast_tools::exit::CommandError;

/// Where a process is.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The namespace; `None`: the host's own.
    namespace: Option<String>,
    /// Its address there.
    pub(crate) address: Ipv4Addr,
}

impl End {
    /// The host itself.
    pub(crate) const LOOPBACK: Self = Self {
        namespace: None,
        address: Ipv4Addr::LOCALHOST,
    };

    /// A program that will run there. It is the process that is started, not a child of it.
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

/// Namespaces, and what is between them. They go with this.
#[derive(Debug, Default)]
pub(crate) struct Network {
    names: Vec<String>,
    /// That of the bridge.
    middle: Option<String>,
    /// The sender's end, then the receivers'.
    pub(crate) ends: Vec<End>,
}

impl Network {
    /// Everyone on loopback.
    pub(crate) fn loopback(ends: usize) -> Self {
        let mut network = Self::default();
        network.ends = vec![End::LOOPBACK; ends];
        network
    }

    /// Two ends with a pair of devices between them.
    ///
    /// # Errors
    /// [`CommandError::Host`] names the step that the host refused.
    pub(crate) fn pair(mtu: usize) -> Result<Self, CommandError> {
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

    /// So many ends at a bridge.
    ///
    /// # Errors
    /// [`CommandError::Host`] names the step that the host refused.
    pub(crate) fn bridge(ends: usize, mtu: usize) -> Result<Self, CommandError> {
        let mut network = Self::default();
        let middle = network.add("bridge")?;
        let mtu = mtu.to_string();
        // Without snooping it takes every group to every port, as a switch without an IGMP querier.
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

    /// Pulls an end's cable out of the bridge, or puts it in again.
    ///
    /// # Errors
    /// [`CommandError::Host`] as above; where there is no bridge, that.
    pub(crate) fn plug(&self, at: usize, is_in: bool) -> Result<(), CommandError> {
        let state = if is_in { "up" } else { "down" };
        ip(&["-n", self.middle()?, "link", "set", &port(at), state])
    }

    /// Lets no more than so many kbit/s through to an end; `None`: whatever comes.
    ///
    /// # Errors
    /// As [`Self::plug`].
    pub(crate) fn limit(&self, at: usize, kbit_per_s: Option<u32>) -> Result<(), CommandError> {
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

    fn middle(&self) -> Result<&str, CommandError> {
        let none = || CommandError::Problem("this network has no bridge".into());
        self.middle.as_deref().ok_or_else(none)
    }

    fn add(&mut self, what: &str) -> Result<String, CommandError> {
        let name = leftovers::namespace(what);
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

    fn add_end(&mut self) -> Result<String, CommandError> {
        let n = self.ends.len() as u8;
        let name = self.add(&n.to_string())?;
        self.ends.push(End {
            namespace: Some(name.clone()),
            address: Ipv4Addr::new(10, 99, 0, n + 1),
        });
        Ok(name)
    }

    /// Gives the end its address and brings it up.
    fn set_up(&self, at: usize) -> Result<(), CommandError> {
        let End { namespace, address } = &self.ends[at];
        let name = namespace.as_deref().unwrap_or_default();
        let address = format!("{address}/24");
        ip(&["-n", name, "addr", "add", &address, "dev", "veth0"])?;
        ip(&["-n", name, "link", "set", "veth0", "up"])?;
        ip(&["-n", name, "route", "add", "224.0.0.0/4", "dev", "veth0"])
    }

    /// Whether this host lets us make namespaces; why not, in words.
    pub(crate) fn is_possible() -> Result<(), CommandError> {
        let mut network = Self::default();
        network.add("try").map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // What can't be removed now is swept away by the next run.
            let _ = remove(name);
        }
    }
}

/// All namespaces of this host that have a name; none where it doesn't say.
pub(crate) fn namespaces() -> Vec<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let text = listed.map(|output| output.stdout).unwrap_or_default();
    // A name, and perhaps a number in brackets.
    let lines = String::from_utf8_lossy(&text);
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Removes one, whoever made it.
///
/// # Errors
/// [`CommandError::Host`] when the host refuses.
pub(crate) fn remove(namespace: &str) -> Result<(), CommandError> {
    ip(&["netns", "del", namespace])
}

/// The device at the bridge that an end is plugged into.
fn port(at: usize) -> String {
    format!("port{at}")
}

fn ip(args: &[&str]) -> Result<(), CommandError> {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> Result<(), CommandError> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CommandError::Start {
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

fn refused(why: String) -> CommandError {
    CommandError::Host {
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
        let name = leftovers::namespace("twice");
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
