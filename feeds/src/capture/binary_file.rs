//! Reads files of messages: Nasdaq BinaryFILE, and SoupBinTCP streams saved as a file.
//!
//! BinaryFILE is `u16 length | message`, big-endian, up to a zero length or the end of the file.
//! Some files have only zero lengths; then each type implies its length. SoupBinTCP is
//! `u16 length | type | payload`. A file cut off ends there; another day may follow behind a zero
//! length, or begin with its start-of-messages event.
//!
//! Every length is compared with its message type. A message is believed only if a sound one, the
//! end mark or the end follows; behind damage, reading continues at the next two sound messages. Those
//! begin another day if they are earlier, or like its first ones and behind an end mark. A row of sound
//! messages shows that the first one of the file is wrong.
//! Damage counts as one message, so that the position of its loss is no message's.

mod framing;
mod recognition;

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use self::framing::{Framing, Login, Unit};
pub(super) use self::recognition::recognise;
use super::{
    CaptureError, CaptureFault,
    account::{Account, Reason},
    finding::{CaptureFinding, Findings},
    input::Input,
    open_input,
};
use crate::itch::messages::{StockDirectory, SystemEvent, message_len};

/// Event code of the first message of a day.
const START_OF_MESSAGES: u8 = b'O';
/// Event code of the last message of a day.
const END_OF_MESSAGES: u8 = b'C';
const EVENT_AT: usize = 11;

/// A file of messages being read.
pub struct BinaryFile {
    path: PathBuf,
    size: Option<u64>,
    input: Input,
    framing: Framing,
    ended: bool,
    /// Whether the last unit was an end mark.
    is_after_mark: bool,
    /// Whether the last unit was an end mark, or the venue's last message of the day.
    is_after_end: bool,
    session: u16,
    sequence: u64,
    /// Sequence before the session's first message.
    joined: u64,
    /// Highest sequence of the session so far.
    highest: u64,
    /// Messages of the session that damage stands for.
    supposed: u64,
    /// Whether damage precedes the message that was returned last, or the end.
    follows_damage: bool,
    /// Stamps of the session's last two messages.
    stamps: [Option<u64>; 2],
    /// Name of the session that the last login began.
    login: Option<[u8; 10]>,
    stats: BinaryFileStats,
    findings: Findings,
}

/// Counts of the messages read so far. The account's sums are the messages and bytes read, with
/// those that came again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryFileStats {
    /// Messages returned so far, of all sessions.
    pub messages: u64,
    /// Messages that came again after a login, left out.
    pub repeated: u64,
    /// Messages longer than their type, whose last bytes are left out.
    pub overlong: u64,
    /// 1 when the file ended in the middle of a message or of its compressed stream.
    pub truncated: u64,
    /// Zero lengths and end-of-session packets, which end a day.
    pub end_marks: u64,
    /// Messages and bytes by reason.
    pub account: Account,
}

/// Judgement of the unit at the start of the window.
enum Judged {
    Sound(Unit),
    Cut,
    Damaged,
}

/// The day of messages behind damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The day before the damage.
    Same,
    /// Another day, whose first messages are lost.
    Another,
    /// Another day, from its first message on.
    FromStart,
}

impl BinaryFile {
    /// Opens a file, a FIFO, or standard input for the path `-`.
    ///
    /// # Errors
    /// [`CaptureError`] when it can't be read, or does not begin with an ITCH 5.0 message.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let (input, size) = open_input(path)?;
        Self::begin(path, input, size)
    }

    /// Reads from any reader; errors show `name` as its path.
    ///
    /// # Errors
    /// Same as [`BinaryFile::open`].
    pub fn from_reader(
        name: impl AsRef<Path>,
        reader: impl Read + Send + 'static,
    ) -> Result<Self, CaptureError> {
        let name = name.as_ref();
        let input = Input::new(reader).map_err(|e| CaptureFault::Io(e).at(name, 0))?;
        Self::begin(name, input, None)
    }

    fn begin(path: &Path, mut input: Input, size: Option<u64>) -> Result<Self, CaptureError> {
        let framing = recognise(&mut input).map_err(|e| CaptureFault::Io(e).at(path, 0))?;
        let head = input.visible();
        if head.is_empty() && !input.is_cut() {
            return Err(CaptureError::Empty { path: path.into() });
        }
        // A file cut within its first bytes is truncated.
        let is_short = head.len() <= framing::PREFIX_LEN;
        let Some(framing) = framing.or(is_short.then_some(Framing::Lengths)) else {
            if let Some(fault) = input.take_fault() {
                return Err(CaptureFault::Io(fault).at(path, 0));
            }
            let what = "no message of ITCH 5.0 begins";
            return Err(CaptureFault::Damaged(what).at(path, 0));
        };
        Ok(Self::new(path, input, size, framing))
    }

    /// Reads a file that was recognised.
    pub(super) fn new(path: &Path, input: Input, size: Option<u64>, framing: Framing) -> Self {
        Self {
            path: path.into(),
            size,
            input,
            framing,
            ended: false,
            is_after_mark: false,
            is_after_end: false,
            session: 0,
            sequence: 0,
            joined: 0,
            highest: 0,
            supposed: 0,
            follows_damage: false,
            stamps: [None; 2],
            login: None,
            stats: BinaryFileStats::default(),
            findings: Findings::default(),
        }
    }

    /// Returns the next message, or `None` at the end of the file and after an error.
    ///
    /// # Errors
    /// [`CaptureError`] when the file cannot be read further. The error ends the file.
    #[expect(
        clippy::should_implement_trait,
        reason = "it lends from the file, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>, CaptureError> {
        if !self.ended {
            self.follows_damage = false;
        }
        while !self.ended {
            let at = self.input.offset();
            match self.step() {
                Ok(Some(message)) => return Ok(Some(self.input.taken(message))),
                Ok(None) => {}
                Err(fault) => {
                    if !self.ended {
                        self.cut_off(self.input.offset() - at);
                    }
                    self.ended = true;
                    return Err(fault.at(&self.path, self.input.offset()));
                }
            }
        }
        Ok(None)
    }

    /// Reads one unit; returns the message that it holds.
    fn step(&mut self) -> Result<Option<std::ops::Range<usize>>, CaptureFault> {
        let at = self.input.offset();
        let unit = match self.judge()? {
            Judged::Sound(unit) => unit,
            Judged::Cut => {
                self.end(at)?;
                return Ok(None);
            }
            Judged::Damaged => {
                self.skip_damage()?;
                return Ok(None);
            }
        };
        let is_mark = matches!(unit, Unit::EndMark { .. });
        let is_after_mark = std::mem::replace(&mut self.is_after_mark, is_mark);
        self.is_after_end = is_mark;
        let taken = self.input.take(unit.len());
        let len = taken.len() as u64;
        match unit {
            Unit::Message { at: message_at, .. } => {
                let message = taken.start + message_at..taken.end;
                let bytes = self.input.taken(message.clone());
                let of_kind = bytes.first().and_then(|kind| message_len(*kind));
                let is_overlong = of_kind.is_some_and(|len| len < bytes.len());
                let event = (bytes.first() == Some(&SystemEvent::KIND))
                    .then(|| bytes.get(EVENT_AT).copied())
                    .flatten();
                let begins_day = event == Some(START_OF_MESSAGES);
                self.is_after_end = event == Some(END_OF_MESSAGES);
                if begins_day && self.sequence > 0 {
                    self.begin_session(at, 0);
                }
                self.sequence += 1;
                self.stamps = [
                    self.stamps[1],
                    framing::stamp(self.input.taken(message.clone())),
                ];
                if self.sequence <= self.highest {
                    self.stats.repeated += 1;
                    self.stats.account.add(Reason::Repeated, 1, len);
                    return Ok(None);
                }
                self.stats.overlong += u64::from(is_overlong);
                self.highest = self.sequence;
                self.stats.messages += 1;
                self.stats.account.add(Reason::Datagram, 1, len);
                return Ok(Some(message));
            }
            Unit::EndMark { .. } => {
                if is_after_mark {
                    self.stats.account.add(Reason::Padding, 0, len);
                } else {
                    self.stats.end_marks += 1;
                    self.stats.account.add(Reason::Structure, 0, len);
                }
                let next = self.input.offset();
                if self.goes_on()? {
                    self.begin_session(next, 0);
                }
            }
            Unit::Login { .. } => match Login::read(self.input.taken(taken)) {
                Some(login) => {
                    self.stats.account.add(Reason::Structure, 0, len);
                    self.log_in(login, at);
                }
                None => self.skipped(at, at + len),
            },
            Unit::Other { .. } => self.stats.account.add(Reason::Structure, 0, len),
        }
        Ok(None)
    }

    /// Returns whether another session follows.
    fn goes_on(&mut self) -> Result<bool, CaptureFault> {
        self.input.ensure(framing::SOUND_LEN)?;
        let visible = self.input.visible();
        let is_mark = matches!(self.framing.unit(visible, 0), Some(Unit::EndMark { .. }));
        Ok(!is_mark && self.framing.is_sound(visible, 0))
    }

    /// Takes the sequence of a login. A login continues the current session, and may repeat messages
    /// of it or pass some over, or begins another one.
    fn log_in(&mut self, login: Login, at: u64) {
        let before = login.next.saturating_sub(1);
        let is_of_current = self.login.replace(login.session) == Some(login.session);
        if self.is_unread() {
            (self.joined, self.sequence) = (before, before);
        } else if !is_of_current || before < self.joined {
            self.begin_session(at, before);
        } else {
            let seen = self.highest.max(self.joined);
            if before > seen {
                let (from, to) = (seen + 1, before);
                (self.findings).add(CaptureFinding::Missing { from, to, at });
            }
            // Damage stands for messages that it may not have held. Then the login continues here.
            let steps_back = seen.saturating_sub(before);
            if steps_back == 0 {
                self.supposed = 0;
            }
            self.sequence = match steps_back <= self.supposed {
                true => before.max(seen),
                false => before,
            };
        }
    }

    /// Returns whether nothing of the session was read.
    const fn is_unread(&self) -> bool {
        self.sequence == 0 && self.highest == 0
    }

    fn skipped(&mut self, from: u64, to: u64) {
        self.stats.account.add(Reason::Skipped, 0, to - from);
        self.findings.add(CaptureFinding::Skipped { from, to });
        // A day that has ended misses nothing.
        if !self.is_after_end {
            self.suppose_message();
        }
    }

    /// Counts damage as one message, unless nothing was read since the last damage. Among messages that come
    /// again, it stands for one of them.
    fn suppose_message(&mut self) {
        if !std::mem::replace(&mut self.follows_damage, true) {
            self.sequence += 1;
            self.supposed += u64::from(self.sequence > self.highest);
            self.highest = self.highest.max(self.sequence);
        }
    }

    fn begin_session(&mut self, at: u64, sequence: u64) {
        // Nothing was read since the last begin: an end mark and a first event name one session.
        if self.is_unread() {
            return;
        }
        self.session = self.session.saturating_add(1);
        self.supposed = 0;
        self.stamps = [None; 2];
        (self.joined, self.sequence, self.highest) = (sequence, sequence, 0);
        self.findings.add(CaptureFinding::AnotherFile { at });
    }

    fn judge(&mut self) -> Result<Judged, CaptureFault> {
        if !self.input.ensure(framing::PREFIX_LEN)? {
            return Ok(Judged::Cut);
        }
        self.input.ensure(framing::HEAD_LEN)?;
        let Some(unit) = self.framing.unit(self.input.visible(), 0) else {
            return self.rest_is_cut_or_damaged();
        };
        let end = unit.len();
        let has_all = self.input.ensure(end + framing::SOUND_LEN)?;
        let visible = self.input.visible();
        if visible.len() == end || self.framing.is_sound(visible, end) {
            return Ok(Judged::Sound(unit));
        }
        if !has_all && visible.len() >= end && is_zero(&visible[end..]) {
            return Ok(Judged::Sound(unit));
        }
        // A wrong length hides sound messages within the message; a right one does not.
        let has_more = self.input.ensure(end + framing::PAIR_LEN)?;
        let visible = self.input.visible();
        let hidden = self
            .framing
            .find(visible, 1..end.min(visible.len()), !has_more);
        Ok(match hidden {
            Some(_) => Judged::Damaged,
            None if visible.len() < end => Judged::Cut,
            None if unit.is_certain() => Judged::Sound(unit),
            None => Judged::Damaged,
        })
    }

    /// Judges bytes that are no unit: the beginning of one at the end of the file, or damage.
    fn rest_is_cut_or_damaged(&mut self) -> Result<Judged, CaptureFault> {
        let is_rest = !self.input.ensure(framing::HEAD_LEN)?;
        Ok(if is_rest {
            Judged::Cut
        } else {
            Judged::Damaged
        })
    }

    /// Takes everything up to the next two sound units, or the end.
    fn skip_damage(&mut self) -> Result<(), CaptureFault> {
        let from = self.input.offset();
        let framing = &self.framing;
        let visible = self.input.visible();
        let mark = match framing.unit(visible, 0) {
            Some(Unit::EndMark { len }) => Some(len),
            _ => None,
        };
        let behind = mark.and_then(|len| message_len(*visible.get(len)?));
        let find = |bytes: &[u8], range, is_end| framing.find(bytes, range, is_end);
        let is_padding = self.input.skip_damage(framing::PAIR_LEN, find)?;
        let to = self.input.offset();
        if is_padding {
            self.stats.account.add(Reason::Padding, 0, to - from);
            return Ok(());
        }
        let is_last = !self.input.ensure(1)?;
        // A message whose length became 0 looks like an end mark.
        let is_message = |len: u64| behind.is_some_and(|of_kind| to - from - len == of_kind as u64);
        // The first bytes of the next unit can be zeros too.
        let mark = mark.map(|len| len as u64).filter(|len| *len <= to - from);
        let mark = mark.filter(|len| !is_message(*len));
        let next = self.part_ahead(mark.is_some());
        let mark = mark.filter(|_| is_last || next != Part::Same);
        if let Some(len) = mark {
            self.stats.end_marks += 1;
            self.stats.account.add(Reason::Structure, 0, len);
            self.is_after_end = true;
        }
        let from = from + mark.unwrap_or(0);
        // The damage belongs to the day that is not over.
        if next == Part::Another && self.is_after_end {
            self.begin_session(to, 0);
            self.is_after_end = false;
            self.skipped(from, to);
        } else {
            self.skipped(from, to);
            if next == Part::Another {
                self.begin_session(to, 0);
            }
        }
        Ok(())
    }

    /// Returns which day the sound messages behind damage belong to. Logins tell that of SoupBinTCP.
    fn part_ahead(&self, is_behind_mark: bool) -> Part {
        let visible = self.input.visible();
        let mut messages = self.framing.messages(visible).take(2).peekable();
        let Some(first) = messages.peek().filter(|_| !self.is_soup()) else {
            return Part::Same;
        };
        let is_event = first.first() == Some(&SystemEvent::KIND);
        if is_event && first.get(EVENT_AT) == Some(&START_OF_MESSAGES) {
            return Part::FromStart;
        }
        let is_of_start = is_event || first.first() == Some(&StockDirectory::KIND);
        // One stamp of two may be wrong.
        let last = self.stamps[0].zip(self.stamps[1]);
        let falls_back = last.is_some_and(|(one, other)| {
            messages.all(|it| framing::stamp(it).is_some_and(|stamp| stamp < one.min(other)))
        });
        match falls_back || (is_of_start && is_behind_mark) {
            true => Part::Another,
            false => Part::Same,
        }
    }

    /// Ends the input. Bytes that are left belong to a truncated message. Returns the error that ended it.
    fn end(&mut self, at: u64) -> Result<(), CaptureFault> {
        let left = self.input.visible();
        let is_cut = self.input.is_cut() || self.framing.may_begin(left);
        let is_padding = self.is_after_mark && is_zero(left) && !self.input.is_cut();
        let is_input_cut = self.input.is_cut();
        let left = left.len();
        self.input.take(left);
        let fault = self.input.take_fault();
        if is_padding {
            self.stats.account.add(Reason::Padding, 0, left as u64);
        } else if self.is_after_end && left > 0 && !is_cut {
            self.skipped(at, at + left as u64);
        } else if left > 0 || is_input_cut {
            self.cut_off(left as u64);
            // The error names itself.
            if fault.is_none() {
                self.findings.add(CaptureFinding::Truncated { at });
            }
        }
        (self.input.tail()).account(&mut self.stats.account, &mut self.findings);
        self.ended = true;
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Accounts for the bytes of a message that is not whole, at the end.
    fn cut_off(&mut self, bytes: u64) {
        self.stats.truncated = 1;
        self.stats.account.add(Reason::Truncated, 0, bytes);
        self.suppose_message();
    }

    /// Returns the ordinal of the current message's session, from 0.
    #[must_use]
    pub const fn session(&self) -> u16 {
        self.session
    }

    /// Returns the current message's sequence within its session, from 1. Damage counts as one message.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether unreadable bytes precede the message that was returned last, or the end.
    #[must_use]
    pub const fn follows_damage(&self) -> bool {
        self.follows_damage
    }

    /// Returns whether the messages are framed as SoupBinTCP.
    #[must_use]
    pub const fn is_soup(&self) -> bool {
        matches!(self.framing, Framing::SoupBinTcp)
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn stats(&self) -> &BinaryFileStats {
        &self.stats
    }

    /// Returns the findings so far.
    #[must_use]
    pub const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns one line for each reason why the file is not whole; complete at the end.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.findings.faults();
        if self.stats.messages == 0 {
            faults.push("the file holds no messages: check that it is complete".into());
        }
        let overlong = self.stats.overlong;
        if overlong > 0 {
            faults.push(format!(
                "{overlong} messages are longer than their type: they are damaged, or the venue appends \
                 fields, which are left out"
            ));
        }
        faults
    }

    /// Returns one line for each finding that leaves the file whole; complete at the end.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.findings.notes()
    }

    /// Returns the bytes of the file read so far, before decompression. Compare with
    /// [`BinaryFile::size`] for progress.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.input.raw_position()
    }

    /// Returns the file's size in bytes if it is a regular file.
    #[must_use]
    pub const fn size(&self) -> Option<u64> {
        self.size
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
