//! Reads files of messages: Nasdaq BinaryFILE, and SoupBinTCP streams saved as a file.
//!
//! BinaryFILE is `u16 length | message`, big-endian, up to a zero length or the end of the file.
//! Some files have only zero lengths; then each type implies its length. SoupBinTCP is
//! `u16 length | type | payload`. A file cut off ends there; another day may follow behind a zero
//! length, or begin with its start-of-messages event.
//!
//! Every length is compared with its message type. A message is believed only if a sound one, the
//! end mark or the end follows; behind damage, reading continues at the next two sound messages. A
//! row of sound messages shows that the first one of the file is wrong.
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
use crate::itch::messages::SystemEvent;

/// The longest unit that a length of two bytes allows.
const UNIT_LEN_MAX: usize = 2 + 65_535;
/// Event code of the first message of a day.
const START_OF_MESSAGES: u8 = b'O';
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
            session: 0,
            sequence: 0,
            joined: 0,
            highest: 0,
            supposed: 0,
            follows_damage: false,
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
            match self.step() {
                Ok(Some(message)) => return Ok(Some(self.input.taken(message))),
                Ok(None) => {}
                Err(fault) => {
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
                self.end(at);
                return Ok(None);
            }
            Judged::Damaged => {
                self.skip_damage()?;
                return Ok(None);
            }
        };
        let is_mark = matches!(unit, Unit::EndMark { .. });
        let is_after_mark = std::mem::replace(&mut self.is_after_mark, is_mark);
        let taken = self.input.take(unit.len());
        let len = taken.len() as u64;
        match unit {
            Unit::Message { at: message_at, .. } => {
                let message = taken.start + message_at..taken.end;
                let bytes = self.input.taken(message.clone());
                let begins_day = bytes.first() == Some(&SystemEvent::KIND)
                    && bytes.get(EVENT_AT) == Some(&START_OF_MESSAGES);
                if begins_day && self.sequence > 0 {
                    self.begin_session(at, 0);
                }
                self.sequence += 1;
                if self.sequence <= self.highest {
                    self.stats.repeated += 1;
                    self.stats.account.add(Reason::Repeated, 1, len);
                    return Ok(None);
                }
                self.highest = self.sequence;
                self.stats.messages += 1;
                self.stats.account.add(Reason::Datagram, 1, len);
                return Ok(Some(message));
            }
            Unit::EndMark { .. } if is_after_mark => {
                self.stats.account.add(Reason::Padding, 0, len);
            }
            Unit::EndMark { .. } => {
                self.stats.end_marks += 1;
                self.stats.account.add(Reason::Structure, 0, len);
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
        self.suppose_message();
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
        let has_more = self.input.ensure(end + 2 * UNIT_LEN_MAX)?;
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
        let find = |bytes: &[u8], range, is_end| framing.find(bytes, range, is_end);
        let is_padding = self.input.skip_damage(2 * UNIT_LEN_MAX, find)?;
        let to = self.input.offset();
        if is_padding {
            self.stats.account.add(Reason::Padding, 0, to - from);
        } else {
            self.skipped(from, to);
        }
        Ok(())
    }

    /// Ends the input. Bytes that are left belong to a truncated message.
    fn end(&mut self, at: u64) {
        let left = self.input.visible();
        let is_padding = self.is_after_mark && is_zero(left) && !self.input.is_cut();
        let left = left.len();
        self.input.take(left);
        if is_padding {
            self.stats.account.add(Reason::Padding, 0, left as u64);
        } else if left > 0 || self.input.is_cut() {
            self.stats.truncated = 1;
            self.stats.account.add(Reason::Truncated, 0, left as u64);
            self.findings.add(CaptureFinding::Truncated { at });
            self.suppose_message();
        }
        (self.input.tail()).account(&mut self.stats.account, &mut self.findings);
        self.ended = true;
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
mod tests {
    use std::io::{Cursor, Write};

    use flate2::{Compression, write::GzEncoder};
    use tickcast_reliability::types::SourcePosition;

    use super::*;

    const EVENT: &[u8] = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0Q";

    fn drain(bytes: &[u8]) -> (Vec<Vec<u8>>, BinaryFile) {
        let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = file.next().unwrap() {
            messages.push(message.to_vec());
        }
        assert!(file.next().unwrap().is_none());
        let account = file.stats().account;
        assert_eq!(account.of(Reason::Datagram).frames, messages.len() as u64);
        (messages, file)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, BinaryFileStats) {
        let (messages, file) = drain(bytes);
        let total = file.stats.account.total().bytes;
        assert_eq!(total, bytes.len() as u64, "each byte is accounted for");
        (messages, file.stats)
    }

    #[test]
    fn messages_behind_a_zero_length_are_another_session() {
        let (messages, stats) = read(&[EVENT, EVENT, &[0, 0]].concat());
        assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
        assert_eq!((stats.truncated, stats.end_marks), (0, 1));
        let bytes = [EVENT, EVENT, &[0, 0], EVENT].concat();
        read(&bytes);
        let (messages, file) = drain(&bytes);
        assert!(!file.is_soup());
        assert_eq!((messages.len(), file.session(), file.sequence()), (3, 1, 1));
        let at = 2 * EVENT.len() as u64 + 2;
        assert_eq!(file.findings().kept(), [CaptureFinding::AnotherFile { at }]);
        assert!(!file.findings().is_damage());
    }

    #[test]
    fn start_of_messages_event_begins_another_session() {
        let mut start = EVENT.to_vec();
        start[EVENT.len() - 1] = START_OF_MESSAGES;
        let (messages, file) = drain(&[&start, EVENT, &start, EVENT].concat());
        assert_eq!((messages.len(), file.session(), file.sequence()), (4, 1, 2));
    }

    #[test]
    fn zeros_behind_the_end_mark_are_padding() {
        let (messages, stats) = read(&[EVENT, &[0; 513]].concat());
        assert_eq!((messages.len(), stats.truncated), (1, 0));
        assert_eq!(stats.account.of(Reason::Skipped).bytes, 0);
    }

    #[test]
    fn truncated_binary_file_gives_whole_messages() {
        let bytes = [EVENT, EVENT].concat();
        for len in 1..bytes.len() {
            let (messages, stats) = read(&bytes[..len]);
            assert_eq!(messages.len(), len / EVENT.len(), "{len}");
            assert_eq!(
                stats.truncated,
                u64::from(!len.is_multiple_of(EVENT.len())),
                "{len}"
            );
        }
    }

    #[test]
    fn damage_costs_its_message_only() {
        let event = |n: u8| {
            let mut event = EVENT.to_vec();
            event[12] = n;
            event
        };
        let whole: Vec<u8> = (1..9).flat_map(event).collect();
        let len = EVENT.len();
        for at in len..7 * len {
            for damage in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = damage;
                check_damage(&bytes, at / len);
            }
            let mut bytes = whole.clone();
            bytes.remove(at);
            check_damage(&bytes, at / len);
        }
    }

    /// Asserts that every event but the `n`-th of eight is read.
    fn check_damage(bytes: &[u8], n: usize) {
        let (messages, _) = read(bytes);
        let numbers: Vec<_> = messages.iter().map(|m| usize::from(m[10])).collect();
        for number in (1..9).filter(|number| *number != n + 1) {
            assert!(
                numbers.contains(&number),
                "{n}: {numbers:?} in {bytes:02x?}"
            );
        }
        assert!(numbers.len() <= 8);
    }

    /// Returns the number of each message, with `!` behind damage; and `!` alone for damage at the end.
    fn numbers(bytes: &[u8]) -> String {
        let mut file = BinaryFile::from_reader("test", Cursor::new(bytes.to_vec())).unwrap();
        let mut numbers = Vec::new();
        let damage = |file: &BinaryFile| if file.follows_damage() { "!" } else { "" };
        while file.next().unwrap().is_some() {
            numbers.push(format!("{}{}", damage(&file), file.sequence()));
        }
        assert!(file.next().unwrap().is_none());
        numbers.push(damage(&file).to_owned());
        numbers.join(" ")
    }

    #[test]
    fn damage_counts_as_one_message() {
        let len = EVENT.len();
        let mut bytes = EVENT.repeat(6);
        assert_eq!(numbers(&bytes), "1 2 3 4 5 6 ");
        assert_eq!(numbers(&bytes[..6 * len - 1]), "1 2 3 4 5 !");
        bytes[2 * len] = 0xff;
        assert_eq!(numbers(&bytes), "1 2 !4 5 6 ");
        bytes[3 * len] = 0xff;
        assert_eq!(
            numbers(&bytes),
            "1 2 !4 5 ",
            "one loss of an unknown number"
        );
        let junk = [&EVENT.repeat(2)[..], &[0xff; 99]].concat();
        assert_eq!(numbers(&junk), "1 2 !");
    }

    #[test]
    fn login_behind_damage_continues_or_names_the_gap() {
        let event = soup(b'S', &EVENT[2..]);
        let of = |next: u64| {
            let (begin, again) = (login("ONE", 1), login("ONE", next));
            let parts = [
                &begin[..],
                &event,
                &event,
                &[0, 1, b'?'],
                &event,
                &again,
                &event,
            ];
            numbers(&parts.concat())
        };
        // A heartbeat was damaged, and no message.
        assert_eq!(of(4), "1 2 !4 5 ");
        assert_eq!(of(5), "1 2 !4 5 ", "one message was damaged");
        assert_eq!(of(7), "1 2 !4 7 ", "three were");
        assert_eq!(of(2), "1 2 !4 ", "message 2 comes again");
    }

    fn soup(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = (payload.len() as u16 + 1).to_be_bytes().to_vec();
        packet.push(kind);
        packet.extend(payload);
        packet
    }

    fn login(session: &str, next: u64) -> Vec<u8> {
        soup(b'A', format!("{session:10}{next:20}").as_bytes())
    }

    #[test]
    fn login_that_continues_its_session_begins_no_other() {
        let event = soup(b'S', &EVENT[2..]);
        let numbers = |session, next| {
            let again = login(session, next);
            let bytes = [&login("ONE", 7)[..], &event, &again, &event].concat();
            read(&bytes);
            let (_, file) = drain(&bytes);
            (file.session(), file.sequence())
        };
        assert_eq!(numbers("ONE", 8), (0, 8));
        assert_eq!(numbers("ONE", 9), (0, 9), "a message is missing");
        assert_eq!(numbers("ONE", 7), (0, 7), "a message comes again");
        assert_eq!(numbers("ONE", 6), (1, 6), "from before the first login");
        assert_eq!(numbers("TWO", 8), (1, 8));
    }

    #[test]
    fn login_behind_a_gap_names_the_missing_messages() {
        let event = soup(b'S', &EVENT[2..]);
        let again = login("ONE", 11);
        let bytes = [&login("ONE", 7)[..], &event, &again, &event].concat();
        let (messages, stats) = read(&bytes);
        assert_eq!((messages.len(), stats.repeated), (2, 0));
        let (_, file) = drain(&bytes);
        let missing = CaptureFinding::Missing {
            from: 8,
            to: 10,
            at: (login("ONE", 7).len() + event.len()) as u64,
        };
        assert_eq!(file.findings().kept(), [missing]);
        let [fault] = &file.faults()[..] else {
            panic!("one fault: {:?}", file.faults());
        };
        assert!(
            fault.starts_with("messages 8 to 10 (3) are missing"),
            "{fault}"
        );
    }

    #[test]
    fn messages_that_a_login_repeats_come_once() {
        let event = |n: u8| {
            let mut event = EVENT.to_vec();
            event[12] = n;
            soup(b'S', &event[2..])
        };
        let events = |numbers: std::ops::Range<u8>| numbers.flat_map(event).collect::<Vec<_>>();
        // The second login repeats messages 1 to 3; the third begins behind a gap: 6 is missing.
        let bytes = [
            &login("ONE", 1)[..],
            &events(1..4),
            &login("ONE", 1),
            &events(1..6),
            &login("ONE", 7),
            &events(7..9),
            &soup(b'Z', b""),
        ]
        .concat();
        let (messages, stats) = read(&bytes);
        let numbers: Vec<_> = messages.iter().map(|message| message[10]).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 7, 8]);
        assert_eq!((stats.messages, stats.repeated), (7, 3));
        assert_eq!(stats.account.of(Reason::Repeated).frames, 3);
        let (_, file) = drain(&bytes);
        assert_eq!((file.session(), file.sequence()), (0, 8));
        assert_eq!(file.findings().kept().len(), 1);
    }

    #[test]
    fn session_behind_an_unused_login_is_another() {
        let event = soup(b'S', &EVENT[2..]);
        let bytes = [
            &login("ONE", 1)[..],
            &event,
            &login("ONE", 1),
            &login("TWO", 1),
            &event,
        ]
        .concat();
        let (messages, file) = drain(&bytes);
        assert_eq!((messages.len(), file.session(), file.sequence()), (2, 1, 1));
        assert_eq!(file.stats().repeated, 0);
    }

    #[test]
    fn login_of_an_absurd_sequence_is_skipped() {
        let event = soup(b'S', &EVENT[2..]);
        for next in [u64::MAX, SourcePosition::SEQUENCE_MAX] {
            let login = login("ONE", next);
            let bytes = [&login[..], &event, &event].concat();
            read(&bytes);
            let (messages, file) = drain(&bytes);
            assert_eq!((messages.len(), file.sequence()), (2, 3));
            let to = login.len() as u64;
            let skipped = CaptureFinding::Skipped { from: 0, to };
            assert_eq!(file.findings().kept(), [skipped]);
        }
    }

    /// Gives one byte at a time.
    struct OneByOne(Cursor<Vec<u8>>);

    impl Read for OneByOne {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }

    #[test]
    fn single_byte_reads_yield_same_messages() {
        let event = soup(b'S', &EVENT[2..]);
        for bytes in [
            [&login("ONE", 7)[..], &event, &event].concat(),
            [EVENT, &[0; 100], b"junk"].concat(),
            [EVENT, &[0; 99], EVENT, EVENT].concat(),
        ] {
            let (whole, file) = drain(&bytes);
            let reader = OneByOne(Cursor::new(bytes.clone()));
            let mut pieces = BinaryFile::from_reader("test", reader).unwrap();
            let mut messages = Vec::new();
            while let Some(message) = pieces.next().unwrap() {
                messages.push(message.to_vec());
            }
            assert_eq!(messages, whole);
            assert_eq!(pieces.stats(), file.stats(), "{bytes:02x?}");
            assert_eq!(pieces.sequence(), file.sequence());
        }
    }

    #[test]
    fn soup_bin_tcp_gives_its_sequenced_messages() {
        let login = login("SESSION001", 7);
        let event = soup(b'S', &EVENT[2..]);
        let bytes = [
            &login[..],
            &event,
            &soup(b'H', b""),
            &soup(b'+', b"text"),
            &event,
            &soup(b'Z', b""),
        ];
        let (messages, file) = drain(&bytes.concat());
        assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
        assert!(file.is_soup() && file.findings().kept().is_empty());
        assert_eq!((file.session(), file.sequence()), (0, 8));
        let (messages, file) = drain(&bytes[1..].concat());
        assert_eq!((messages.len(), file.sequence()), (2, 2), "without a login");
    }

    #[test]
    fn gzip_is_seen_by_content_and_may_be_cut_too() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        for _ in 0..100 {
            gzip.write_all(EVENT).unwrap();
        }
        let mut bytes = gzip.finish().unwrap();
        assert_eq!(drain(&bytes).0.len(), 100);
        let padded = [&bytes[..], &[0; 99]].concat();
        let (messages, file) = drain(&padded);
        assert_eq!(messages.len(), 100);
        assert_eq!(file.stats().account.of(Reason::Padding).bytes, 99);
        let trailing = [&bytes[..], b"trailing"].concat();
        let (_, file) = drain(&trailing);
        assert_eq!(
            file.findings().kept(),
            [CaptureFinding::Trailing { bytes: 8 }]
        );
        bytes.truncate(bytes.len() - 4);
        assert_eq!(drain(&bytes).1.stats().truncated, 1);
    }

    #[test]
    fn lengths_that_are_all_zero_come_from_the_types() {
        let zero = [&[0, 0], &EVENT[2..]].concat();
        let (messages, stats) = read(&[&zero[..], &zero[..], &zero[..9]].concat());
        assert_eq!(messages, [&EVENT[2..], &EVENT[2..]]);
        assert_eq!((stats.truncated, stats.end_marks), (1, 0));
        let bytes = [&zero[..], b"\0\0~junk"].concat();
        let (messages, file) = drain(&bytes);
        assert_eq!(messages.len(), 1);
        let skipped = CaptureFinding::Skipped { from: 14, to: 21 };
        assert_eq!(file.findings().kept(), [skipped]);
    }

    #[test]
    fn wrong_first_message_costs_itself_only() {
        let plain = [&EVENT[..EVENT.len() - 1], b"M"].concat();
        let zero = [&[0, 0], &plain[2..]].concat();
        for unit in [plain.clone(), soup(b'S', &plain[2..]), zero] {
            for (at, byte) in [(1, 11), (1, 0), (0, 1), (1, 0xff), (2, b'?')] {
                let mut bytes = unit.repeat(99);
                if std::mem::replace(&mut bytes[at], byte) == byte {
                    continue;
                }
                let (messages, stats) = read(&bytes);
                assert_eq!(messages, vec![&plain[2..]; 98], "{at} {byte} {unit:02x?}");
                let skipped = stats.account.of(Reason::Skipped).bytes;
                assert_eq!(skipped, unit.len() as u64);
                let (from, to) = (0, unit.len() as u64);
                let (_, file) = drain(&bytes);
                assert_eq!(
                    file.findings().kept(),
                    [CaptureFinding::Skipped { from, to }]
                );
            }
        }
    }

    #[test]
    fn file_of_its_end_mark_only_holds_no_messages() {
        let (messages, file) = drain(&[0, 0]);
        assert!(messages.is_empty());
        let [fault] = &file.faults()[..] else {
            panic!("one fault: {:?}", file.faults());
        };
        assert!(fault.starts_with("the file holds no messages"), "{fault}");
    }

    #[test]
    fn captures_and_other_files_are_no_binary_file() {
        for head in [
            [0xd4, 0xc3, 0xb2, 0xa1],
            [0xa1, 0xb2, 0xc3, 0xd4],
            [0x4d, 0x3c, 0xb2, 0xa1],
            [0xa1, 0xb2, 0x3c, 0x4d],
            [0x0a, 0x0d, 0x0d, 0x0a],
        ] {
            let file = BinaryFile::from_reader("test", Cursor::new(head.to_vec()));
            assert!(matches!(file, Err(CaptureError::Damaged { offset: 0, .. })));
        }
        let empty = BinaryFile::from_reader("test", Cursor::new(Vec::new()));
        assert!(matches!(empty, Err(CaptureError::Empty { .. })));
    }

    #[test]
    fn position_at_the_end_is_the_size_of_the_file() {
        let events = EVENT.repeat(100);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&events).unwrap();
        let gzip = gzip.finish().unwrap();
        for bytes in [events, gzip] {
            let (messages, file) = drain(&bytes);
            assert_eq!(messages.len(), 100);
            assert_eq!((file.position(), file.size()), (bytes.len() as u64, None));
        }
    }
}
