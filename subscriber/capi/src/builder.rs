//! Describes a subscriber, one setting at a time. The first invalid setting is the error of the build, so
//! callers may ignore the status of the other calls.

use std::ffi::c_char;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tickcast_subscriber as rust;
#[cfg(feature = "testing")]
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Delivery, Interface, Nanos, Transport};

use crate::abi::Sizes;
use crate::arguments::{ids, range, start, symbols, text};
use crate::error::{Error, handle, status};
use crate::handle::{Handle, Kind, free, give, take, with};
use crate::subscriber::Subscriber;

/// A description of a subscriber.
pub struct Builder(());

impl Handle for Builder {
    type Behind = Description;
    const KIND: Kind = Kind::Builder;
}

/// The value behind a builder handle.
pub(crate) struct Description {
    subscriber: rust::SubscriberBuilder,
    channels: Vec<ChannelBuilder>,
    wrong: Option<Error>,
}

/// The order of delivery, and the limit of waiting for it.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum DeliveryMode {
    /// In order of sequence. A gap ends by repair or by the publisher's refusal. The default.
    Ordered = 0,
    /// In order of sequence, but a gap that is not repaired within `within_ns` is declared lost.
    OrderedWithin = 1,
    /// On arrival, in the order of arrival. Each datagram is delivered once.
    Arrival = 2,
    /// The newest quote, trade and status of each changed instrument. Each record carries the number of
    /// records that it replaced.
    Latest = 3,
}

fn delivery(mode: u32, within_ns: u64) -> Result<Delivery, Error> {
    const ORDERED: u32 = DeliveryMode::Ordered as u32;
    const WITHIN: u32 = DeliveryMode::OrderedWithin as u32;
    const ARRIVAL: u32 = DeliveryMode::Arrival as u32;
    const LATEST: u32 = DeliveryMode::Latest as u32;
    Ok(match mode {
        ORDERED => Delivery::Ordered,
        WITHIN => Delivery::OrderedWithin(Nanos(within_ns)),
        ARRIVAL => Delivery::Arrival,
        LATEST => Delivery::Latest,
        _ => range("mode", mode, "a TickcastDeliveryMode")?,
    })
}

fn edit(
    builder: *const Builder,
    change: impl FnOnce(rust::SubscriberBuilder) -> Result<rust::SubscriberBuilder, Error>,
) -> i32 {
    status(|| {
        with(builder, |it| {
            let changed = change(it.subscriber.clone());
            it.keep(changed).map(|changed| it.subscriber = changed)
        })
    })
}

fn edit_channel(
    builder: *const Builder,
    change: impl FnOnce(ChannelBuilder) -> Result<ChannelBuilder, Error>,
) -> i32 {
    status(|| {
        with(builder, |it| {
            let last = it.channels.last().cloned().ok_or(Error::NoChannelYet);
            let changed = it.keep(last.and_then(change))?;
            it.channels.pop();
            it.channels.push(changed);
            Ok(())
        })
    })
}

impl Description {
    /// Stores the first error, which the build returns again.
    fn keep<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| {
            self.wrong.get_or_insert(Error::Setting {
                status: error.status(),
                text: error.to_string(),
            });
        })
    }
}

/// Creates a builder; called by tickcast_builder_new. Other languages than C call it directly and fill
/// the sizes themselves.
///
/// # Safety
/// `publishers` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_new_checked(
    publishers: *const c_char,
    sizes: Option<&Sizes>,
) -> *mut Builder {
    handle(|| {
        sizes.ok_or(Error::Null { what: "sizes" })?.check()?;
        // SAFETY: as for `text`.
        let publishers = unsafe { text(publishers, "publishers") }?;
        give(Description {
            subscriber: rust::Subscriber::builder(publishers),
            channels: Vec::new(),
            wrong: None,
        })
    })
}

/// Sets the name in the publisher's logs and metrics.
///
/// # Safety
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_name(builder: *mut Builder, name: *const c_char) -> i32 {
    // SAFETY: as for `text`.
    edit(builder, |it| Ok(it.name(unsafe { text(name, "name") }?)))
}

/// Adds a channel, by name or number. Its defaults are a live start, ordered delivery and all
/// instruments. The functions tickcast_builder_channel_... change the channel added last.
///
/// # Safety
/// `channel` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_channel(
    builder: *mut Builder,
    channel: *const c_char,
) -> i32 {
    status(|| {
        with(builder, |it| {
            // SAFETY: as for `text`.
            let name = it.keep(unsafe { text(channel, "channel") })?;
            it.channels.push(ChannelBuilder::new(name));
            Ok(())
        })
    })
}

/// Sets the start: a TickcastStartAt. `epoch` and `sequence` are used with SEQUENCE only.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_channel_start(
    builder: *mut Builder,
    at: u32,
    epoch: u64,
    sequence: u64,
) -> i32 {
    edit_channel(builder, |it| Ok(it.start(start(at, epoch, sequence)?)))
}

/// Sets the multicast silence in microseconds after which the event STALE is emitted. The range is 100 to
/// 60,000,000, and the default is 30,000. At least three of the publisher's announced intervals must pass.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_channel_stale_us(builder: *mut Builder, stale_us: u32) -> i32 {
    edit_channel(builder, |it| {
        Ok(it.stale_after(Duration::from_micros(stale_us.into())))
    })
}

/// Sets the order of delivery: a TickcastDeliveryMode. `within_ns` is used with ORDERED_WITHIN only.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_channel_delivery(
    builder: *mut Builder,
    mode: u32,
    within_ns: u64,
) -> i32 {
    edit_channel(builder, |it| Ok(it.delivery(delivery(mode, within_ns)?)))
}

/// Limits delivery to the records of these symbols and of the whole venue. A symbol that is announced
/// later passes from then on.
///
/// # Safety
/// `all` has `count` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_channel_filter_symbols(
    builder: *mut Builder,
    all: *const *const c_char,
    count: usize,
) -> i32 {
    // SAFETY: as for `array` and `text`.
    edit_channel(builder, |it| Ok(it.filter(unsafe { symbols(all, count) }?)))
}

/// Limits delivery to the records of these instrument ids and of the whole venue.
///
/// # Safety
/// `all` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_channel_filter_ids(
    builder: *mut Builder,
    all: *const u32,
    count: usize,
) -> i32 {
    // SAFETY: as for `array`.
    edit_channel(builder, |it| Ok(it.filter(unsafe { ids(all, count) }?)))
}

/// Sets the lag alarm: an event when the application is more than `sequences` behind.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_channel_lag_alarm(builder: *mut Builder, sequences: u64) -> i32 {
    edit_channel(builder, |it| Ok(it.lag_alarm(sequences)))
}

/// Sets the interface of line A (first call) or B (second call), by name or address. The default is the one
/// that carries the connection to the publisher.
///
/// # Safety
/// `interface` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_interface(
    builder: *mut Builder,
    interface: *const c_char,
) -> i32 {
    edit(builder, |it| {
        // SAFETY: as for `text`.
        let name = unsafe { text(interface, "interface") }?;
        match name.parse::<Interface>() {
            Ok(interface) => Ok(it.interface(interface)),
            Err(_) => range(
                "interface",
                name,
                "a name, for example eth0, or an IPv4 address of this host",
            ),
        }
    })
}

/// Sets the socket buffer to request, per line and channel, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_receive_buffer(builder: *mut Builder, bytes: usize) -> i32 {
    edit(builder, |it| Ok(it.receive_buffer_bytes(bytes)))
}

/// Sets the time for which a poll asks the device for packets (SO_BUSY_POLL), in place of
/// waiting for its interrupt; 0 turns that off. By default, net.core.busy_read applies. It has an
/// effect over UDP only, and needs CAP_NET_ADMIN. A log line reports a refusal.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_busy_poll(builder: *mut Builder, busy_poll_us: u32) -> i32 {
    edit(builder, |it| {
        Ok(it.busy_poll(Duration::from_micros(busy_poll_us.into())))
    })
}

/// Sets the transport of datagrams: `auto`, `udp`, `verbs`, `shm` or `xdp`.
///
/// # Safety
/// `transport` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_transport(
    builder: *mut Builder,
    transport: *const c_char,
) -> i32 {
    edit(builder, |it| {
        // SAFETY: as for `text`.
        match unsafe { text(transport, "transport") }? {
            "auto" => Ok(it.transport(Transport::Auto)),
            "udp" => Ok(it.transport(Transport::Udp)),
            "verbs" => Ok(it.transport(Transport::Verbs)),
            "shm" => Ok(it.transport(Transport::Shm)),
            "xdp" => Ok(it.transport(Transport::Xdp)),
            other => range("transport", other, "auto, udp, verbs, shm or xdp"),
        }
    })
}

/// Sets the time after which a missing welcome is a problem, which poll reports. The subscriber keeps
/// trying.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_join_limit(builder: *mut Builder, limit_ms: u64) -> i32 {
    edit(builder, |it| {
        Ok(it.join_limit(Duration::from_millis(limit_ms)))
    })
}

/// Sets whether to keep latency histograms; 1 by default.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_latency(builder: *mut Builder, on: i32) -> i32 {
    edit(builder, |it| Ok(it.latency(on != 0)))
}

/// Sets whether to report the percentiles of latency to the publisher, once a second and channel; 0 by
/// default. The publisher shows them in its metrics, in `tickcast top` and on its page. A thread of the
/// library computes them; it inherits the cores of the thread that calls tickcast_builder_build.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_latency_reports(builder: *mut Builder, on: i32) -> i32 {
    edit(builder, |it| Ok(it.latency_reports(on != 0)))
}

/// Serves the metrics for Prometheus at `http://ADDRESS/metrics`, and `/healthz`, on a thread of the library.
/// `address` is an address and a port, such as "127.0.0.1:9464", or a port alone for loopback; with port 0
/// the system chooses (tickcast_monitor_metrics_port). Requests need no password, so give an address of
/// loopback, or of a network that you trust. The build fails if the port is in use.
///
/// # Safety
/// `address` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_metrics_listen(
    builder: *mut Builder,
    address: *const c_char,
) -> i32 {
    edit(builder, |it| {
        // SAFETY: as for `text`.
        let address = unsafe { text(address, "address") }?;
        let of_port = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match address.parse().or_else(|_| address.parse().map(of_port)) {
            Ok(address) => Ok(it.metrics_listen(address)),
            Err(_) => range("address", address, "an address and a port, or a port"),
        }
    })
}

/// Adds a name of this host under which the metrics are asked, such as a DNS alias. Requests to other names
/// than `localhost`, the host's own, its addresses and these are refused.
///
/// # Safety
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_metrics_host(
    builder: *mut Builder,
    name: *const c_char,
) -> i32 {
    edit(builder, |it| {
        // SAFETY: as for `text`.
        Ok(it.metrics_host(unsafe { text(name, "name") }?))
    })
}

/// Appends the latency histograms to an interval log (HdrHistogram log 1.3), with a line an interval,
/// channel and stage. The range of `interval_ms` is 100 to 86,400,000. A thread of the library writes the
/// log; it inherits the cores of the thread that calls tickcast_builder_build. The end of the subscriber
/// writes the last interval and waits for that.
///
/// # Safety
/// `path` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_builder_interval_log(
    builder: *mut Builder,
    path: *const c_char,
    interval_ms: u64,
) -> i32 {
    edit(builder, |it| {
        // SAFETY: as for `text`.
        let path = unsafe { text(path, "path") }?;
        Ok(it.interval_log(path, Duration::from_millis(interval_ms)))
    })
}

/// Drops this share (0 to 1) of datagrams at random, to test an application on a bad network. A seed
/// always gives the same drops. For programs that define TICKCAST_TESTING, with a library of the feature
/// testing.
#[cfg(feature = "testing")]
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_inject_loss(
    builder: *mut Builder,
    share: f64,
    seed: u64,
) -> i32 {
    edit(builder, |it| {
        if !(0.0..=1.0).contains(&share) {
            return range("share", share, "0 to 1");
        }
        Ok(it.faults(FaultConfig {
            seed,
            drop: share,
            ..FaultConfig::default()
        }))
    })
}

/// Builds the subscriber and ends the builder, even on failure. The subscriber connects with the first
/// poll, so either side may start first. The lookup of the publisher's host may block.
///
/// ```c
/// TickcastBuilder *builder = tickcast_builder_new("127.0.0.1:7400");
/// tickcast_builder_channel(builder, "all");
/// tickcast_builder_channel_start(builder, TICKCAST_START_AT_OLDEST, 0, 0);
/// TickcastSubscriber *subscriber = tickcast_builder_build(builder);
/// if (!subscriber) puts(tickcast_last_error());
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_build(builder: *mut Builder) -> *mut Subscriber {
    handle(|| {
        let it = take(builder)?;
        if let Some(wrong) = it.wrong {
            return Err(wrong);
        }
        let all = it.channels.into_iter();
        let described = all.fold(it.subscriber, rust::SubscriberBuilder::channel);
        give(described.build()?)
    })
}

/// Frees a builder that was not built. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_builder_free(builder: *mut Builder) -> i32 {
    status(|| free(builder))
}
