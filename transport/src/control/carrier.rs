//! The byte stream under the frames: TCP, or a reliable connection over RDMA verbs (feature `rdma`).
//! Neither blocks, so a sender of frames need not know which one it uses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};

use std::ops::Range;
use std::sync::Arc;

use libc::c_int;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::ioctl::{Getter, Opcode, ioctl};
#[cfg(not(feature = "rdma"))]
use tickcast_reliability::control::CURSOR_WORDS;
use tickcast_reliability::control::RemoteAccess;
#[cfg(feature = "rdma")]
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::ring::RingMemory;
#[cfg(feature = "rdma")]
use tickcast_reliability::serve::MIRROR_WRITES_MAX;
use tickcast_reliability::serve::{Carrier, MirrorWrite};
use tickcast_reliability::session::{ReadLimits, RemoteRequest};

#[cfg(feature = "rdma")]
use tickcast_verbs::{
    Completed, CursorEntry, CursorTable, Device, GrantId, InboxMemory, ReadableMemory,
    RemoteMemory, Stream, StreamConfig, StreamEnd, VerbsError, WRITES_MAX,
};

/// The request for the number of unconfirmed bytes of a stream: tcp(7), SIOCOUTQ.
const TIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;

/// A connection, or an attempt at one.
pub(super) enum CarrierStream {
    Tcp(TcpStream),
    #[cfg(feature = "rdma")]
    Verbs(Box<Stream>),
}

/// Buffers of a reliable connection at this end. The peer may have another number
/// (docs/PROTOCOL.md §6.5). With [`StreamConfig`]'s 4096 bytes each, 256 KiB are pinned for each
/// direction.
#[cfg(feature = "rdma")]
const BUFFERS: u32 = 64;

/// Returns the settings of reliable connections for control.
#[cfg(feature = "rdma")]
pub(super) fn stream_config() -> StreamConfig {
    StreamConfig {
        buffers: BUFFERS,
        ..StreamConfig::default()
    }
}

/// READs of one peer in flight.
#[cfg(feature = "rdma")]
const READS_MAX: u8 = 16;
/// Length of one READ, in bytes.
#[cfg(feature = "rdma")]
const READ_LEN_MAX: usize = 64 << 10;

/// Returns the publisher's settings: it answers READs and issues none.
#[cfg(feature = "rdma")]
pub(super) fn answering_config() -> StreamConfig {
    StreamConfig {
        reads_max: READS_MAX,
        writes_max: MIRROR_WRITES_MAX,
        ..stream_config()
    }
}

/// Returns the settings of a connection for READs, which pins 1 MiB for their results.
#[cfg(feature = "rdma")]
fn reading_config() -> StreamConfig {
    StreamConfig {
        read_len_max: READ_LEN_MAX,
        writes_max: 0,
        ..answering_config()
    }
}

/// Memory that peers may be allowed to READ; further below cursors, one leased cursor, and the grant of
/// one of these to a peer.
#[cfg(feature = "rdma")]
pub(super) type Shared = Arc<ReadableMemory>;
#[cfg(feature = "rdma")]
pub(super) type Cursors = CursorTable;
#[cfg(feature = "rdma")]
pub(super) type Leased = CursorEntry;
#[cfg(feature = "rdma")]
pub(super) type Granted = GrantId;
/// Without RDMA there is no such memory.
#[cfg(not(feature = "rdma"))]
pub(super) enum Shared {}
#[cfg(not(feature = "rdma"))]
pub(super) enum Cursors {}
#[cfg(not(feature = "rdma"))]
pub(super) enum Leased {}
#[cfg(not(feature = "rdma"))]
pub(super) enum Granted {}

#[cfg(not(feature = "rdma"))]
impl Cursors {
    pub(super) const fn lease(&self) -> Option<Leased> {
        match *self {}
    }

    pub(super) const fn live(&self) -> usize {
        match *self {}
    }

    pub(super) const fn leases(&self) -> (u64, u64) {
        match *self {}
    }
}

#[cfg(not(feature = "rdma"))]
impl Leased {
    pub(super) const fn load_all(&self) -> [u64; CURSOR_WORDS] {
        match *self {}
    }
}

/// Converts the error. Its kind shows that retrying does not help if there is no such device.
#[cfg(feature = "rdma")]
pub(super) fn verbs_error(error: VerbsError) -> io::Error {
    let kind = match error {
        VerbsError::NoRdma { .. } | VerbsError::NoDevice { .. } => io::ErrorKind::Unsupported,
        VerbsError::Permission { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(not(feature = "rdma"))]
pub(super) fn no_verbs() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no RDMA; build with the feature rdma",
    )
}

/// Returns the address of the interface that routes to `to`.
#[cfg(feature = "rdma")]
fn address_towards(to: SocketAddrV4) -> io::Result<Ipv4Addr> {
    // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
    let probe = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    probe.connect(to)?;
    match probe.local_addr()? {
        SocketAddr::V4(from) => Ok(*from.ip()),
        SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Returns the addresses to connect from, by preference: `routed`, of the interface that routes to the
/// address, then `interfaces`. If the address belongs to this host, `interfaces` come first.
#[cfg(feature = "rdma")]
fn dial_from(
    to: Ipv4Addr,
    routed: Ipv4Addr,
    interfaces: &[Ipv4Addr],
) -> impl Iterator<Item = Ipv4Addr> {
    // The route to an own address leads over no device, so it says nothing about the device to use.
    let over_device = (routed != to).then_some(routed);
    over_device
        .into_iter()
        .chain(interfaces.iter().copied())
        .chain([routed])
}

impl CarrierStream {
    pub(super) const fn kind(&self) -> Carrier {
        match self {
            Self::Tcp(_) => Carrier::Tcp,
            #[cfg(feature = "rdma")]
            Self::Verbs(_) => Carrier::Verbs,
        }
    }

    pub(super) const fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Returns the bytes that were written and that the peer's system has not confirmed, if known.
    pub(super) fn unconfirmed(&self) -> Option<usize> {
        match self {
            // SAFETY: TIOCOUTQ writes one c_int, which is what this getter expects. Exercised by
            // `unconfirmed_bytes_are_reported_before_each_nack`.
            Self::Tcp(stream) => unsafe {
                let bytes = ioctl(stream, Getter::<TIOCOUTQ, c_int>::new()).ok()?;
                usize::try_from(bytes).ok()
            },
            #[cfg(feature = "rdma")]
            Self::Verbs(_) => None,
        }
    }

    /// Starts to connect over TCP.
    pub(super) fn dial_tcp(to: SocketAddr) -> io::Result<Self> {
        TcpStream::connect(to).map(Self::Tcp)
    }

    /// Starts to connect over verbs, from the first active device of [`dial_from`].
    #[cfg(feature = "rdma")]
    pub(super) fn dial_verbs(
        to: SocketAddrV4,
        interfaces: &[Ipv4Addr],
        reads: bool,
        traffic_class: u8,
    ) -> io::Result<Self> {
        let routed = address_towards(to)?;
        let device = dial_from(*to.ip(), routed, interfaces)
            .find_map(|it| Device::open_active(it).ok())
            .map_or_else(|| Device::open_active(routed).map_err(verbs_error), Ok)?;
        let own = if reads {
            reading_config()
        } else {
            stream_config()
        };
        let config = StreamConfig {
            traffic_class,
            ..own
        };
        let stream = Stream::connect(&device, to, &config).map_err(verbs_error)?;
        Ok(Self::Verbs(Box::new(stream)))
    }

    #[cfg(not(feature = "rdma"))]
    pub(super) fn dial_verbs(_: SocketAddrV4, _: &[Ipv4Addr], _: bool, _: u8) -> io::Result<Self> {
        Err(no_verbs())
    }

    /// Starts to let the peer READ all of some memory.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no READ")
    )]
    pub(super) fn grant(&mut self, memory: &Shared) -> io::Result<Granted> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.grant(memory, 0, memory.len()),
        }
    }

    /// Starts to let the peer claim and write a cursor.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no remote write")
    )]
    pub(super) fn grant_cursor(&mut self, entry: &Leased) -> io::Result<Granted> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.grant_cursor(entry),
        }
    }

    /// Registers a part of some memory, and starts to let the peer write it.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no remote write")
    )]
    pub(super) fn grant_inbox(
        &mut self,
        memory: Arc<dyn RingMemory>,
        part: Range<usize>,
    ) -> io::Result<Granted> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                let inbox = InboxMemory::register(stream.device(), memory, part);
                stream.grant_inbox(&inbox.map_err(verbs_error)?)
            }
        }
    }

    /// Starts to write a datagram from some memory to the peer's inbox.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no remote write")
    )]
    pub(super) fn write_from(&mut self, memory: &Shared, write: &MirrorWrite) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                let inbox = RemoteMemory {
                    address: write.inbox.address,
                    key: write.inbox.key,
                    len: write.inbox.len as usize,
                };
                stream.write_from(memory, (write.offset, write.len), inbox, write.at)
            }
        }
    }

    /// Returns how many of these writes completed since the last call.
    pub(super) fn take_written(&mut self) -> u32 {
        match self {
            Self::Tcp(_) => 0,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.take_written(),
        }
    }

    /// Returns whether the connection ended because the peer requested an access that was not granted.
    pub(super) fn is_violated(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.end() == Some(StreamEnd::Violated),
        }
    }

    /// Returns whether the peer has any grant.
    pub(super) fn has_granted(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.has_granted(),
        }
    }

    /// Starts to revoke all grants of the peer. Returns `false` if that can't be started.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no grants")
    )]
    pub(super) fn revoke_all(&mut self, why: &str) -> bool {
        match self {
            Self::Tcp(_) => true,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.revoke_all(why).is_ok(),
        }
    }

    /// Returns the location of the granted memory, once the device has bound it.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no READ")
    )]
    pub(super) fn granted(&self, grant: &Granted) -> Option<RemoteAccess> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.granted(*grant).map(|at| RemoteAccess {
                address: at.address,
                len: at.len as u64,
                key: at.key,
            }),
        }
    }

    /// Returns the limits of concurrent READs.
    pub(super) fn read_limits(&self) -> ReadLimits {
        match self {
            Self::Tcp(_) => ReadLimits::default(),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => ReadLimits {
                reads: stream.reads_depth(),
                len_max: READ_LEN_MAX as u32,
                writes: if stream.swaps() { WRITES_MAX } else { 0 },
            },
        }
    }

    /// Starts an operation in the peer's memory.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no READ")
    )]
    pub(super) fn begin_remote(&mut self, request: &RemoteRequest) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                let at = RemoteMemory {
                    address: request.address,
                    key: request.key,
                    len: request.len as usize,
                };
                match request.what {
                    RemoteOp::Slots(_) | RemoteOp::Page => {
                        stream.read_remote(at, 0, at.len, request.tag)
                    }
                    RemoteOp::Claim(session) => {
                        stream.compare_and_swap(at, 0, 0, session.to_le(), request.tag)
                    }
                    RemoteOp::Report(words) => {
                        let words = words.map(u64::to_le_bytes);
                        stream.write_remote(at, 0, words.as_flattened(), request.tag)
                    }
                }
            }
        }
    }

    /// Passes on the result of the next completed operation, with its tag. Returns `false` if there is
    /// none.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "TCP has no READ")
    )]
    pub(super) fn take_remote(&mut self, on: impl FnOnce(u64, &[u8])) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                match stream.take_completed() {
                    Some(Completed::Read { tag, bytes }) => on(tag, bytes),
                    Some(Completed::Swapped { tag, old }) => on(tag, &old.to_ne_bytes()),
                    Some(Completed::Written { tag }) => on(tag, &[]),
                    // A connection that ended returns no more results, and its end is reported elsewhere.
                    Some(_) | None => return false,
                }
                true
            }
        }
    }

    /// Returns whether the attempt has become a connection.
    pub(super) fn is_established(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                match stream.peer_addr() {
                    Ok(_) => {
                        // Without this, small NACKs would wait for the acknowledgement of earlier ones.
                        stream.set_nodelay(true)?;
                        Ok(true)
                    }
                    Err(error)
                        if error.kind() == io::ErrorKind::NotConnected
                            || error.raw_os_error() == Some(libc::EINPROGRESS) =>
                    {
                        Ok(false)
                    }
                    Err(error) => Err(error),
                }
            }
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                if stream.advance() {
                    Ok(stream.is_up())
                } else {
                    Err(io::ErrorKind::ConnectionRefused.into())
                }
            }
        }
    }

    /// Returns this end's address of a connection over TCP.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            #[cfg(feature = "rdma")]
            Self::Verbs(_) => None,
        }
    }

    /// Ends the sending direction.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            // The connection ends in both directions at once, so leave it open until the peer has read.
            #[cfg(feature = "rdma")]
            Self::Verbs(_) => Ok(()),
        }
    }

    /// Returns whether there are unread bytes that no descriptor reports any more.
    pub(super) fn holds_input(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.holds_input(),
        }
    }

    /// Returns whether one descriptor reports both bytes to read and room to write, without distinguishing
    /// them.
    pub(super) const fn signals_both_at_once(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Returns the descriptors to wait on.
    pub(super) fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        match self {
            Self::Tcp(stream) => [Some(stream.as_fd()), None],
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.descriptors(),
        }
    }

    /// Adds the connection to a poll.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
            }
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                use std::os::fd::AsRawFd;
                for descriptor in stream.descriptors().into_iter().flatten() {
                    let raw = descriptor.as_raw_fd();
                    registry.register(&mut mio::unix::SourceFd(&raw), token, Interest::READABLE)?;
                }
                Ok(())
            }
        }
    }

    /// Removes the connection from a poll. A failure is ignored, because closing removes it too.
    pub(super) fn deregister(&mut self, registry: &Registry) {
        match self {
            Self::Tcp(stream) => {
                let _ = registry.deregister(stream);
            }
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => {
                use std::os::fd::AsRawFd;
                for descriptor in stream.descriptors().into_iter().flatten() {
                    let raw = descriptor.as_raw_fd();
                    let _ = registry.deregister(&mut mio::unix::SourceFd(&raw));
                }
            }
        }
    }
}

impl Read for CarrierStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.read(into),
        }
    }
}

impl Write for CarrierStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "rdma")]
            Self::Verbs(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, feature = "rdma"))]
mod tests {
    use std::net::Ipv4Addr;

    use super::dial_from;

    const PUBLISHER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
    const OWN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 3, 0, 3), Ipv4Addr::new(10, 2, 0, 3)];

    #[test]
    fn connection_starts_where_route_to_publisher_leads() {
        let order: Vec<_> = dial_from(PUBLISHER, OWN[1], &OWN).collect();
        assert_eq!(order, [OWN[1], OWN[0], OWN[1], OWN[1]]);
    }

    #[test]
    fn connection_within_a_host_starts_at_given_interface() {
        let order: Vec<_> = dial_from(PUBLISHER, PUBLISHER, &OWN[1..]).collect();
        assert_eq!(order, [OWN[1], PUBLISHER]);
        let order: Vec<_> = dial_from(PUBLISHER, PUBLISHER, &[]).collect();
        assert_eq!(order, [PUBLISHER]);
    }
}
