//! DBN records from another process over a Unix stream socket. Every whole message becomes a
//! message of the source. Truncated or unreadable messages are reported in the stream. The writer
//! never waits longer than the feed thread sleeps. Source: docs/PROTOCOL.md §12.
//!
//! One writer at a time; a second one is refused with a text. Each connection after the first is
//! another session of the source.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tickcast_feeds::source::Incident;
use tickcast_reliability::record::{
    RecordBatch, RecordHeader, Records, record_len, words_as_bytes, words_as_bytes_mut,
};
use tickcast_reliability::types::SourcePosition;
use tickcast_transport::host::files::DirectoryEntry;

use crate::ingest::Polled;
use crate::ingest::queue::Intake;
use crate::state::SourceCounters;
use crate::state::source_loss::SourceLoss;

/// The type tag of a message frame, which no DBN record has.
pub(crate) const FRAME_RTYPE: u8 = 0xf0;
/// Connections that wait to be taken.
const BACKLOG: i32 = 128;
/// Length of a message frame in bytes.
pub(crate) const FRAME_LEN: usize = 24;

/// Frame kinds, in bytes 4 and 5 of a frame.
mod frame {
    /// The given number of records are one message.
    pub(super) const MESSAGE: u16 = 1;
    /// Messages are missing.
    pub(super) const LOST: u16 = 2;
    /// The source has ended.
    pub(super) const END: u16 = 3;
    /// The source opened another session.
    pub(super) const SESSION: u16 = 4;
}

/// Bytes read at a time.
const BUFFER_LEN: usize = 64 << 10;
/// The longest message that fits any datagram.
const MESSAGE_LEN_MAX: usize = 8960;

/// A socket that one writer at a time can connect to.
pub(crate) struct RecordsInput {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, so that no other file is removed.
    file: (u64, u64),
    writer: Option<Writer>,
    /// A connection made while there was a writer; refused if that writer is still there.
    waiting: Option<UnixStream>,
    /// Sessions before this one; `None` before the first writer.
    ordinal: Option<u16>,
    buffer: Box<[u64]>,
}

struct Writer {
    stream: UnixStream,
    ordinal: u16,
    /// Bytes of the buffer that are filled.
    filled: usize,
    /// Number of the next message; if all numbers are used up, one beyond the last.
    next: u64,
    /// The received part of an announced message, and the number of records still to come.
    message: RecordBatch,
    left: u16,
}

/// The reason why a writer is gone.
enum Gone {
    /// The writer closed the connection.
    Closed,
    /// The writer declared the end of the source.
    Ended,
    /// The writer sent data that is no record.
    Malformed(&'static str),
}

impl RecordsInput {
    /// Listens at `path`, for this user only. Replaces a socket that no process listens on.
    ///
    /// # Errors
    /// - [`ErrorKind::AddrInUse`] if another process listens there;
    /// - [`ErrorKind::AlreadyExists`] if a file of another kind has this name;
    /// - otherwise the error of the operating system.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Another user must not be able to replace the socket.
        DirectoryEntry::trusted(path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(ErrorKind::AlreadyExists.into());
            }
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(ErrorKind::AddrInUse.into()),
            _ => {}
        }
        // Create it under another name first, because a socket can't be bound to a name that exists.
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The name gets the mode of the descriptor, so no other user can connect in between.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(&beside)?)?;
        listen(&socket, BACKLOG)?;
        let listener = UnixListener::from(socket);
        fs::rename(&beside, path)?;
        Ok(Self {
            listener,
            file: file_of(path)?,
            path: path.to_owned(),
            writer: None,
            waiting: None,
            ordinal: None,
            buffer: vec![0; BUFFER_LEN / 8].into(),
        })
    }

    /// Takes the data that has arrived, and never waits.
    ///
    /// # Errors
    /// Returns the error of the listening socket; a connection's errors end that connection only.
    pub(crate) fn poll(
        &mut self,
        counters: &SourceCounters,
        sink: &mut dyn Intake,
    ) -> io::Result<Polled> {
        if let Some(writer) = &mut self.writer {
            match writer.receive(&mut self.buffer, counters, sink) {
                Ok(true) => return Ok(Polled::Worked),
                Ok(false) => {
                    if let Some(second) = self.waiting.take() {
                        counters.source_refused_connections.increment();
                        turn_away(
                            second,
                            "this source already has a writer; end that one first",
                        );
                    }
                }
                Err(Gone::Ended) => return Ok(Polled::Ended),
                Err(gone) => self.gone(&gone, counters, sink),
            }
        }
        self.accept(counters, sink)
    }

    fn accept(&mut self, counters: &SourceCounters, sink: &mut dyn Intake) -> io::Result<Polled> {
        let stream = match self.waiting.take() {
            Some(stream) => stream,
            None => match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    use ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                    return match error.kind() {
                        WouldBlock | Interrupted | ConnectionAborted => Ok(Polled::Idle),
                        _ => Err(error),
                    };
                }
            },
        };
        if self.writer.is_some() {
            // Its predecessor may just have gone; the next poll decides.
            self.waiting = Some(stream);
            return Ok(Polled::Worked);
        }
        stream.set_nonblocking(true)?;
        counters.source_connections.increment();
        let mut writer = Writer {
            stream,
            ordinal: self.ordinal.unwrap_or(0),
            filled: 0,
            next: 1,
            message: RecordBatch::default(),
            left: 0,
        };
        if self.ordinal.is_some() {
            writer.next_session(1, sink);
        }
        self.writer = Some(writer);
        Ok(Polled::Worked)
    }

    /// Ends the writer's connection, and reports a truncated message.
    fn gone(&mut self, gone: &Gone, counters: &SourceCounters, sink: &mut dyn Intake) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        self.ordinal = Some(writer.ordinal);
        let at = writer.position();
        match gone {
            Gone::Malformed(reason) => {
                tracing::error!(%at, reason, "a records writer sent invalid data, and its \
                                              connection is closed");
                counters.source_refused_connections.increment();
                // The number of messages that would follow is unknown.
                sink.lost(SourceLoss::malformed(at, u64::MAX));
                turn_away(writer.stream, reason);
            }
            Gone::Closed | Gone::Ended if writer.filled > 0 || writer.left > 0 => {
                tracing::error!(%at, "a records writer disconnected within a message");
                sink.lost(SourceLoss::malformed(at, 1));
            }
            Gone::Closed | Gone::Ended => tracing::info!("a records writer has disconnected"),
        }
    }
}

impl Drop for RecordsInput {
    fn drop(&mut self) {
        // Another publisher may have its own socket there by now.
        if file_of(&self.path).is_ok_and(|file| file == self.file) {
            // The next publisher replaces it if this fails.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Writer {
    /// Reads once. Returns whether data came.
    fn receive(
        &mut self,
        buffer: &mut [u64],
        counters: &SourceCounters,
        sink: &mut dyn Intake,
    ) -> Result<bool, Gone> {
        let len = match (self.stream).read(&mut words_as_bytes_mut(buffer)[self.filled..]) {
            Ok(0) => return Err(Gone::Closed),
            Ok(len) => len,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(false),
                    _ => Err(Gone::Closed),
                };
            }
        };
        counters.source_bytes.add(len as u64);
        self.filled += len;
        let taken = self.messages(&words_as_bytes(buffer)[..self.filled], sink)?;
        words_as_bytes_mut(buffer).copy_within(taken..self.filled, 0);
        self.filled -= taken;
        Ok(true)
    }

    /// Takes all whole messages. Returns the bytes consumed, a multiple of 8.
    fn messages(&mut self, bytes: &[u8], sink: &mut dyn Intake) -> Result<usize, Gone> {
        let mut at = 0;
        while let [words, rtype, ..] = bytes[at..] {
            let len = usize::from(words) * RecordHeader::LENGTH_MULTIPLIER;
            let is_frame = rtype == FRAME_RTYPE && len == FRAME_LEN;
            if !is_frame && record_len(rtype) != Some(len) {
                return Err(Gone::Malformed(
                    "a record of unknown type or length; send the DBN version 3 records of wire version 1",
                ));
            }
            let Some(whole) = bytes.get(at..at + len) else {
                break;
            };
            if is_frame {
                self.frame(whole, sink)?;
            } else {
                self.record(whole, sink)?;
            }
            at += len;
        }
        Ok(at)
    }

    fn record(&mut self, bytes: &[u8], sink: &mut dyn Intake) -> Result<(), Gone> {
        if self.message.bytes().len() + bytes.len() > MESSAGE_LEN_MAX {
            return Err(Gone::Malformed("a message longer than any datagram"));
        }
        if self.next > SourcePosition::SEQUENCE_MAX {
            return Err(Gone::Malformed(
                "a message after the last source sequence; send a session frame first",
            ));
        }
        let Ok(record) = Records::check(bytes, 1) else {
            return Err(Gone::Malformed("a record with inconsistent fields"));
        };
        self.message.extend(record);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            sink.message(self.position(), &self.message);
            self.message.clear();
            self.next += 1;
        }
        Ok(())
    }

    fn frame(&mut self, frame: &[u8], sink: &mut dyn Intake) -> Result<(), Gone> {
        if self.left > 0 {
            return Err(Gone::Malformed("a frame within a message"));
        }
        let short = |at: usize| u16::from_le_bytes([frame[at], frame[at + 1]]);
        let long = |at: usize| {
            let bytes = frame[at..at + 8].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (count, what, sequence, messages) = (short(2), short(4), long(8), long(16));
        if sequence > SourcePosition::SEQUENCE_MAX {
            return Err(Gone::Malformed("a source sequence of more than 48 bits"));
        }
        if matches!(what, frame::MESSAGE | frame::LOST) && sequence < self.next {
            return Err(Gone::Malformed(
                "a source sequence that steps back; send a session frame first, or reconnect",
            ));
        }
        match what {
            frame::MESSAGE if count > 0 => {
                self.left = count;
                self.next = sequence;
            }
            frame::LOST if messages > 0 => {
                let loss = SourceLoss::gap(SourcePosition::new(self.ordinal, sequence), messages);
                let next = sequence.saturating_add(loss.known_messages());
                if next > SourcePosition::SEQUENCE_MAX + 1 {
                    return Err(Gone::Malformed(
                        "lost messages beyond the last source sequence; all ones mean an unknown \
                         number",
                    ));
                }
                self.next = next;
                sink.lost(loss);
            }
            frame::MESSAGE | frame::LOST => {
                return Err(Gone::Malformed("a frame without content"));
            }
            frame::SESSION => self.next_session(sequence, sink),
            frame::END => {
                sink.incident(Incident::EndOfSession);
                return Err(Gone::Ended);
            }
            _ => return Err(Gone::Malformed("a frame of an unknown kind")),
        }
        Ok(())
    }

    /// Starts a new session, in which the source counts from the beginning.
    fn next_session(&mut self, next: u64, sink: &mut dyn Intake) {
        self.ordinal = self.ordinal.saturating_add(1);
        self.next = next;
        let next = self.position();
        sink.incident(Incident::SessionChange { next });
    }

    /// Returns the position of the next message.
    const fn position(&self) -> SourcePosition {
        SourcePosition::new(self.ordinal, self.next)
    }
}

/// Sends the reason, as far as the peer takes it, and closes.
fn turn_away(mut stream: UnixStream, reason: &str) {
    // Best effort: nothing depends on the peer reading the text.
    let _ = stream.set_nonblocking(true);
    let _ = writeln!(stream, "refused: {reason}");
    // The peer's writes fail from here on, so the unread data is bounded.
    let _ = stream.shutdown(Shutdown::Both);
    // Closing with unread data would reset the connection, and the peer would not read the text.
    let _ = io::copy(&mut stream, &mut io::sink());
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}
