//! Interprets a config: resolves interfaces, checks geometries, maps symbols, and compares related
//! values. A publisher with a checked plan does not fail because of its config.

mod all_feeds;
mod endpoints;
pub(crate) mod fan_out;
mod keys;
mod repair;
pub(crate) mod routing;
mod standby;

use std::fmt;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::str::FromStr;

use jiff::civil::Date;
use tickcast_feeds::itch::TradeDate;
use tickcast_reliability::control::{NAME_LEN_MAX, REPAIR_OFFERS_MAX};
use tickcast_reliability::ring::{CHECKPOINTS_MAX, FAN_OUTS_MAX, Geometry};
use tickcast_reliability::types::{ChannelId, ConfigHash, SourceId};
use tickcast_reliability::wire::WIRE_VERSION;
use tickcast_transport::host::interface::{Interface, ResolvedInterface};
use tickcast_transport::host::mapping::SharedMapping;
use tracing_subscriber::EnvFilter;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::input::PATH_LEN_MAX;
use crate::config::{
    ChannelConfig, Config, FanOutConfig, InputConfig, InputFormat, OwnInputConfig, Pace,
    ThreadMode, WaitForSubscribers,
};
use crate::config::{journal, latency_log};
use crate::error::ConfigError;
use crate::plan::routing::{CHANNELS_MAX, SymbolRule, SymbolRules};
use fan_out::{At, Groups, check_total};
pub(crate) use fan_out::{FanOutPlan, LinePlace};

/// A checked config.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The config, with all defaults.
    pub config: Config,
    /// The channels, in the order of the config.
    pub channels: Vec<ChannelPlan>,
    /// The symbols of each channel.
    pub rules: SymbolRules,
    /// Values that work, but probably not as intended.
    pub warnings: Vec<String>,
}

/// One channel.
#[derive(Clone, Debug)]
pub struct ChannelPlan {
    /// Number of the channel.
    pub id: ChannelId,
    /// Name of the channel.
    pub name: String,
    /// Geometry of the ring.
    pub geometry: Geometry,
    /// Seconds that the ring holds at the peak rate.
    pub holds_s: f64,
    /// Hash of what two processes must agree on.
    pub config_hash: ConfigHash,
    /// Fan-outs of the channel.
    pub fan_outs: Vec<FanOutPlan>,
    /// Margin in slots, as in the config.
    pub fan_out_margin_slots: u64,
    /// Number of datagrams that one key authenticates; `None` when the channel is not authenticated.
    pub datagrams_per_key: Option<u64>,
}

impl ChannelPlan {
    /// Returns the file of its ring, if subscribers on this host may map it.
    #[must_use]
    pub fn shared_at(&self) -> Option<&Path> {
        self.fan_outs.iter().find_map(|fan_out| match fan_out {
            FanOutPlan::Shm { path, .. } => Some(path.as_path()),
            _ => None,
        })
    }
}

impl Plan {
    /// Checks a config for the service, and resolves its names. Opens only RDMA devices, briefly, to query
    /// their limits, and the captures of inputs with `all_feeds`, to find their feeds.
    ///
    /// # Errors
    /// Returns [`ConfigError`] with the JSON path, the value, and the remedy.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        located(config, Self::for_service)
    }

    fn for_service(config: Config) -> Result<Self, ConfigError> {
        let is_own = |input: &InputConfig| matches!(input, InputConfig::Own(_));
        if let Some(index) = config.inputs.iter().position(is_own) {
            let remedy = "the service runs no handlers: use the publisher library, or let the \
                          handler write into an input of kind \"records\"";
            return Err(ConfigError::value(
                format!("inputs[{index}].kind"),
                "\"own\"",
                remedy,
            ));
        }
        if config.inputs.is_empty() {
            let remedy = "the service publishes its inputs; name at least one";
            return Err(ConfigError::value("inputs", "[]", remedy));
        }
        Self::checked(config)
    }

    /// Checks a config for handlers in this process. If the config has no inputs, the handlers are
    /// source 1.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::new`].
    pub fn for_handlers(config: Config) -> Result<Self, ConfigError> {
        located(config, Self::for_own)
    }

    fn for_own(mut config: Config) -> Result<Self, ConfigError> {
        if config.threads.mode == ThreadMode::Inline {
            let remedy = "a handler needs a publish thread, which sends heartbeats while the \
                          handler is silent; use \"threaded\"";
            return Err(ConfigError::value("threads.mode", "\"inline\"", remedy));
        }
        if config.standby.is_some() {
            let remedy = "only the service can be a standby, because a handler's messages can't \
                          be held back; let the handler write into an input of kind \"records\"";
            return Err(ConfigError::value("standby", "a config of it", remedy));
        }
        if config.inputs.is_empty() {
            config.inputs.push(InputConfig::Own(OwnInputConfig {
                source: SourceId(1),
                channel: None,
            }));
        }
        Self::checked(config)
    }

    fn checked(config: Config) -> Result<Self, ConfigError> {
        check_name("name", &config.name)?;
        let mut warnings = Vec::new();
        let channels = channels(&config, &mut warnings)?;
        let rules = rules(&config, &mut warnings)?;
        inputs(&config, &mut warnings)?;
        timers(&config, &mut warnings)?;
        ring_dir(&config, &channels, &mut warnings)?;
        journal::check(&config)?;
        latency_log::check(&config)?;
        if !(2..=1 << 20).contains(&config.threads.queue_batches) {
            let remedy = "it must be from 2 to 1048576";
            return Err(ConfigError::value(
                "threads.queue_batches",
                config.threads.queue_batches,
                remedy,
            ));
        }
        if let Some(verbs) = config.repair_verbs.as_ref().filter(|it| it.cursors > 4_096) {
            let remedy = "it must be from 0 to 4096";
            return Err(ConfigError::value(
                "repair_verbs.cursors",
                verbs.cursors,
                remedy,
            ));
        }
        let over_verbs = config.repair_verbs.as_ref();
        if let Some(verbs) = over_verbs.filter(|it| it.interfaces.len() > REPAIR_OFFERS_MAX) {
            return Err(ConfigError::value(
                "repair_verbs.interfaces",
                format_args!("{} interfaces", verbs.interfaces.len()),
                format_args!(
                    "there may be at most {REPAIR_OFFERS_MAX}, which is what a subscriber uses"
                ),
            ));
        }
        if let Some(verbs) = over_verbs.filter(|it| !(2..=65_536).contains(&it.connections_max)) {
            let remedy =
                "it must be from 2 to 65536: two for each subscriber that repairs over verbs";
            return Err(ConfigError::value(
                "repair_verbs.connections_max",
                verbs.connections_max,
                remedy,
            ));
        }
        if let Err(error) = EnvFilter::builder().parse(config.log()) {
            let value = serde_json::json!(config.log());
            return Err(ConfigError::value("log", value, error));
        }
        endpoints::check(&config)?;
        repair::check(&config, &channels, &mut warnings);
        standby::check(&config, &mut warnings)?;
        let config = all_feeds::divide(config)?;
        if config.inputs.iter().filter(|it| may_be_itch(it)).count() > 1 {
            warnings.push(SEVERAL_ITCH.into());
        }
        Ok(Self {
            config,
            channels,
            rules,
            warnings,
        })
    }
}

/// Makes a plan. An error names its place in the config's text.
fn located(
    config: Config,
    plan: impl FnOnce(Config) -> Result<Plan, ConfigError>,
) -> Result<Plan, ConfigError> {
    let text = config.text.clone();
    plan(config).map_err(|error| text.locate(error))
}

fn check_name(at: &str, name: &str) -> Result<(), ConfigError> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(is_good)
        && !name.starts_with('.')
    {
        return Ok(());
    }
    let remedy = "a name is 1 to 64 letters, digits, '-', '_' or '.', and does not begin with '.'";
    Err(ConfigError::value(at, format_args!("{name:?}"), remedy))
}

fn channels(config: &Config, warnings: &mut Vec<String>) -> Result<Vec<ChannelPlan>, ConfigError> {
    if !(1..=CHANNELS_MAX).contains(&config.channels.len()) {
        let count = format!("{} channels", config.channels.len());
        let remedy = "a publisher has from 1 to 64";
        return Err(ConfigError::value("channels", count, remedy));
    }
    let mut groups = Groups::new();
    let mut plans: Vec<ChannelPlan> = Vec::new();
    for (index, channel) in config.channels.iter().enumerate() {
        let at = format!("channels[{index}]");
        check_name(&format!("{at}.name"), &channel.name)?;
        if plans.iter().any(|other| other.id == channel.id) {
            let remedy = "another channel has this id; give each channel its own id";
            return Err(ConfigError::value(format!("{at}.id"), channel.id, remedy));
        }
        if plans.iter().any(|other| other.name == channel.name) {
            let remedy = "another channel has this name; give each channel its own name";
            return Err(ConfigError::value(
                format!("{at}.name"),
                &channel.name,
                remedy,
            ));
        }
        let plan = channel_plan(config, channel, &at, &mut groups, warnings)?;
        if let Some(path) = plan.shared_at()
            && plans.iter().any(|other| other.shared_at() == Some(path))
        {
            let remedy =
                "another channel has its ring in this file; give each channel its own file";
            return Err(ConfigError::value(at, path.display(), remedy));
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Returns the reason for having no digest after a restart in the same epoch. A digest needs the
/// published messages replayed in their order.
pub(crate) fn why_no_digest(config: &Config, channel: &str) -> Option<&'static str> {
    let is_for_it = |it: &&InputConfig| it.channel().is_none_or(|name| name == channel);
    let mut inputs = config.inputs.iter().filter(is_for_it);
    match (inputs.next(), inputs.next()) {
        (Some(only), None) if only.is_replayed() => None,
        (Some(_), Some(_)) => Some("several inputs are not replayed in their original order"),
        _ => Some("messages of live inputs and handlers are not replayed"),
    }
}

fn channel_plan(
    config: &Config,
    channel: &ChannelConfig,
    at: &str,
    groups: &mut Groups,
    warnings: &mut Vec<String>,
) -> Result<ChannelPlan, ConfigError> {
    let geometry = Geometry::new(channel.slot_len, channel.slots).map_err(|error| {
        ConfigError::value(at, format_args!("the ring of {}", channel.name), error)
    })?;
    if channel.peak_datagrams_per_s == 0 {
        let remedy = "it must be at least 1";
        return Err(ConfigError::value(
            format!("{at}.peak_datagrams_per_s"),
            0,
            remedy,
        ));
    }
    let margin = channel.fan_out_margin_slots;
    if margin != 0 && !(2..=channel.slots - 2).contains(&margin) {
        let remedy = "it must be 0 (an eighth of the ring), or from 2 to slots - 2";
        return Err(ConfigError::value(
            format!("{at}.fan_out_margin_slots"),
            margin,
            remedy,
        ));
    }
    let datagrams_per_key = keys::datagrams_per_key(channel, at, warnings)?;
    let holds_s = channel.slots as f64 / channel.peak_datagrams_per_s as f64;
    let needed_s = (config.subscribers.gap_deadline_us as f64 * 4e-6).max(1.0);
    if holds_s < needed_s {
        let slots = (needed_s * channel.peak_datagrams_per_s as f64).ceil() as u64;
        warnings.push(format!(
            "channel {}: its ring holds {holds_s:.2} s at {} datagrams/s, less than {needed_s:.2} s \
             (4 x gap deadline, at least 1 s): set slots to {} or more",
            channel.name,
            channel.peak_datagrams_per_s,
            slots.next_power_of_two()
        ));
    }
    if !(1..=FAN_OUTS_MAX).contains(&channel.fan_out.len()) {
        let count = format!("{} fan-outs", channel.fan_out.len());
        let remedy = format!("a channel has from 1 to {FAN_OUTS_MAX}");
        return Err(ConfigError::value(format!("{at}.fan_out"), count, remedy));
    }
    let mut fan_outs = Vec::new();
    for (index, fan_out) in channel.fan_out.iter().enumerate() {
        let at = At {
            channel: at,
            fan_out: format!("{at}.fan_out[{index}]"),
        };
        fan_outs.push(match fan_out {
            FanOutConfig::Udp(udp) => fan_out::udp(config, channel, udp, &at, groups, warnings)?,
            FanOutConfig::Verbs(verbs) => {
                fan_out::verbs(config, channel, verbs, &at, groups, warnings)?
            }
            FanOutConfig::Shm(shm) => fan_out::shm(config, shm, index, &at, &fan_outs)?,
        });
    }
    check_total(at, &fan_outs)?;
    let mut agreed = serde_json::json!({
        "wire_version": WIRE_VERSION, "id": channel.id, "name": channel.name,
        "slot_len": channel.slot_len, "slots": channel.slots, "symbols": channel.symbols,
    });
    if channel.authentication {
        agreed["authentication"] = true.into();
    }
    Ok(ChannelPlan {
        id: channel.id,
        name: channel.name.clone(),
        geometry,
        holds_s,
        config_hash: ConfigHash(xxh3_64(agreed.to_string().as_bytes())),
        fan_outs,
        fan_out_margin_slots: margin,
        datagrams_per_key,
    })
}

pub(crate) fn resolve(interface: &Interface, at: &str) -> Result<ResolvedInterface, ConfigError> {
    let resolved = interface.resolve();
    resolved.map_err(|error| ConfigError::value(at, interface, error))
}

fn rules(config: &Config, warnings: &mut Vec<String>) -> Result<SymbolRules, ConfigError> {
    let mut all = Vec::new();
    for (index, channel) in config.channels.iter().enumerate() {
        let at = format!("channels[{index}].symbols");
        if channel.symbols.is_empty() {
            let remedy =
                "name at least one symbol, or [\"*\"] for all symbols that no other channel has";
            return Err(ConfigError::value(at, "[]", remedy));
        }
        let mut rules = Vec::new();
        for (index, text) in channel.symbols.iter().enumerate() {
            let rule = SymbolRule::parse(text).map_err(|remedy| {
                ConfigError::value(format!("{at}[{index}]"), format_args!("{text:?}"), remedy)
            })?;
            rules.push(rule);
        }
        all.push(rules);
    }
    let rules = SymbolRules::new(all);
    if rules.rest().is_empty() {
        warnings.push(
            "no channel has the symbols [\"*\"]: messages of instruments that no channel names \
             are counted, and not published"
                .into(),
        );
    }
    Ok(rules)
}

/// Checks the names of subscribers that an input waits for.
fn check_awaited(at: &str, names: &[String]) -> Result<(), ConfigError> {
    if names.is_empty() {
        let remedy = "name at least one subscriber, or give a number";
        return Err(ConfigError::value(at, "[]", remedy));
    }
    let is_possible = |name: &String| (1..=NAME_LEN_MAX).contains(&name.len());
    match names.iter().position(|name| !is_possible(name)) {
        None => Ok(()),
        Some(index) => {
            let (at, name) = (format!("{at}[{index}]"), &names[index]);
            let remedy = "a subscriber's name has from 1 to 64 bytes";
            Err(ConfigError::value(at, format_args!("{name:?}"), remedy))
        }
    }
}

fn inputs(config: &Config, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    if config.inputs.len() > CHECKPOINTS_MAX {
        let count = format!("{} inputs", config.inputs.len());
        let remedy = format!("a publisher has at most {CHECKPOINTS_MAX}");
        return Err(ConfigError::value("inputs", count, remedy));
    }
    for (index, input) in config.inputs.iter().enumerate() {
        let at = format!("inputs[{index}]");
        let source = input.source();
        if config.inputs[..index].iter().any(|i| i.source() == source) {
            let remedy = "another input has this source number; give each input its own number";
            return Err(ConfigError::value(format!("{at}.source"), source, remedy));
        }
        if let Some(name) = input.channel()
            && !config.channels.iter().any(|c| c.name == name)
        {
            let remedy = "no channel has this name";
            let at = format!("{at}.channel");
            return Err(ConfigError::value(at, format_args!("{name:?}"), remedy));
        }
        check_holding(input, &at)?;
        check_busy_poll(input, &at)?;
        if let Some(WaitForSubscribers::Names(names)) = input.wait_for_subscribers() {
            check_awaited(&format!("{at}.wait_for_subscribers"), names)?;
        }
        let (pace, date) = match input {
            InputConfig::Capture(input) => {
                if input.records_max == Some(0) {
                    return Err(no_records(&at));
                }
                if !(1..=LINES_MAX).contains(&input.files.len()) {
                    let remedy = "an input has 1 to 8 files; name the path of each";
                    let at = format!("{at}.file");
                    return Err(ConfigError::value(at, input.files.len(), remedy));
                }
                if input.format == InputFormat::BinaryFile && input.files.len() > 1 {
                    let remedy = "files of messages are not merged; name one, or use auto";
                    let at = format!("{at}.format");
                    return Err(ConfigError::value(at, "binary-file", remedy));
                }
                (Some(input.pace), input.trade_date.as_deref())
            }
            InputConfig::Simulator(input) => {
                let checked = input.market.check();
                checked.map_err(|error| ConfigError::value(&at, "the market", error))?;
                if input.records_max == Some(0) {
                    return Err(no_records(&at));
                }
                (Some(input.pace), Some(&*input.trade_date))
            }
            InputConfig::Udp(input) => {
                if input.format == InputFormat::BinaryFile {
                    let remedy = "packets are never a file; use auto, iex-tp or moldudp64-itch50";
                    let at = format!("{at}.format");
                    return Err(ConfigError::value(at, "binary-file", remedy));
                }
                if !(1..=LINES_MAX).contains(&input.lines.len()) {
                    let remedy = "an input has 1 to 8 lines; name the address of each";
                    let at = format!("{at}.lines");
                    return Err(ConfigError::value(at, input.lines.len(), remedy));
                }
                let mut missing = Vec::new();
                for (index, line) in input.lines.iter().enumerate() {
                    let at = format!("{at}.lines[{index}]");
                    if line.listen.ip().is_multicast() && line.listen.port() == 0 {
                        let remedy = "a group needs a port";
                        let at = format!("{at}.listen");
                        return Err(ConfigError::value(at, line.listen, remedy));
                    }
                    let interface = line.interface.as_ref().unwrap_or(&config.interface);
                    missing.extend(resolve(interface, &format!("{at}.interface")).err());
                }
                // Beside others, such a line is tried again while they carry the feed.
                if missing.len() == input.lines.len() {
                    return Err(missing.swap_remove(0));
                }
                warnings.extend(
                    missing
                        .iter()
                        .map(|error| format!("{error}; the other lines carry the feed")),
                );
                (None, input.trade_date.as_deref())
            }
            InputConfig::Records(input) => {
                socket(&input.socket, &at)?;
                (None, None)
            }
            InputConfig::Own(input) => {
                let is_same = |other: &InputConfig| match other {
                    InputConfig::Own(other) => other.channel == input.channel,
                    _ => false,
                };
                if config.inputs[..index].iter().any(is_same) {
                    let channel = serde_json::json!(input.channel);
                    let remedy = "another input is for this channel; a channel has at most one \
                                  input of kind \"own\"";
                    let at = format!("{at}.channel");
                    return Err(ConfigError::value(at, channel, remedy));
                }
                (None, None)
            }
        };
        let wrong = match pace {
            Some(Pace::Times(times)) => !(times.is_finite() && times > 0.0 && times <= 1e6),
            Some(Pace::MessagesPerS(n)) => n == 0,
            _ => false,
        };
        if wrong {
            let (at, value) = (format!("{at}.pace"), serde_json::json!(pace));
            let remedy = "use \"max\", {\"times\": above 0} or {\"messages_per_s\": at least 1}";
            return Err(ConfigError::value(at, value, remedy));
        }
        trade_date(date, &at)?;
        if let InputConfig::Capture(input) = input {
            for file in &input.files {
                capture(file, &at)?;
            }
        }
    }
    if config.threads.mode == ThreadMode::Inline && config.threads.feed_core.is_some() {
        warnings.push("threads.feed_core has no effect in inline mode: set publish_core".into());
    }
    Ok(())
}

/// Returns whether the messages of an input may be ITCH.
fn may_be_itch(input: &InputConfig) -> bool {
    let may_be = |format: InputFormat| match format {
        InputFormat::Auto | InputFormat::MoldUdp64Itch50 | InputFormat::BinaryFile => true,
        InputFormat::IexTp => false,
    };
    match input {
        InputConfig::Capture(input) => may_be(input.format),
        InputConfig::Udp(input) => may_be(input.format),
        InputConfig::Simulator(_) => true,
        InputConfig::Records(_) | InputConfig::Own(_) => false,
    }
}

fn socket(path: &Path, at: &str) -> Result<(), ConfigError> {
    let wrong = |remedy: &str| {
        let at = format!("{at}.socket");
        Err(ConfigError::value(at, path.display(), remedy))
    };
    let len = path.as_os_str().len();
    if !(1..=PATH_LEN_MAX).contains(&len) {
        return wrong("a socket's path has from 1 to 100 bytes");
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    if !folder.unwrap_or(Path::new(".")).is_dir() {
        return wrong("its directory does not exist; make it, writable for this user");
    }
    let is_other = |there: Metadata| !there.file_type().is_socket();
    if path.symlink_metadata().is_ok_and(is_other) {
        return wrong("a file that is not a socket has this name; choose another name");
    }
    Ok(())
}

/// Checks the ring directory. Rings that outlive the publisher need a known last epoch.
fn ring_dir(
    config: &Config,
    channels: &[ChannelPlan],
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Some(directory) = &config.ring_dir else {
        return Ok(());
    };
    let wrong = |remedy: String| Err(ConfigError::value("ring_dir", directory.display(), remedy));
    if config.state_dir.is_none() {
        return wrong("it needs state_dir, which keeps the epoch of the rings".into());
    }
    if config.standby.is_some() {
        return wrong(
            "a standby receives its rings from its publisher; remove this setting".into(),
        );
    }
    if let Some(shared) = channels
        .iter()
        .find(|channel| channel.shared_at().is_some())
    {
        let name = &shared.name;
        return wrong(format!(
            "channel {name} has a shared-memory fan-out, whose readers follow one publisher's \
             file; remove that fan-out or this setting"
        ));
    }
    if let Err(error) = SharedMapping::check_directory(directory) {
        return wrong(error.to_string());
    }
    if config.digest && config.inputs.iter().all(InputConfig::is_gone_on_with) {
        warnings.extend(channels.iter().filter_map(|channel| {
            let why = why_no_digest(config, &channel.name)?;
            let name = &channel.name;
            Some(format!(
                "channel {name} has no digest after a restart that continues its epoch: {why}"
            ))
        }));
    }
    Ok(())
}

const SEVERAL_ITCH: &str = "several inputs may be ITCH, whose instrument ids all begin at 1: \
                            distinguish them by source, or run one publisher for each";

/// Maximum number of lines, or of files, of an input.
const LINES_MAX: usize = 8;
/// Maximum time that packets wait for a missing one, in microseconds.
const HOLDING_MAX_US: u32 = 60_000_000;

/// Maximum time for which a read of an input polls its device, in microseconds.
const BUSY_POLL_MAX_US: u32 = 1_000_000;

/// Checks that the file exists. Does not open it, because a pipe may be opened only by the input.
fn capture(file: &Path, at: &str) -> Result<(), ConfigError> {
    let wrong = |remedy: &str| {
        let at = format!("{at}.file");
        Err(ConfigError::value(at, file.display(), remedy))
    };
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => {
            wrong("it is a directory; give the path of the capture in it")
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => wrong(
            "there is no such file; a relative path starts at the directory in which the \
             publisher was started",
        ),
        Err(error) => wrong(&error.to_string()),
    }
}

/// Checks the times that an input's packets may wait for a missing one.
fn check_holding(input: &InputConfig, at: &str) -> Result<(), ConfigError> {
    let (reorder_us, line_skew_us) = match input {
        InputConfig::Capture(input) => (input.reorder_us, input.line_skew_us),
        InputConfig::Udp(input) => (input.reorder_us, input.line_skew_us),
        _ => return Ok(()),
    };
    for (key, value) in [("reorder_us", reorder_us), ("line_skew_us", line_skew_us)] {
        if let Some(value) = value.filter(|value| *value > HOLDING_MAX_US) {
            let remedy = "it must be at most 60000000 (a minute): a gap delays the feed so long";
            return Err(ConfigError::value(format!("{at}.{key}"), value, remedy));
        }
    }
    Ok(())
}

/// Checks the time for which reads of an input poll its device.
fn check_busy_poll(input: &InputConfig, at: &str) -> Result<(), ConfigError> {
    let asked = match input {
        InputConfig::Udp(input) => input.busy_poll_us,
        _ => None,
    };
    if let Some(value) = asked.filter(|value| *value > BUSY_POLL_MAX_US) {
        let remedy = "it must be at most 1000000 (a second): a read takes so long; try 50";
        return Err(ConfigError::value(
            format!("{at}.busy_poll_us"),
            value,
            remedy,
        ));
    }
    Ok(())
}

fn no_records(at: &str) -> ConfigError {
    let remedy = "it must be at least 1, or null for all";
    ConfigError::value(format!("{at}.records_max"), 0, remedy)
}

/// Parses the day of ITCH's midnight.
pub(crate) fn trade_date(date: Option<&str>, at: &str) -> Result<TradeDate, ConfigError> {
    let Some(text) = date else {
        return Ok(TradeDate::Received);
    };
    let date = Date::from_str(text).map_err(|_| {
        let remedy = "it must be a date, for example 2019-01-30";
        ConfigError::value(format!("{at}.trade_date"), format_args!("{text:?}"), remedy)
    })?;
    Ok(TradeDate::Fixed(date))
}

fn timers(config: &Config, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    let heartbeat = config.heartbeat;
    (heartbeat.check()).map_err(|e| ConfigError::value("heartbeat", "the intervals", e))?;
    (config.repair.check()).map_err(|e| ConfigError::value("repair", "the budget", e))?;
    (config.repair)
        .check_against_retry(config.subscribers.nack_retry_us)
        .map_err(|e| ConfigError::value("subscribers.nack_retry_us", "the retry", e))?;
    if let Some(link) = config.link_bytes_per_s
        && let Err(error) = config.repair.check_against_link(link)
    {
        warnings.push(format!("link_bytes_per_s: {error}"));
    }
    if config.linger_ms > 3_600_000 {
        let remedy = "it must be at most 3600000 (an hour)";
        return Err(ConfigError::value("linger_ms", config.linger_ms, remedy));
    }
    Ok(())
}

impl fmt::Display for Plan {
    /// Prints the output of `--check`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        writeln!(
            f,
            "publisher {}: control at {}",
            config.name, config.control
        )?;
        match config.admin {
            Some(admin) => writeln!(f, "metrics at http://{admin}/metrics")?,
            None => writeln!(f, "metrics: off (admin is null)")?,
        }
        if let Some(standby) = &config.standby {
            writeln!(
                f,
                "standby of {}: buffers up to {} messages that are not mirrored yet",
                standby.of, standby.keep_messages
            )?;
        }
        for (plan, channel) in self.channels.iter().zip(&config.channels) {
            writeln!(
                f,
                "channel {} ({}): symbols {}; ring of {} slots of {} bytes ({:.1} MiB) holds {:.2} s at {} datagrams/s",
                plan.id,
                plan.name,
                channel.symbols.join(" "),
                channel.slots,
                channel.slot_len,
                plan.geometry.bytes() as f64 / f64::from(1 << 20),
                plan.holds_s,
                channel.peak_datagrams_per_s
            )?;
            for fan_out in &plan.fan_outs {
                write!(f, "{fan_out}")?;
            }
        }
        for input in &config.inputs {
            match input {
                InputConfig::Capture(i) => {
                    write!(f, "source {}: capture", i.source)?;
                    for file in &i.files {
                        write!(f, " {},", file.display())?;
                    }
                    for destination in &i.only {
                        write!(f, " {destination},")?;
                    }
                    writeln!(f, " {}", i.pace)?;
                }
                InputConfig::Simulator(i) => {
                    writeln!(
                        f,
                        "source {}: simulator, seed {}, {} symbols, {}",
                        i.source, i.seed, i.market.symbols, i.pace
                    )?;
                }
                InputConfig::Udp(i) => {
                    let lines: Vec<_> = i.lines.iter().map(|it| it.listen.to_string()).collect();
                    writeln!(f, "source {}: udp {}", i.source, lines.join(", "))?;
                }
                InputConfig::Records(i) => writeln!(
                    f,
                    "source {}: records from {}, to {}",
                    i.source,
                    i.socket.display(),
                    i.channel
                        .as_deref()
                        .unwrap_or("the channels of their symbols")
                )?,
                InputConfig::Own(i) => writeln!(f, "source {}: own handlers", i.source)?,
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}
