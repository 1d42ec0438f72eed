//! The network, the file system and the processes of a chaos run. The stage injects the faults and restarts
//! ended processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddrV4;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tickcast_reliability::ring::offset;
use tickcast_reliability::types::{ChannelId, Epoch};

use super::schedule::{Fault, Who};
use super::{side, stranger};
use crate::leftovers;
use crate::memory::{Growth, Memory};
use crate::network::Network;
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::files::{Folder, write_json};
use tickcast_tools::support::processes::{Process, killed_with_us, this_program};

/// The channels: the first on one line, the second on two.
pub(crate) const CHANNELS: [(&str, &[&str]); 2] = [("first", &["AAA*", "AAB*"]), ("rest", &["*"])];
const GROUPS: [&[&str]; 2] = [
    &["239.255.77.1:7501"],
    &["239.255.77.2:7502", "239.255.77.3:7503"],
];
const CONTROL_PORT: u16 = 7_400;
/// Size of the file system: rings, records, and some reserve.
const DISK_MIB: u32 = 96;
/// Delay until a process that failed to start is started again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Setup of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) publisher: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    pub(crate) subscribers: usize,
    pub(crate) messages_per_s: u64,
    /// Whether subscribers write interval logs of their latency.
    pub(crate) interval_logs: bool,
}

/// A file system in memory, of a size of its own. Dropping it unmounts it; after a kill, the next run does.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf) -> Result<Self, ToolError> {
        let made = fs::create_dir_all(&at);
        made.map_err(|source| ToolError::Write {
            path: at.clone(),
            source,
        })?;
        let size = format!("size={DISK_MIB}m");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &size, &leftovers::file_system()])
            .arg(&at);
        match mount.output() {
            Ok(output) if output.status.success() => Ok(Self(at)),
            Ok(output) => Err(ToolError::Host {
                what: "mount a file system",
                source: std::io::Error::other(format!(
                    "at {}: {}",
                    at.display(),
                    String::from_utf8_lossy(&output.stderr).trim()
                )),
            }),
            Err(source) => Err(ToolError::Start {
                path: "mount".into(),
                source,
            }),
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Writes a file until the file system is full.
    fn fill(&self) -> std::io::Result<()> {
        let mut file = File::create(self.filler())?;
        while file.write_all(&[0; 1 << 16]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because a killed process may not be gone yet.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Checks that this host allows all faults. The error says why not.
///
/// # Errors
/// [`ToolError`] names the step that the host refused.
pub(crate) fn is_possible() -> Result<(), ToolError> {
    let network = Network::bridge(1, 1_500)?;
    network.plug(0, false)?;
    network.limit(0, Some(64))?;
    let folder = Folder::new("chaos-try", None)?;
    Disk::new(folder.path().join("disk")).map(drop)
}

/// A role with its present process and the number of its lives.
struct Actor {
    who: Who,
    process: Option<Process>,
    lives: u32,
    born_at: Instant,
    memory: Memory,
}

impl Actor {
    fn new(who: Who) -> Self {
        Self {
            who,
            process: None,
            lives: 0,
            born_at: Instant::now(),
            memory: Memory::of_newborn(),
        }
    }

    /// Returns the name of its present life.
    fn name(&self) -> String {
        format!("{}.{}", self.who, self.lives)
    }
}

/// The results of a run, for its verdict.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    /// The last sealed record of each epoch.
    pub(crate) sealed: BTreeMap<(ChannelId, Epoch), u64>,
    /// Memory growth of the processes that lived long enough.
    pub(crate) growth: Vec<(String, Growth)>,
    /// Number of processes that could not start while the file system was full.
    pub(crate) refused_starts: u64,
    /// Unexpected ends of processes.
    pub(crate) wrong: Vec<String>,
    /// Number of lives by role.
    pub(crate) lives: BTreeMap<String, u32>,
    /// The publisher's summary of its last life.
    pub(crate) published: Value,
}

/// The whole setup of a run.
pub(crate) struct Stage {
    // The order of drops: processes first, then the network and the file system that they use.
    actors: Vec<Actor>,
    stranger: Option<Process>,
    network: Network,
    disk: Disk,
    setting: Setting,
    /// When the file system was last full.
    full_at: Option<Instant>,
    remains: Remains,
}

impl Stage {
    /// Creates network and file system, and starts all processes.
    ///
    /// # Errors
    /// [`ToolError`] names the step that the host refused.
    pub(crate) fn new(setting: Setting) -> Result<Self, ToolError> {
        let disk = Disk::new(setting.folder.join("disk"))?;
        let network = Network::bridge(setting.subscribers + 2, 1_500)?;
        let subscribers = (1..=setting.subscribers).map(Who::Subscriber);
        let mut stage = Self {
            actors: std::iter::once(Who::Publisher)
                .chain(subscribers)
                .map(Actor::new)
                .collect(),
            stranger: None,
            network,
            disk,
            setting,
            full_at: None,
            remains: Remains::default(),
        };
        for folder in ["rings", "state"] {
            let path = stage.disk.0.join(folder);
            fs::create_dir_all(&path).map_err(|source| ToolError::Write { path, source })?;
        }
        write_json(&stage.file("publisher.config.json"), &stage.config())?;
        for at in 0..stage.actors.len() {
            stage.start(at)?;
        }
        Ok(stage)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.setting.folder.join(name)
    }

    fn config(&self) -> Value {
        let channels = (1..)
            .zip(CHANNELS)
            .zip(GROUPS)
            .map(|((id, (name, symbols)), groups)| {
                let lines: Vec<_> = groups.iter().map(|group| json!({"group": group})).collect();
                json!({
                    "id": id, "name": name, "symbols": symbols, "slots": 4_096,
                    "peak_datagrams_per_s": 20_000,
                    "fan_out": [{"transport": "udp", "lines": lines}],
                })
            });
        json!({
            "name": "chaos",
            "control": self.control(),
            "interface": "veth0",
            "ttl": 1,
            "state_dir": self.disk.0.join("state"),
            "ring_dir": self.disk.0.join("rings"),
            "channels": channels.collect::<Vec<_>>(),
            "inputs": [{
                "source": 1, "kind": "simulator", "seed": self.setting.seed, "symbols": 200,
                "messages": u32::MAX, "duration_ms": 0,
                "pace": {"messages_per_s": self.setting.messages_per_s},
            }],
            "digest": true,
            "linger_ms": 30_000,
        })
    }

    fn control(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.network.ends[0].address, CONTROL_PORT)
    }

    fn start(&mut self, at: usize) -> Result<(), ToolError> {
        let actor = &mut self.actors[at];
        actor.lives += 1;
        actor.born_at = Instant::now();
        actor.memory = Memory::of_newborn();
        let (who, name, life) = (actor.who, actor.name(), actor.lives);
        let end = &self.network.ends[who.end()];
        let command = match who {
            Who::Publisher => {
                let mut command = end.command(&self.setting.publisher);
                command
                    .arg("--config")
                    .arg(self.file("publisher.config.json"));
                // A stranger may send to the groups while the publisher starts.
                command.arg("--force");
                command.arg("--summary").arg(self.file("publisher.json"));
                command.arg("--audit").arg(self.disk.0.join("audit"));
                command
            }
            Who::Subscriber(n) => {
                let odd = (n as u64 + u64::from(life)).is_multiple_of(2);
                let task = side::Task {
                    name: format!("{who}"),
                    publisher: self.control().to_string(),
                    interface: "veth0".into(),
                    channels: CHANNELS.iter().map(|(name, _)| (*name).into()).collect(),
                    ledger: self.file(&format!("{name}.ledger")),
                    record: self.disk.0.join(format!("{who}.record")),
                    interval_log: (self.setting.interval_logs)
                        .then(|| self.file(&format!("{who}.hlog"))),
                    from_oldest: odd,
                    // In every third life the buffer is too small.
                    receive_buffer_bytes: (life % 3 == n as u32 % 3).then_some(4_096),
                    // Every second subscriber has small windows, which any outage fills.
                    window_slots: (n % 2 == 1).then_some(1_024),
                    source_specific: n % 2 == 1,
                    seed: self.setting.seed.wrapping_mul(1_000) + u64::from(life) * 64 + n as u64,
                };
                let mut command = end.command(&this_program()?);
                command
                    .arg("chaos-side")
                    .arg(json!({"subscriber": task}).to_string());
                command
            }
        };
        let command = killed_with_us(&command);
        let process = Process::start(&name, command, &self.setting.folder)?;
        self.actors[at].process = Some(process);
        Ok(())
    }

    /// Kills a process, and collects its results.
    fn kill(&mut self, at: usize) {
        self.bury(at, |process| process.kill());
    }

    fn bury(&mut self, at: usize, end: impl FnOnce(&mut Process)) {
        let actor = &mut self.actors[at];
        let name = actor.name();
        if let Some(mut process) = actor.process.take() {
            end(&mut process);
        }
        if let Some(growth) = actor.memory.growth() {
            self.remains.growth.push((name.clone(), growth));
        }
        if actor.who == Who::Publisher {
            self.read_rings();
        }
        let log = fs::read_to_string(self.file(&format!("{name}.log"))).unwrap_or_default();
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            self.remains.wrong.push(format!("{name} panicked: {line}"));
        }
    }

    /// Reads the last sealed record of each ring, that is, how much was published.
    fn read_rings(&mut self) {
        for (id, (name, _)) in (1..).zip(CHANNELS) {
            let path = self.disk.0.join("rings").join(format!("chaos.{name}.ring"));
            let Ok(file) = File::open(path) else { continue };
            let word = |at: usize| {
                let mut word = [0; 8];
                file.read_exact_at(&mut word, at as u64)
                    .map(|()| u64::from_le_bytes(word))
            };
            if let (Ok(epoch @ 1..), Ok(next @ 1..)) =
                (word(offset::EPOCH), word(offset::NEXT_RECORD))
            {
                self.remains
                    .sealed
                    .insert((ChannelId(id), Epoch(epoch)), next - 1);
            }
        }
    }

    /// Begins a fault.
    ///
    /// # Errors
    /// [`ToolError`] names the step that the host refused.
    pub(crate) fn begin(&mut self, fault: Fault) -> Result<(), ToolError> {
        match fault {
            Fault::Kill(who) => self.kill(who.end()),
            Fault::LoseRings => {
                self.kill(0);
                for (name, _) in CHANNELS {
                    // The ring may not exist yet.
                    let ring = self.disk.0.join("rings").join(format!("chaos.{name}.ring"));
                    let _ = fs::remove_file(ring);
                }
            }
            Fault::KillAll => (0..self.actors.len())
                .filter(|at| *at != 1)
                .for_each(|at| self.kill(at)),
            Fault::Stop(who) => self.signal(who, "STOP"),
            Fault::Unplug(who) => self.network.plug(who.end(), false)?,
            Fault::Limit(who, rate) => self.network.limit(who.end(), Some(rate))?,
            Fault::Strangers => self.stranger = Some(self.a_stranger()?),
            Fault::FillDisk => {
                self.full_at = Some(Instant::now());
                let filled = self.disk.fill();
                filled.map_err(|source| ToolError::Write {
                    path: self.disk.filler(),
                    source,
                })?;
            }
        }
        Ok(())
    }

    /// Ends a fault.
    ///
    /// # Errors
    /// [`ToolError`] names the step that the host refused.
    pub(crate) fn end(&mut self, fault: Fault) -> Result<(), ToolError> {
        match fault {
            Fault::Kill(_) | Fault::LoseRings | Fault::KillAll => {}
            Fault::Stop(who) => self.signal(who, "CONT"),
            Fault::Unplug(who) => self.network.plug(who.end(), true)?,
            Fault::Limit(who, _) => self.network.limit(who.end(), None)?,
            Fault::Strangers => self.stranger = None,
            Fault::FillDisk => {
                let _ = fs::remove_file(self.disk.filler());
                self.full_at = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// Sends a signal to the present process of a role. A process that was killed meanwhile has a
    /// successor.
    fn signal(&self, who: Who, name: &str) {
        if let Some(process) = &self.actors[who.end()].process {
            let id = process.id().to_string();
            let _ = Command::new("kill").args(["-s", name, &id]).output();
        }
    }

    fn a_stranger(&self) -> Result<Process, ToolError> {
        let end = self
            .network
            .ends
            .last()
            .map_or(&self.network.ends[0], |end| end);
        let groups = GROUPS.iter().copied().flatten();
        let task = stranger::Task {
            own: end.address,
            groups: groups.filter_map(|group| group.parse().ok()).collect(),
            control: self.control().into(),
            seed: self.setting.seed,
        };
        let mut command = end.command(&this_program()?);
        command
            .arg("chaos-side")
            .arg(json!({"stranger": task}).to_string());
        Process::start("stranger", killed_with_us(&command), &self.setting.folder)
    }

    /// Restarts ended processes, and samples the memory of the others.
    ///
    /// # Errors
    /// [`ToolError`] if a process can't be started.
    pub(crate) fn look_after(&mut self) -> Result<(), ToolError> {
        for at in 0..self.actors.len() {
            let actor = &mut self.actors[at];
            let Some(process) = &mut actor.process else {
                if actor.born_at.elapsed() >= AGAIN_AFTER {
                    self.start(at)?;
                }
                continue;
            };
            let (id, ended) = (process.id(), process.ended()?);
            if let Some(code) = ended {
                let was_full = self
                    .full_at
                    .is_some_and(|at| at >= actor.born_at || at.elapsed() < Duration::from_secs(5));
                let text = process
                    .failed(format_args!("ended with {code}"))
                    .to_string();
                self.bury(at, |_| {});
                if was_full {
                    self.remains.refused_starts += 1;
                } else {
                    self.remains.wrong.push(text);
                }
                continue;
            }
            actor.memory.look(id);
        }
        Ok(())
    }

    /// Ends the session, and waits until all processes have ended.
    ///
    /// # Errors
    /// [`ToolError`] if the system can't report the state of a process.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<Remains, ToolError> {
        self.signal(Who::Publisher, "TERM");
        let began = Instant::now();
        for at in 0..self.actors.len() {
            while let Some(process) = &mut self.actors[at].process {
                let ended = process.ended()?;
                if ended.is_none() && began.elapsed() < patience {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                // Exit code 1 means that a subscriber asked for records that the ring no longer held.
                let codes: &[i32] = if at == 0 { &[0, 1] } else { &[0] };
                if ended.is_none_or(|code| !codes.contains(&code)) {
                    let how =
                        ended.map_or("never ended".into(), |code| format!("ended with {code}"));
                    let text = process.failed(how).to_string();
                    self.remains.wrong.push(text);
                }
                self.bury(at, |process| process.kill());
            }
            let (who, lives) = (self.actors[at].who, self.actors[at].lives);
            self.remains.lives.insert(who.to_string(), lives);
        }
        let summary = fs::read(self.file("publisher.json")).unwrap_or_default();
        self.remains.published = serde_json::from_slice(&summary).unwrap_or_default();
        Ok(std::mem::take(&mut self.remains))
    }
}
