//! The helper thread of a sending line. It makes every call that a device may answer late: it opens, closes
//! and replaces queues, joins groups and renews memberships. A card in trouble takes seconds to minutes for
//! such a call. The thread that publishes only exchanges messages with this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tickcast_reliability::ring::RingMemory;

use super::membership::Membership;
use super::queue::SendQueue;
use crate::config::{VerbsFanOutConfig, VerbsSendLine};
use crate::device::queue::AddressHandle;
use crate::device::region::Region;
use crate::device::{Device, leave_pinned_core, sys};
use crate::error::VerbsError;

/// Interval between checks of the device and of the membership.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Interval between attempts to open a device or a queue that can't be opened.
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// A message to the line.
pub(super) enum Supply {
    /// A queue that is ready to send.
    Queue(Box<SendQueue>),
    /// The address of the group from now on.
    Address(Arc<AddressHandle>),
    /// A queue was closed. This many of its sends came back unsent.
    Closed { unsent: u64 },
    /// The device or the port's identifier is gone. The line is to return its queues.
    Stale,
    /// The device was opened again. Queues follow.
    Attached,
    /// A step failed with this error number, and is repeated.
    Failed(i32),
}

/// A message to the thread.
enum Task {
    /// Close a queue.
    Close(Box<SendQueue>),
    /// Close a queue and supply another one.
    Replace(Box<SendQueue>),
    /// Open the device again. The line has returned all of its queues.
    Reattach,
}

/// The line's side of the thread. Dropping it ends the thread, and waits for the call under way.
pub(super) struct Upkeep {
    tasks: Option<Sender<Task>>,
    supplies: Receiver<Supply>,
    /// Messages sent to the line so far, and those taken.
    supplied: Arc<AtomicU64>,
    taken: u64,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Opens the line's device and two queues, joins the group if the port is up, and starts the thread.
    /// Blocks until all of this is done. The first messages bring the queues.
    ///
    /// # Errors
    /// [`VerbsError`] names the step that failed and the remedy.
    pub(super) fn start(
        config: &VerbsFanOutConfig,
        line: &VerbsSendLine,
        ring: Option<&Arc<dyn RingMemory>>,
    ) -> Result<Self, VerbsError> {
        let (to_thread, tasks) = mpsc::channel();
        let (to_line, supplies) = mpsc::channel();
        let (supplied, now) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let mut keeper = Keeper {
            config: config.clone(),
            line: line.clone(),
            ring: ring.cloned(),
            attached: None,
            attach_at: now,
            wanted: 0,
            queue_at: now,
            opening: None,
            renewing: None,
            addresses: Vec::new(),
            supplies: Supplies {
                to_line,
                supplied: Arc::clone(&supplied),
            },
        };
        keeper.attach(true)?;
        let thread = std::thread::Builder::new().name("verbs-line".into());
        let thread = thread.spawn(move || keeper.run(&tasks));
        let thread = thread.map_err(|source| VerbsError::Call {
            what: "start the helper thread of a line",
            source,
        })?;
        Ok(Self {
            tasks: Some(to_thread),
            supplies,
            supplied,
            taken: 0,
            thread: Some(thread),
        })
    }

    /// Returns whether there is a message. Reads a number in memory.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.supplied.load(Ordering::Acquire) != self.taken
    }

    /// Takes the next message, if any.
    pub(super) fn next(&mut self) -> Option<Supply> {
        let supply = self.supplies.try_recv().ok()?;
        self.taken += 1;
        Some(supply)
    }

    /// Closes a queue that is not needed. Returns whether the thread still runs.
    pub(super) fn close(&self, queue: Box<SendQueue>) -> bool {
        self.send(Task::Close(queue))
    }

    /// Closes a queue and requests another one. Returns whether the thread still runs.
    pub(super) fn replace(&self, queue: Box<SendQueue>) -> bool {
        self.send(Task::Replace(queue))
    }

    /// Requests that the device is opened again. The line has returned all queues. Returns whether the thread
    /// still runs.
    pub(super) fn reattach(&self) -> bool {
        self.send(Task::Reattach)
    }

    fn send(&self, task: Task) -> bool {
        let Some(tasks) = &self.tasks else {
            return false;
        };
        // After a panic of the thread nobody closes its queue. Dropping it here could wait for the device.
        tasks.send(task).map_err(std::mem::forget).is_ok()
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Keeper {
    config: VerbsFanOutConfig,
    line: VerbsSendLine,
    ring: Option<Arc<dyn RingMemory>>,
    /// `None` while the device can't be opened.
    attached: Option<Attachment>,
    /// Earliest time to open the device.
    attach_at: Instant,
    /// Queues to open, and the earliest time for it.
    wanted: u32,
    queue_at: Instant,
    /// The error numbers of the outages under way that the line knows: of opening, and of the membership.
    opening: Option<i32>,
    renewing: Option<i32>,
    /// All addresses, kept until neither line nor queues use them: the thread that publishes destroys none.
    addresses: Vec<Arc<AddressHandle>>,
    supplies: Supplies,
}

/// The thread's side of the messages to the line.
struct Supplies {
    to_line: Sender<Supply>,
    supplied: Arc<AtomicU64>,
}

impl Supplies {
    fn send(&self, supply: Supply) {
        // A line that is dropped takes nothing any more.
        if self.to_line.send(supply).is_ok() {
            self.supplied.fetch_add(1, Ordering::Release);
        }
    }

    /// Reports the error number of an outage to the line, unless it was the last one: the line may read no
    /// message for long.
    fn report(&self, outage: &mut Option<i32>, errno: i32) {
        if outage.replace(errno) != Some(errno) {
            self.send(Supply::Failed(errno));
        }
    }
}

/// The objects that all queues of a line share, on one opened device.
struct Attachment {
    membership: Membership,
    address: Option<Arc<AddressHandle>>,
    ring: Option<Arc<Region>>,
    /// The device's change count at the last check.
    changes: u64,
    /// Whether the line knows that it is to return its queues.
    is_stale: bool,
    device: Arc<Device>,
}

impl Keeper {
    fn run(mut self, tasks: &Receiver<Task>) {
        leave_pinned_core();
        loop {
            match tasks.recv_timeout(CHECK_EVERY) {
                Ok(task) => self.handle(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check(Instant::now());
        }
    }

    fn handle(&mut self, task: Task) {
        match task {
            Task::Close(queue) => self.close(queue),
            Task::Replace(queue) => {
                // The line waits for the next queue, and the old one may be slow to close.
                self.wanted += 1;
                self.open_queues(Instant::now());
                self.close(queue);
            }
            Task::Reattach => {
                self.attached = None;
                self.wanted = 0;
            }
        }
    }

    fn close(&self, queue: Box<SendQueue>) {
        let unsent = queue.close();
        self.supplies.send(Supply::Closed { unsent });
    }

    /// Checks everything that time or the device changes.
    fn check(&mut self, now: Instant) {
        self.addresses
            .retain(|address| Arc::strong_count(address) > 1);
        if self.attached.is_none() && now >= self.attach_at {
            self.attach_at = now + RETRY_EVERY;
            let opened = self.attach(false);
            self.note("a device", opened);
        }
        self.open_queues(now);
        let Some(attached) = self.attached.as_mut().filter(|it| !it.is_stale) else {
            return;
        };
        if attached.is_stale() {
            let (device, group) = (attached.device.name(), self.line.group);
            tracing::warn!(device, %group, "the device or its address is gone; the line opens it again");
            return self.give_up();
        }
        self.renew(now);
    }

    /// Opens the device, registers the ring, and supplies two queues. Joins the group if the port is up.
    fn attach(&mut self, is_first: bool) -> Result<(), VerbsError> {
        let device = Device::of(&self.line.interface, self.config.datagram_len_max)?;
        let ring = self.ring.as_ref().map(|ring| {
            Region::readable(&device, Arc::clone(ring), "ring sent from").map(Arc::new)
        });
        let mut attached = Attachment {
            membership: Membership::new(device.address(), self.line.group),
            address: None,
            ring: ring.transpose()?,
            changes: device.watch().changes(),
            is_stale: false,
            device,
        };
        let queues = [attached.queue(&self.config)?, attached.queue(&self.config)?];
        let group = self.line.group;
        if is_first && attached.device.is_active() {
            let route = attached.membership.join(&attached.device)?;
            self.addresses
                .push(attached.set_address(route, &self.config)?);
        } else {
            if is_first {
                let device = attached.device.name();
                tracing::warn!(device, %group, "a line's port is down; the line sends once the port is up, and the others send now");
            }
            attached.membership.lost(Instant::now());
        }
        self.supplies.send(Supply::Attached);
        if let Some(address) = &attached.address {
            self.supplies.send(Supply::Address(Arc::clone(address)));
        }
        self.attached = Some(attached);
        for queue in queues {
            self.supplies.send(Supply::Queue(queue));
        }
        Ok(())
    }

    /// Opens the queues that the line waits for.
    fn open_queues(&mut self, now: Instant) {
        while self.wanted > 0 && now >= self.queue_at {
            let Some(attached) = self.attached.as_ref().filter(|it| !it.is_stale) else {
                return;
            };
            match attached.queue(&self.config) {
                Ok(queue) => {
                    self.wanted -= 1;
                    self.opening = None;
                    self.supplies.send(Supply::Queue(queue));
                }
                Err(error) => {
                    self.queue_at = now + RETRY_EVERY;
                    self.note("a send queue", Err(error));
                }
            }
        }
    }

    /// Notes an attempt to open something. A failed one is repeated, and the first of an outage is logged.
    fn note(&mut self, what: &str, result: Result<(), VerbsError>) {
        let Err(error) = result else {
            self.opening = None;
            return;
        };
        if self.opening.is_none() {
            let group = self.line.group;
            tracing::warn!(%group, "{what} can't be opened for a line, which tries again: {error}");
        }
        let errno = error.errno().unwrap_or(libc::EIO);
        self.supplies.report(&mut self.opening, errno);
    }

    /// Requests that the line returns its queues: only opening the device again helps.
    fn give_up(&mut self) {
        if let Some(attached) = &mut self.attached {
            attached.is_stale = true;
            self.supplies.send(Supply::Stale);
        }
    }

    /// Advances the renewal of the membership, and supplies the new address once there is one.
    fn renew(&mut self, now: Instant) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let (device, group) = (Arc::clone(&attached.device), self.line.group);
        let route = match attached.membership.renew(now, &device) {
            Ok(None) => return,
            Ok(Some(route)) => route,
            // The interface has another address, or its device is gone.
            Err(libc::ENODEV | libc::EADDRNOTAVAIL) => return self.give_up(),
            Err(errno) => {
                let device = device.name();
                tracing::warn!(device, %group, errno, "a membership is not renewed yet; the line sends on if it has an address");
                self.supplies.report(&mut self.renewing, errno);
                return;
            }
        };
        if device.check_len(self.config.datagram_len_max).is_err() {
            // The port came back with a smaller MTU. Opening the device again reports it.
            return self.give_up();
        }
        match attached.set_address(route, &self.config) {
            Ok(address) => {
                attached.membership.renewed();
                self.renewing = None;
                tracing::info!(device = device.name(), %group, "a membership was renewed");
                self.addresses.push(Arc::clone(&address));
                self.supplies.send(Supply::Address(address));
            }
            Err(error) => {
                tracing::warn!(%group, "a membership can't be used, and is requested again: {error}");
                attached.membership.failed(now);
                let errno = error.errno().unwrap_or(libc::EIO);
                self.supplies.report(&mut self.renewing, errno);
            }
        }
    }
}

impl Attachment {
    fn queue(&self, config: &VerbsFanOutConfig) -> Result<Box<SendQueue>, VerbsError> {
        SendQueue::open(&self.device, config, self.ring.as_ref()).map(Box::new)
    }

    fn set_address(
        &mut self,
        route: sys::ibv_ah_attr,
        config: &VerbsFanOutConfig,
    ) -> Result<Arc<AddressHandle>, VerbsError> {
        let address = Arc::new(AddressHandle::new(&self.device, route, config.priority())?);
        self.address = Some(Arc::clone(&address));
        Ok(address)
    }

    /// Returns whether the line can't send by this device or address any more. If only its membership ended,
    /// notes that.
    fn is_stale(&mut self) -> bool {
        let (mut is_stale, mut is_member) = (false, true);
        // The removal of a device is reported here, and some devices wait until their last user closed them.
        while let Some(event) = self.membership.event() {
            is_stale |= event.is_of_device();
            is_member &= event.kind != sys::rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR;
        }
        let changes = self.device.watch().changes();
        if changes != self.changes {
            self.changes = changes;
            let address = self.address.as_ref();
            is_stale |= address.is_some_and(|address| !address.is_current());
            is_stale |= self.device.watch().has_failed();
        }
        if !is_member {
            let device = self.device.name();
            tracing::info!(
                device,
                "a membership ended; the line sends on and renews it"
            );
            self.membership.lost(Instant::now());
        }
        is_stale
    }
}
