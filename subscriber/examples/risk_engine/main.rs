//! A risk engine. It computes positions from a fills file, marks from the stream, and results and exposures
//! per portfolio and instrument. It gives an alert whenever a limit is breached or kept again.
//!
//! `risk_engine --publisher 127.0.0.1:7400 --channel all --fills fills.csv --limits limits.csv`
//!
//! Without fills of your own, first write fills for the stream with `--make-fills fills.csv`. [`engine`],
//! [`position`] and [`market`] define the computation, and [`input`] defines the files. Alerts go to
//! stdout, and events of the stream to stderr. Exit codes:
//! - 0: complete
//! - 1: something was lost, or a fill had no place
//! - 2: usage error
//! - 3: the publisher can't be reached

mod book;
mod engine;
mod input;
mod make;
mod market;
mod money;
mod position;
mod report;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use engine::Engine;
use make::Maker;
use tickcast_subscriber::Epoch;
use tickcast_subscriber::faults::{Burst, FaultConfig};
use tickcast_subscriber::{
    ChannelBuilder, Core, Event, Idle, Item, Monitor, ReceiverConfig, Start, SubscribeError,
    Subscriber,
};

/// Computes positions, results and limits over a channel.
#[derive(Debug, Parser)]
struct Args {
    /// The publisher's control address.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    publisher: String,
    /// The channel, by name or number.
    #[arg(long, value_name = "NAME|ID", default_value = "equities")]
    channel: String,
    /// CSV file of fills, with their places in the stream.
    #[arg(long, value_name = "FILE")]
    fills: Option<PathBuf>,
    /// CSV file of limits.
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Write all results to this JSON file at the end.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write fills for this stream to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "fills")]
    make_fills: Option<PathBuf>,
    /// With --make-fills: make one fill per this many records.
    #[arg(long, value_name = "N", default_value_t = 20)]
    one_in: u64,
    /// The seed of all random decisions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Freeze everything when nothing arrives for this long.
    #[arg(long, value_name = "US", default_value_t = ReceiverConfig::default().stale_us)]
    stale_us: u32,
    /// Give up when the publisher has not welcomed us after this long.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    join_limit_ms: u64,
    /// Receive on a separate thread, into a ring from which the engine reads at its own speed.
    #[arg(long)]
    split: bool,
    /// With --split: the core of the receiving thread.
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: usize,
    /// With --split: the size of the ring.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    ring_mib: usize,
    /// Be slow: sleep for this long after every --sleep-every records.
    #[arg(long, value_name = "US", default_value_t = 0)]
    sleep_us: u64,
    /// With --sleep-us: the number of records between two sleeps.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    sleep_every: u64,
    /// Drop this share of the arriving datagrams.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop: f64,
    /// Drop in bursts of this mean length.
    #[arg(long, value_name = "L")]
    burst: Option<f64>,
    /// Request no repair: missing datagrams are lost.
    #[arg(long)]
    no_repair: bool,
}

impl Args {
    fn subscriber(&self) -> Result<Subscriber, SubscribeError> {
        let config = ReceiverConfig {
            repair: !self.no_repair,
            stale_us: self.stale_us,
            dead_us: ReceiverConfig::default()
                .dead_us
                .max(self.stale_us.saturating_add(1)),
            ..ReceiverConfig::default()
        };
        // A book needs everything since the session began.
        let channel = ChannelBuilder::new(&self.channel)
            .config(config)
            .start(Start::Oldest);
        let builder = Subscriber::builder(&self.publisher)
            .name("risk-engine")
            .join_limit(Duration::from_millis(self.join_limit_ms))
            .channel(channel);
        if self.drop == 0.0 {
            return builder.build();
        }
        let burst = self.burst.map(|mean_len| Burst {
            loss: self.drop,
            mean_len,
        });
        builder
            .faults(FaultConfig {
                seed: self.seed,
                drop: if burst.is_none() { self.drop } else { 0.0 },
                burst,
                ..FaultConfig::default()
            })
            .build()
    }
}

/// Processes items: the engine, the maker of fills, and the output.
struct Desk {
    engine: Engine,
    maker: Option<Maker>,
    monitor: Monitor,
    has_joined: bool,
    sleep: Duration,
    sleep_every: u64,
}

impl Desk {
    fn take(&mut self, item: &Item<'_>) {
        let unnamed = self.engine.counts.unnamed;
        self.engine.take(item);
        match item {
            Item::Record(position, record) => {
                if self.engine.counts.unnamed > unnamed {
                    self.learn_names(position.epoch);
                }
                if let Some(maker) = &mut self.maker {
                    maker.after(*record, position.record.0, &self.engine);
                }
                let counted = self.engine.counts.records;
                if !self.sleep.is_zero() && counted.is_multiple_of(self.sleep_every) {
                    std::thread::sleep(self.sleep);
                }
            }
            Item::Event(_, Event::GapRecovered { .. }) => {}
            Item::Event(position, event) => {
                eprintln!("{} {event}", position.record);
                if matches!(event, Event::Joined { .. } | Event::Live) {
                    self.has_joined = true;
                    self.learn_names(position.epoch);
                }
                if let Event::EpochChanged { to, .. } = event {
                    self.learn_names(*to);
                }
                if let Event::Overrun(overrun) = event {
                    self.has_joined = true;
                    // The overrun may have contained names.
                    self.learn_names(overrun.to.epoch);
                }
            }
        }
        for alert in self.engine.alerts.drain(..) {
            println!("{alert}");
        }
    }

    /// Learns names from the directory, because a late subscriber has missed the records that name the
    /// instruments. Names of a later epoch are skipped, because its ids may name other instruments.
    fn learn_names(&mut self, epoch: Epoch) {
        let directory = self.monitor.directory();
        // Read the channels after the directory, which then is of this epoch or an earlier one.
        let channels = self.monitor.channels();
        let known = channels[0].epoch;
        let instruments = channels
            .iter()
            .filter_map(|c| directory.channel(c.channel?));
        let names = instruments.flat_map(|instruments| instruments.iter());
        self.engine.learn(epoch, names, known);
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("risk_engine: {error}");
            2.into()
        }
    }
}

fn run(args: &Args) -> Result<u8, Box<dyn Error>> {
    let fills = args.fills.as_deref().map(|path| parse(path, input::fills));
    let limits = args
        .limits
        .as_deref()
        .map(|path| parse(path, input::Limits::read));
    let (fills, limits) = (fills.transpose()?, limits.transpose()?);
    let subscriber = args.subscriber()?;
    let mut desk = Desk {
        engine: Engine::new(fills.unwrap_or_default(), limits.unwrap_or_default()),
        maker: (args.make_fills.as_ref()).map(|_| Maker::new(args.seed, args.one_in)),
        monitor: subscriber.monitor(),
        has_joined: false,
        sleep: Duration::from_micros(args.sleep_us),
        sleep_every: args.sleep_every.max(1),
    };
    let is_over = if args.split {
        follow_ring(args, subscriber, &mut desk)?
    } else {
        follow(subscriber, &mut desk)?
    };
    if !is_over {
        let problem = desk.monitor.problem().unwrap_or_default();
        eprintln!("risk_engine: {}: {problem}", args.publisher);
        return Ok(3);
    }
    let Desk { engine, maker, .. } = desk;
    if let (Some(path), Some(maker)) = (&args.make_fills, maker) {
        write(path, &maker.text)?;
    }
    if let Some(path) = &args.summary {
        write(path, &format!("{:#}\n", report::summary(&engine)))?;
    }
    print!("{}", report::table(&engine));
    let is_whole = engine.counts.losses == 0 && engine.fills_left() == 0;
    Ok(u8::from(!is_whole))
}

/// The time limit of one wait for something to happen.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Processes all items until the session ends. Returns false when it never began.
fn follow(mut subscriber: Subscriber, desk: &mut Desk) -> Result<bool, Box<dyn Error>> {
    while !subscriber.ended() {
        let polled = subscriber.poll(|item| desk.take(&item));
        if polled.problem && !desk.has_joined {
            return Ok(false);
        }
        if !polled.worked() {
            subscriber.wait(LOOK_AROUND)?;
        }
    }
    subscriber.leave_with(|item| desk.take(&item));
    Ok(true)
}

/// Processes all items as [`follow`] does, while another thread receives.
fn follow_ring(
    args: &Args,
    subscriber: Subscriber,
    desk: &mut Desk,
) -> Result<bool, Box<dyn Error>> {
    let (core, idle) = (Core(args.core), Idle::Sleep { us: 50 });
    let (running, mut reader) = subscriber.split(core, idle, args.ring_mib << 20)?;
    while !reader.is_over() {
        if reader.poll(|item| desk.take(&item)).worked() {
            continue;
        }
        if !desk.has_joined && desk.monitor.problem().is_some() {
            return Ok(false);
        }
        reader.wait(LOOK_AROUND);
    }
    running.join()?;
    Ok(true)
}

fn parse<T>(
    path: &Path,
    read: impl Fn(&str) -> Result<T, input::InputError>,
) -> Result<T, Box<dyn Error>> {
    let named = |error: &dyn Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    Ok(read(&text).map_err(|error| named(&error))?)
}

fn write(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    let written = std::fs::write(path, text);
    Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
}
