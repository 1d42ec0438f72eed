//! The network of a measure: namespaces that this run makes for itself, and takes away again
//! whatever happens. Nothing of the host's own network is touched.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::plan::Place;
use crate::exit::CommandError;

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

/// The namespaces of a measure. They go with this.
#[derive(Debug, Default)]
pub(crate) struct Network {
    names: Vec<String>,
    /// The sender's end, then the receivers'.
    pub(crate) ends: Vec<End>,
}

impl Network {
    /// Everyone on loopback.
    pub(crate) fn loopback(ends: usize) -> Self {
        Self {
            names: Vec::new(),
            ends: vec![End::LOOPBACK; ends],
        }
    }

    /// A network of so many ends.
    ///
    /// # Errors
    /// [`CommandError::Problem`] names the step that the host refused.
    pub(crate) fn new(place: Place, ends: usize, mtu: usize) -> Result<Self, CommandError> {
        let mut network = Self::default();
        match place {
            Place::Host => network.ends = vec![End::LOOPBACK; ends],
            Place::Veth => network.pair(mtu)?,
            Place::Bridge => network.bridge(ends, mtu)?,
        }
        Ok(network)
    }

    fn add(&mut self, what: &str) -> Result<String, CommandError> {
        let name = format!("tickcast-bench-{}-{what}", std::process::id());
        ip(&["netns", "add", &name])?;
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

    fn pair(&mut self, mtu: usize) -> Result<(), CommandError> {
        let (a, b) = (self.add_end()?, self.add_end()?);
        let mtu = mtu.to_string();
        ip(&[
            "link", "add", "veth0", "mtu", &mtu, "netns", &a, "type", "veth", "peer", "name",
            "veth0", "mtu", &mtu, "netns", &b,
        ])?;
        (0..2).try_for_each(|at| self.set_up(at))
    }

    fn bridge(&mut self, ends: usize, mtu: usize) -> Result<(), CommandError> {
        let middle = self.add("bridge")?;
        let mtu = mtu.to_string();
        // Without snooping it takes every group to every port, as a switch without an IGMP querier.
        ip(&[
            "-n",
            &middle,
            "link",
            "add",
            "bridge0",
            "mtu",
            &mtu,
            "type",
            "bridge",
            "mcast_snooping",
            "0",
        ])?;
        ip(&["-n", &middle, "link", "set", "bridge0", "up"])?;
        for at in 0..ends {
            let (end, port) = (self.add_end()?, format!("port{at}"));
            ip(&[
                "link", "add", "veth0", "mtu", &mtu, "netns", &end, "type", "veth", "peer", "name",
                &port, "mtu", &mtu, "netns", &middle,
            ])?;
            ip(&[
                "-n", &middle, "link", "set", &port, "master", "bridge0", "up",
            ])?;
            self.set_up(at)?;
        }
        Ok(())
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
            // What can't be removed is named by `ip` on stderr.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), CommandError> {
    let output = Command::new("ip")
        .args(args.iter().map(OsStr::new))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CommandError::Start {
            path: "ip".into(),
            source,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CommandError::Problem(format!(
        "`ip {}` failed: {}",
        args.join(" "),
        said.trim()
    )))
}
