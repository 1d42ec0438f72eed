//! One turn: the processes of one contender, from their start to their results.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::contender::{Process, Program};
use super::plan::{Measure, Way};
use super::protocol::{Load, Order, Part, Role, Task, Word};
use super::quiet::{Noise, Spent};
use crate::leftovers;
use crate::network::End;
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::signals::Stop;

/// The result of one turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Turn {
    /// The publishing process; in a round trip, the process that sends and waits.
    pub(crate) sender: Part,
    pub(crate) receivers: Vec<Part>,
    pub(crate) noise: Noise,
}

/// Where processes run.
pub(crate) struct Setting<'a> {
    /// The sender's end, then the receivers' ends.
    pub(crate) ends: &'a [End],
    /// Cores to pin to; empty: no process is pinned.
    pub(crate) cores: &'a [usize],
    pub(crate) stop: &'a Stop,
}

impl Setting<'_> {
    /// Returns the core of a process. The sender has the first core; the receivers share the others.
    fn core(&self, process: usize) -> Option<usize> {
        let (first, others) = self.cores.split_first()?;
        if process == 0 || others.is_empty() {
            return Some(*first);
        }
        Some(others[(process - 1) % others.len()])
    }
}

/// Runs one turn of a contender.
///
/// # Errors
/// [`ToolError`] if a process fails, or after a signal.
pub(crate) fn take_turn(
    measure: &Measure,
    contender: &str,
    program: &Program,
    setting: &Setting<'_>,
    seed: u64,
) -> Result<Turn, ToolError> {
    let folder = tempfile::Builder::new()
        .prefix(&leftovers::folder_prefix())
        .tempdir_in(leftovers::memory())
        .map_err(|source| ToolError::Host {
            what: "make a folder in memory",
            source,
        })?;
    let turn = Taking {
        measure,
        contender,
        program,
        setting,
        folder: folder.path(),
        seed,
    };
    match measure.way {
        Way::There => turn.there(),
        Way::ThereAndBack => turn.there_and_back(),
    }
}

/// Returns the groups of both directions. They are unique to this run, because runs may share a loopback.
fn groups(id: u32) -> [SocketAddrV4; 2] {
    let [.., high, low] = id.to_be_bytes();
    let port = 40_000 + (id % 10_000) as u16;
    // Aeron needs an odd last octet. It uses the next octet, which must exist, for its control.
    let low = (low % 254) | 1;
    // Each group has a port of its own. Aeron binds ports without an address and shares them
    // (SO_REUSEPORT). Among sockets that share a port, Linux may choose one that did not join the group
    // (early demux).
    [(253, port), (254, port + 10_000)]
        .map(|(second, port)| SocketAddrV4::new(Ipv4Addr::new(239, second, high, low), port))
}

struct Taking<'a> {
    measure: &'a Measure,
    contender: &'a str,
    program: &'a Program,
    setting: &'a Setting<'a>,
    folder: &'a Path,
    seed: u64,
}

impl Taking<'_> {
    fn start(
        &self,
        role: Role,
        process: usize,
        connect: Option<String>,
    ) -> Result<Process, ToolError> {
        let end = &self.setting.ends[process];
        let groups = groups(std::process::id());
        let index = process.saturating_sub(1);
        let loss = (self.measure.loss).map(|loss| super::protocol::Loss {
            seed: self.seed.wrapping_mul(1_000) + index as u64,
            ..loss
        });
        let task = Task {
            contender: self.contender.to_owned(),
            role,
            load: self.measure.load,
            interface: end.address,
            groups,
            spread: self.measure.spread,
            mtu: self.measure.mtu,
            receivers: self.measure.receivers,
            index,
            core: self.setting.core(process),
            connect,
            loss: loss.filter(|_| role == Role::Receive),
            folder: self.folder.to_owned(),
        };
        let name = format!("{}-{process}", self.contender);
        Process::start(&name, self.program, end, &task)
    }

    /// Returns how long the load itself takes.
    fn span(&self) -> Duration {
        match self.measure.load {
            Load::Flood { for_ms, .. } => Duration::from_millis(for_ms),
            Load::Feed { .. } => Duration::from_secs(30),
            load @ Load::Paced { ticks, .. } => Duration::from_nanos(load.due_ns(ticks.max(1))),
        }
    }

    fn ready(&self, process: &mut Process) -> Result<String, ToolError> {
        loop {
            if let Word::Ready(address) = process.listen(self.setting.stop, Duration::ZERO)? {
                return Ok(address);
            }
        }
    }

    fn joined(&self, process: &mut Process) -> Result<(), ToolError> {
        while process.listen(self.setting.stop, Duration::ZERO)? != Word::Joined {}
        Ok(())
    }

    fn sent(&self, process: &mut Process) -> Result<u64, ToolError> {
        loop {
            if let Word::Sent(ticks) = process.listen(self.setting.stop, self.span())? {
                return Ok(ticks);
            }
        }
    }

    fn there(&self) -> Result<Turn, ToolError> {
        let mut sender = self.start(Role::Send, 0, None)?;
        let address = self.ready(&mut sender)?;
        let mut receivers = (1..=self.measure.receivers)
            .map(|n| self.start(Role::Receive, n, Some(address.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        for receiver in &mut receivers {
            self.joined(receiver)?;
        }
        let ids: Vec<u32> = receivers
            .iter()
            .map(Process::id)
            .chain([sender.id()])
            .collect();
        let before = Spent::now(ids.iter().copied());
        sender.tell(&Order::Go);
        let ticks = self.sent(&mut sender)?;
        let noise = Spent::now(ids).since(before);
        for receiver in &mut receivers {
            receiver.tell(&Order::Expect(ticks));
        }
        let stop = self.setting.stop;
        let received = receivers.iter_mut();
        let received = received.map(|receiver| receiver.part(stop, self.span()));
        let receivers = received.collect::<Result<_, _>>()?;
        sender.tell(&Order::Finish);
        Ok(Turn {
            sender: sender.part(stop, Duration::ZERO)?,
            receivers,
            noise,
        })
    }

    fn there_and_back(&self) -> Result<Turn, ToolError> {
        let mut ping = self.start(Role::Ping, 0, None)?;
        let address = self.ready(&mut ping)?;
        let mut echo = self.start(Role::Echo, 1, Some(address))?;
        let address = self.ready(&mut echo)?;
        ping.tell(&Order::Connect(address));
        self.joined(&mut ping)?;
        self.joined(&mut echo)?;
        let ids = [ping.id(), echo.id()];
        let before = Spent::now(ids);
        ping.tell(&Order::Go);
        let ticks = self.sent(&mut ping)?;
        let noise = Spent::now(ids).since(before);
        let stop = self.setting.stop;
        let waited = ping.part(stop, Duration::ZERO)?;
        echo.tell(&Order::Finish);
        let echoed = echo.part(stop, Duration::ZERO)?;
        Ok(Turn {
            sender: Part {
                ticks,
                memory_bytes: echoed.memory_bytes,
                cpu_ns: waited.cpu_ns,
                ..Part::default()
            },
            receivers: vec![waited],
            noise,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aeron_directions_use_distinct_groups_and_ports() {
        for id in [1, 254, 255, 9_999, 10_000, 65_535, 4_194_303, u32::MAX] {
            let [there, back] = groups(id);
            assert_ne!(there.ip(), back.ip());
            assert_ne!(there.port(), back.port(), "{id}");
            for group in [there, back] {
                let last = group.ip().octets()[3];
                assert!(last % 2 == 1 && last < 255, "{group}");
            }
        }
    }
}
