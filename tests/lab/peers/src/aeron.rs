//! Aeron C in its best setup for few cores: the media driver runs within the process, on the thread that
//! publishes or polls. It is tuned, except as `aeron-defaults`.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CString, c_void};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rusteron_client::{
    Aeron, AeronBufferClaim, AeronContext, AeronExclusivePublication, AeronSubscription, Handlers,
};
use rusteron_media_driver::bindings as sys;
use rusteron_media_driver::{AeronDriver, AeronDriverContext};

use crate::protocol::{Loss, Outcome, TICK_LEN, Task, Tick};
use crate::side::{Carry, Take};

const PATIENCE: Duration = Duration::from_secs(10);
const TERM_BYTES: usize = 16 << 20;
const SOCKET_BYTES: usize = 4 << 20;
const WINDOW_BYTES: usize = 2 << 20;
/// The MTU must be a multiple of this, because Aeron aligns frames to it.
const MTU_ALIGN: usize = 32;
/// Polls between two calls of the client's own housekeeping.
const CLIENT_EVERY: u32 = 64;
/// Fragments of one poll.
const FRAGMENTS: usize = 256;
/// Driver rounds per call on the sending side, while the driver has work. One round sends 16 datagrams. A
/// polling process runs one round per call, so that received datagrams never wait for an idle round.
const ROUNDS: u32 = 8;
/// Within one host the driver moves no data, so it runs only once in this many calls.
const IN_HOST_EVERY: u32 = 16;

/// A client, and a media driver unless another process runs it.
#[derive(Clone)]
pub(crate) struct Host(Rc<Inner>);

struct Inner {
    // Dropped in this order.
    client: Aeron,
    driver: Option<AeronDriver>,
    /// The driver runs once in this many calls.
    driver_every: u32,
    calls: Cell<u32>,
}

impl Host {
    pub(crate) fn start(task: &Task) -> Outcome<Self> {
        let in_host = task.contender == "aeron-ipc";
        let name = if in_host {
            "aeron".to_owned()
        } else {
            format!("aeron-{:?}-{}", task.role, task.index)
        };
        let dir = CString::new(task.folder.join(name).to_string_lossy().as_bytes())?;
        // Within one host, the second process is a client of the first one's driver.
        let own = !in_host || task.connect.is_none();
        let driver = if own {
            let context = driver_context(task, &dir)?;
            let driver = AeronDriver::new(&context)?;
            driver.start(true)?;
            driver.main_do_work()?;
            Some(driver)
        } else {
            None
        };
        let context = AeronContext::new()?;
        context.set_dir(&dir)?;
        context.set_use_conductor_agent_invoker(true)?;
        context.set_pre_touch_mapped_memory(true)?;
        context.set_error_handler(Some(|code: i32, text: &str| {
            eprintln!("aeron: {code}: {text}");
        }))?;
        let client = Aeron::new(&context)?;
        client.start()?;
        Ok(Self(Rc::new(Inner {
            client,
            driver,
            driver_every: if in_host { IN_HOST_EVERY } else { 1 },
            calls: Cell::new(0),
        })))
    }

    /// Runs the driver for at most `rounds` rounds. Returns whether it had work.
    #[inline]
    fn work(&self, rounds: u32) -> Outcome<bool> {
        let calls = self.0.calls.get().wrapping_add(1);
        self.0.calls.set(calls);
        let mut worked = false;
        if let Some(driver) = &self.0.driver
            && calls.is_multiple_of(self.0.driver_every)
        {
            for _ in 0..rounds {
                if driver.main_do_work()? == 0 {
                    break;
                }
                worked = true;
            }
        }
        if calls.is_multiple_of(CLIENT_EVERY) {
            self.0.client.main_do_work()?;
        }
        Ok(worked)
    }

    fn wait<T, E: Into<crate::protocol::Failure>>(
        &self,
        mut poll: impl FnMut() -> Result<Option<T>, E>,
    ) -> Outcome<T> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            self.work(1)?;
            self.0.client.main_do_work()?;
            if let Some(it) = poll().map_err(Into::into)? {
                return Ok(it);
            }
        }
        Err("the media driver does not answer".into())
    }
}

fn driver_context(task: &Task, dir: &CString) -> Outcome<AeronDriverContext> {
    let context = AeronDriverContext::new()?;
    context.set_dir(dir)?;
    context.set_dir_delete_on_start(true)?;
    context.set_dir_delete_on_shutdown(true)?;
    context.set_threading_mode(sys::aeron_threading_mode_enum::AERON_THREADING_MODE_INVOKER)?;
    context.set_print_configuration(false)?;
    if let Some(loss) = task.loss {
        drop_on_purpose(&context, loss)?;
    }
    let mtu = (task.mtu - 28) / MTU_ALIGN * MTU_ALIGN;
    context.set_mtu_length(mtu)?;
    context.set_socket_multicast_ttl(u8::from(!task.interface.is_loopback()))?;
    if task.contender == "aeron-defaults" {
        return Ok(context);
    }
    context.set_term_buffer_length(TERM_BYTES)?;
    context.set_ipc_term_buffer_length(TERM_BYTES)?;
    context.set_term_buffer_sparse_file(false)?;
    context.set_perform_storage_checks(false)?;
    context.set_socket_so_rcvbuf(SOCKET_BYTES)?;
    context.set_socket_so_sndbuf(SOCKET_BYTES)?;
    context.set_rcv_initial_window_length(WINDOW_BYTES)?;
    context.set_sender_io_vector_capacity(16)?;
    context.set_receiver_io_vector_capacity(16)?;
    context.set_network_publication_max_messages_per_send(16)?;
    for idle in [
        AeronDriverContext::set_conductor_idle_strategy,
        AeronDriverContext::set_shared_idle_strategy,
    ] {
        idle(&context, c"noop")?;
    }
    // Users of Aeron set this, because the defaults are milliseconds.
    context.set_nak_multicast_max_backoff_ns(50_000)?;
    context.set_nak_multicast_group_size(2)?;
    context.set_retransmit_unicast_linger_ns(100_000)?;
    Ok(context)
}

fn channel(task: &Task, way: usize) -> Outcome<CString> {
    if task.contender == "aeron-ipc" {
        return Ok(CString::new("aeron:ipc")?);
    }
    let mut uri = format!(
        "aeron:udp?endpoint={}|interface={}",
        task.groups[way], task.interface
    );
    if task.receivers > 1 {
        uri += &format!("|fc=min,g:/{}", task.receivers);
    }
    Ok(CString::new(uri)?)
}

const fn stream(way: usize) -> i32 {
    1_001 + way as i32
}

/// Publishes each tick as a message of its own.
pub(crate) struct Sender {
    publication: AeronExclusivePublication,
    claim: AeronBufferClaim,
    host: Host,
    pressed: u64,
}

impl Sender {
    pub(crate) fn open(host: &Host, task: &Task, way: usize) -> Outcome<Self> {
        let client = &host.0.client;
        let adding = client.async_add_exclusive_publication(&channel(task, way)?, stream(way))?;
        Ok(Self {
            publication: host.wait(|| adding.poll())?,
            claim: AeronBufferClaim::new_zeroed_on_heap(),
            host: host.clone(),
            pressed: 0,
        })
    }
}

impl Carry for Sender {
    fn address(&self) -> String {
        String::new()
    }

    fn is_joined(&mut self) -> bool {
        self.publication.is_connected()
    }

    #[inline]
    fn publish(&mut self, tick: Tick) -> Outcome<bool> {
        let position = self.publication.try_claim_raw(TICK_LEN, &self.claim);
        if position < 0 {
            // Back pressure, or a term's end.
            self.pressed += 1;
            return Ok(false);
        }
        tick.write(self.claim.data_mut());
        self.claim.commit()?;
        Ok(true)
    }

    #[inline]
    fn drive(&mut self) -> Outcome<()> {
        self.host.work(ROUNDS).map(drop)
    }

    fn received(&self) -> Option<u64> {
        None
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("{} offers found no room", self.pressed)]
    }
}

/// Polls a subscription.
pub(crate) struct Receiver {
    subscription: AeronSubscription,
    host: Host,
    is_lossy: bool,
}

impl Receiver {
    pub(crate) fn open(host: &Host, task: &Task, way: usize) -> Outcome<Self> {
        let client = &host.0.client;
        let adding = client.async_add_subscription(
            &channel(task, way)?,
            stream(way),
            Handlers::NONE,
            Handlers::NONE,
        )?;
        Ok(Self {
            subscription: host.wait(|| adding.poll())?,
            host: host.clone(),
            is_lossy: task.loss.is_some(),
        })
    }
}

impl Take for Receiver {
    fn is_joined(&mut self) -> bool {
        self.subscription.is_connected()
    }

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let worked = self.host.work(1)?;
        let is_lossy = self.is_lossy;
        let came = self.subscription.poll_fn(
            |bytes, _header| {
                let tick = Tick::read(bytes);
                let was_dropped = is_lossy && tick.is_some_and(|tick| was_dropped(tick.number));
                on(tick, was_dropped);
            },
            FRAGMENTS,
        )?;
        Ok(worked || came > 0)
    }

    fn received(&mut self, _: u64) {}

    fn notes(&self) -> Vec<String> {
        if !self.is_lossy {
            return Vec::new();
        }
        DROPS.with_borrow(|drops| {
            let (all, left) = (drops.datagrams, drops.ticks.len());
            vec![format!(
                "{all} datagrams dropped, {left} of their ticks did not come"
            )]
        })
    }
}

/// The datagrams that were dropped on purpose.
#[derive(Default)]
struct Drops {
    rate: f64,
    state: u64,
    /// Highest position so far. A datagram at or below it is a retransmission, and passes.
    highest: i64,
    datagrams: u64,
    /// Ticks that were dropped and have not arrived since.
    ticks: HashSet<u64>,
}

thread_local! {
    // The thread that polls also drives the driver, so a thread-local is enough.
    static DROPS: RefCell<Drops> = RefCell::default();
}

fn was_dropped(number: u64) -> bool {
    DROPS.with_borrow_mut(|drops| drops.ticks.remove(&number))
}

/// Installs our own filter instead of Aeron's loss interceptor, because that one does not report the
/// dropped datagrams. Like tickcast's, our filter only drops first transmissions.
fn drop_on_purpose(context: &AeronDriverContext, loss: Loss) -> Outcome<()> {
    let mut bindings = sys::aeron_udp_channel_interceptor_bindings_stct {
        incoming_init_func: Some(begin),
        incoming_func: Some(filter),
        ..Default::default()
    };
    (bindings.meta_info.name, bindings.meta_info.type_) =
        (c"bench".as_ptr(), c"interceptor".as_ptr());
    let bindings = Box::leak(Box::new(bindings));
    // SAFETY: the context keeps the pointer for as long as the process lives, and the leaked bindings
    // live as long. Exercised by `built_peer_is_measured_and_absent_one_is_named`.
    let set = unsafe {
        sys::aeron_driver_context_set_udp_channel_incoming_interceptors(
            context.get_inner(),
            bindings,
        )
    };
    if set < 0 {
        return Err("the media driver takes no filter".into());
    }
    DROPS.with_borrow_mut(|drops| {
        drops.rate = loss.rate;
        drops.state = loss
            .seed
            .wrapping_add(1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            | 1;
        drops.highest = i64::MIN;
    });
    Ok(())
}

const FRAME_HEADER_LEN: usize = 32;
const TYPE_DATA: u16 = 1;

impl Drops {
    /// Returns whether to drop this datagram. Records its ticks if so.
    fn takes(&mut self, bytes: &[u8]) -> bool {
        let u32_at = |at: usize| -> Option<u32> {
            let bytes = bytes.get(at..at + 4)?;
            bytes.try_into().ok().map(u32::from_le_bytes)
        };
        let kind = bytes.get(6..8).and_then(|b| b.try_into().ok());
        let (Some(len), Some(kind)) = (u32_at(0), kind.map(u16::from_le_bytes)) else {
            return false;
        };
        // Heartbeats are data frames without a length.
        if kind != TYPE_DATA || len == 0 {
            return false;
        }
        let (Some(offset), Some(term)) = (u32_at(8), u32_at(20)) else {
            return false;
        };
        let at = (i64::from(term as i32) << 32) | i64::from(offset);
        if at <= self.highest {
            return false;
        }
        self.highest = at;
        // xorshift64*. Its upper 53 bits become a number from 0 to 1.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let chance = self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        if chance as f64 / (1_u64 << 53) as f64 >= self.rate {
            return false;
        }
        self.datagrams += 1;
        let mut rest = bytes;
        while let Some(len) = rest.first_chunk().copied().map(u32::from_le_bytes) {
            let payload = rest.get(FRAME_HEADER_LEN..len as usize);
            if let Some(tick) = payload.and_then(Tick::read) {
                self.ticks.insert(tick.number);
            }
            let next = (len as usize).next_multiple_of(FRAME_HEADER_LEN);
            rest = if next == 0 {
                &[]
            } else {
                rest.get(next..).unwrap_or_default()
            };
        }
        true
    }
}

unsafe extern "C" fn begin(
    state: *mut *mut c_void,
    _: *mut sys::aeron_driver_context_t,
    _: sys::aeron_udp_channel_transport_affinity_t,
) -> i32 {
    // SAFETY: the driver lends room for one pointer. Exercised by
    // `built_peer_is_measured_and_absent_one_is_named`.
    unsafe { *state = std::ptr::null_mut() };
    0
}

unsafe extern "C" fn filter(
    _state: *mut c_void,
    delegate: *mut sys::aeron_udp_channel_incoming_interceptor_t,
    transport: *mut sys::aeron_udp_channel_transport_t,
    receiver: *mut c_void,
    endpoint: *mut c_void,
    destination: *mut c_void,
    buffer: *mut u8,
    length: usize,
    address: *mut sys::sockaddr_storage,
    media_timestamp: *mut sys::timespec,
) {
    // SAFETY: the driver lends `length` bytes at `buffer` for the length of this call. The next interceptor
    // always exists and receives our arguments unchanged. Exercised by
    // `built_peer_is_measured_and_absent_one_is_named`.
    unsafe {
        let bytes = std::slice::from_raw_parts(buffer, length);
        if DROPS.with_borrow_mut(|drops| drops.takes(bytes)) {
            return;
        }
        let next = &*delegate;
        if let Some(pass) = next.incoming_func {
            pass(
                next.interceptor_state,
                next.next_interceptor,
                transport,
                receiver,
                endpoint,
                destination,
                buffer,
                length,
                address,
                media_timestamp,
            );
        }
    }
}
