//! The core of the fault injector: datagrams in, datagrams out, some of them later.
//!
//! Each datagram draws the same number of random words, whether they are used or not. So the faults of the
//! nth datagram depend only on the seed and n, and for bursts on the datagrams before.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tickcast_reliability::record::{words_as_bytes, words_as_bytes_mut};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence};
use tickcast_reliability::wire::{Datagram, HEADER_LEN, Kind, RELAY_OFFSET, relay_flags};

use super::config::{FaultConfig, FaultConfigError, Scripted};
use super::log::{FaultCounts, FaultKind, FaultLog};

/// Applies a [`FaultConfig`]. `T` is a tag that stays with each datagram, for example its source.
pub struct FaultInjector<T: Copy = ()> {
    config: FaultConfig,
    rng: ChaCha8Rng,
    in_burst: bool,
    /// The first `now` seen.
    started_at: Option<Nanos>,
    log: FaultLog,
    /// Reordered datagrams, by the number of the datagram after which they are released.
    aside: BTreeMap<(u64, u64), Held<T>>,
    /// No reordered datagram is released by time before this.
    aside_due: Nanos,
    /// Delayed datagrams, by release time.
    late: BTreeMap<(Nanos, u64), Held<T>>,
    /// Memory of released datagrams, for reuse.
    spare: Vec<Vec<u64>>,
    damaged: Vec<u64>,
}

struct Held<T> {
    tag: T,
    words: Vec<u64>,
    len: usize,
    /// Latest release time of a reordered datagram.
    until: Nanos,
}

/// The random draws for one datagram; each between 0 and 1.
struct Dice {
    drop: f64,
    burst: f64,
    duplicate: f64,
    reorder: f64,
    reorder_depth: f64,
    delay: f64,
    delay_span: f64,
    corrupt: f64,
    truncate: f64,
    /// Position and kind of damage.
    damage: u64,
}

impl Dice {
    fn throw(rng: &mut ChaCha8Rng) -> Self {
        // The 53 bits that a float holds exactly.
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        Self {
            drop: unit(),
            burst: unit(),
            duplicate: unit(),
            reorder: unit(),
            reorder_depth: unit(),
            delay: unit(),
            delay_span: unit(),
            corrupt: unit(),
            truncate: unit(),
            damage: rng.next_u64(),
        }
    }
}

impl<T: Copy> FaultInjector<T> {
    /// Largest number of held datagrams. Further ones pass at once and are counted.
    pub const HELD_MAX: usize = 1 << 16;

    /// Creates an injector.
    ///
    /// # Errors
    /// [`FaultConfigError`] if the config is invalid.
    pub fn new(config: FaultConfig) -> Result<Self, FaultConfigError> {
        config.check()?;
        Ok(Self {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            config,
            in_burst: false,
            started_at: None,
            log: FaultLog::default(),
            aside: BTreeMap::new(),
            aside_due: Nanos::MAX,
            late: BTreeMap::new(),
            spare: Vec::new(),
            damaged: Vec::new(),
        })
    }

    /// Takes a datagram and emits the datagrams that are released now: this one, possibly twice or damaged,
    /// and those that waited for it. Emitted bytes are aligned to 8 if `bytes` are.
    pub fn apply(&mut self, now: Nanos, tag: T, bytes: &[u8], mut out: impl FnMut(T, &[u8])) {
        self.due(now, &mut out);
        let number = self.log.counts.passed_in;
        self.log.counts.passed_in += 1;
        let dice = Dice::throw(&mut self.rng);
        let identity = Identity::of(bytes);
        if let Some(kind) = self.drops(now, number, &dice, &identity) {
            self.log.note(kind, identity.sequenced);
        } else {
            self.pass(now, number, tag, bytes, &dice, &identity, &mut out);
        }
        while let Some(entry) = self.aside.first_entry()
            && entry.key().0 <= number
        {
            let held = entry.remove();
            self.let_out(held, &mut out);
        }
    }

    /// Emits the datagrams that have waited long enough. Call it when [`next_due`](Self::next_due) has come.
    pub fn due(&mut self, now: Nanos, mut out: impl FnMut(T, &[u8])) {
        self.started_at.get_or_insert(now);
        while let Some(entry) = self.late.first_entry()
            && entry.key().0 <= now
        {
            let held = entry.remove();
            self.let_out(held, &mut out);
        }
        while self.aside_due <= now {
            // The oldest is due first, because the hold is the same for all.
            let oldest = self.aside.iter().min_by_key(|((_, number), _)| *number);
            let oldest = oldest.map(|(key, held)| (*key, held.until));
            self.aside_due = oldest.map_or(Nanos::MAX, |(_, until)| until);
            if let Some((key, until)) = oldest
                && until <= now
                && let Some(held) = self.aside.remove(&key)
            {
                self.let_out(held, &mut out);
            }
        }
    }

    /// Returns when the next held datagram is due by time.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let late = self.late.first_key_value().map(|((due, _), _)| *due);
        let aside = self.aside.values().map(|held| held.until).min();
        late.into_iter().chain(aside).min()
    }

    /// Emits all held datagrams, in order of their release.
    pub fn flush(&mut self, mut out: impl FnMut(T, &[u8])) {
        while let Some((_, held)) = self.aside.pop_first() {
            self.let_out(held, &mut out);
        }
        while let Some((_, held)) = self.late.pop_first() {
            self.let_out(held, &mut out);
        }
    }

    /// Returns the fault log.
    #[must_use]
    pub const fn log(&self) -> &FaultLog {
        &self.log
    }

    /// Returns the counts of each fault.
    #[must_use]
    pub const fn counts(&self) -> &FaultCounts {
        self.log.counts()
    }

    /// Returns the number of held datagrams.
    #[must_use]
    pub fn held(&self) -> usize {
        self.aside.len() + self.late.len()
    }

    fn drops(
        &mut self,
        now: Nanos,
        number: u64,
        dice: &Dice,
        identity: &Identity,
    ) -> Option<FaultKind> {
        // The chain advances regardless of the script, so that a script does not shift it.
        let burst = self.burst_drops(dice.burst);
        let started_at = self.started_at.unwrap_or(now);
        let scripted = self.config.script.iter();
        if let Some(kind) = scripted
            .filter_map(|s| identity.scripted(s, number, now.since(started_at)))
            .next()
        {
            return Some(kind);
        }
        if burst {
            return Some(FaultKind::BurstDrop);
        }
        (dice.drop < self.config.drop).then_some(FaultKind::Drop)
    }

    /// Advances the Gilbert-Elliott chain by one step. A burst ends with probability 1 / mean length, and
    /// begins with the probability that yields the configured loss.
    fn burst_drops(&mut self, dice: f64) -> bool {
        let Some(burst) = self.config.burst else {
            return false;
        };
        let ends = 1.0 / burst.mean_len;
        let begins = ends * burst.loss / (1.0 - burst.loss);
        let before = self.in_burst;
        self.in_burst = if before { dice >= ends } else { dice < begins };
        self.log.counts.bursts += u64::from(self.in_burst && !before);
        self.in_burst
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one datagram's fate"
    )]
    fn pass(
        &mut self,
        now: Nanos,
        number: u64,
        tag: T,
        bytes: &[u8],
        dice: &Dice,
        identity: &Identity,
        out: &mut impl FnMut(T, &[u8]),
    ) {
        let mut damaged = std::mem::take(&mut self.damaged);
        let bytes = self.damage(bytes, dice, identity, &mut damaged);
        if dice.duplicate < self.config.duplicate {
            self.log.note(FaultKind::Duplicate, identity.sequenced);
            self.log.counts.passed_out += 1;
            out(tag, bytes);
        }
        let room = self.held() < Self::HELD_MAX;
        let aside = self.config.reorder.filter(|r| dice.reorder < r.probability);
        let late = self.config.delay.filter(|d| dice.delay < d.probability);
        self.log.counts.held_overflow += u64::from(!room && (aside.is_some() || late.is_some()));
        if let Some(reorder) = aside.filter(|_| room) {
            let depth = 1 + (dice.reorder_depth * f64::from(reorder.depth)) as u64;
            let after = number + depth.min(reorder.depth.into());
            self.log.note(FaultKind::Reorder, identity.sequenced);
            let held = self.hold(tag, bytes, now.after(reorder.hold));
            self.aside_due = self.aside_due.min(held.until);
            self.aside.insert((after, number), held);
        } else if let Some(delay) = late.filter(|_| room) {
            let span = (delay.max.since(delay.min).0 as f64 * dice.delay_span) as u64;
            let due = now.after(delay.min).after(Nanos(span));
            self.log.note(FaultKind::Delay, identity.sequenced);
            let held = self.hold(tag, bytes, due);
            self.late.insert((due, number), held);
        } else {
            self.log.counts.passed_out += 1;
            out(tag, bytes);
        }
        self.damaged = damaged;
    }

    /// Returns the bytes to emit: unchanged, or a damaged copy.
    fn damage<'a>(
        &mut self,
        bytes: &'a [u8],
        dice: &Dice,
        identity: &Identity,
        copy: &'a mut Vec<u64>,
    ) -> &'a [u8] {
        let corrupt = dice.corrupt < self.config.corrupt && !bytes.is_empty();
        let truncate = dice.truncate < self.config.truncate && !bytes.is_empty();
        if !corrupt && !truncate {
            return bytes;
        }
        copy_words(bytes, copy);
        let damaged = &mut words_as_bytes_mut(copy)[..bytes.len()];
        if corrupt {
            self.log.note(FaultKind::Corrupt, identity.sequenced);
            // One to three adjacent bits: CRC32C detects every such error.
            let bits = identity.len * 8;
            let first = (dice.damage % bits as u64) as usize;
            let flips = 1 + (dice.damage >> 60) as usize % 3;
            for bit in (first..bits).take(flips) {
                // The relay byte is outside the CRC, so a flip there would go undetected.
                let byte = bit / 8 + usize::from(bit / 8 == RELAY_OFFSET && bits >= 8 * HEADER_LEN);
                damaged[byte] ^= 1 << (bit % 8);
            }
        }
        if truncate {
            self.log.note(FaultKind::Truncate, identity.sequenced);
            let len = (dice.damage >> 16) as usize % identity.len;
            return &damaged[..len];
        }
        damaged
    }

    fn hold(&mut self, tag: T, bytes: &[u8], until: Nanos) -> Held<T> {
        let mut words = self.spare.pop().unwrap_or_default();
        copy_words(bytes, &mut words);
        Held {
            tag,
            words,
            len: bytes.len(),
            until,
        }
    }

    fn let_out(&mut self, held: Held<T>, out: &mut impl FnMut(T, &[u8])) {
        self.log.counts.passed_out += 1;
        out(held.tag, &words_as_bytes(&held.words)[..held.len]);
        if self.spare.len() < 64 {
            self.spare.push(held.words);
        }
    }
}

/// Copies bytes to the start of aligned memory.
fn copy_words(bytes: &[u8], words: &mut Vec<u64>) {
    words.clear();
    words.resize(bytes.len().div_ceil(8), 0);
    words_as_bytes_mut(words)[..bytes.len()].copy_from_slice(bytes);
}

/// Fields of a datagram that the faults need.
struct Identity {
    /// `None` for heartbeats and for datagrams of other protocols.
    sequenced: Option<(ChannelId, Epoch, Sequence)>,
    is_end: bool,
    retransmitted: bool,
    /// Length without padding, whose loss has no effect.
    len: usize,
}

impl Identity {
    fn of(bytes: &[u8]) -> Self {
        let Ok(datagram) = Datagram::parse(bytes) else {
            return Self {
                sequenced: None,
                is_end: false,
                retransmitted: false,
                len: bytes.len(),
            };
        };
        let header = datagram.header();
        let sequenced = header.kind.is_sequenced();
        Self {
            sequenced: sequenced.then_some((header.channel, header.epoch, header.sequence)),
            is_end: header.kind == Kind::End,
            retransmitted: header.relay & relay_flags::RETRANSMITTED != 0,
            len: datagram.bytes().len(),
        }
    }

    /// Returns the fault that one script entry gives datagram `number`, `elapsed` after the start.
    fn scripted(&self, scripted: &Scripted, number: u64, elapsed: Nanos) -> Option<FaultKind> {
        let on = |wanted: &Option<ChannelId>| {
            let sequenced = self.sequenced.as_ref();
            sequenced.is_some_and(|(channel, ..)| wanted.is_none_or(|wanted| wanted == *channel))
        };
        match scripted {
            Scripted::DropSequences {
                channel,
                ranges,
                retransmitted,
            } => {
                let (.., sequence) = self.sequenced?;
                let meant = on(channel) && (*retransmitted || !self.retransmitted);
                let named = meant && ranges.iter().any(|range| range.contains(sequence));
                named.then_some(FaultKind::ScriptedDrop)
            }
            Scripted::DropBurst { from, count } => {
                let within = number >= *from && number - from < *count;
                within.then_some(FaultKind::ScriptedDrop)
            }
            Scripted::DropEnd { channel } => {
                let meant = self.is_end && on(channel) && !self.retransmitted;
                meant.then_some(FaultKind::ScriptedDrop)
            }
            Scripted::Partition { at, lasts } => {
                let within = elapsed >= *at && elapsed.since(*at) < *lasts;
                within.then_some(FaultKind::PartitionDrop)
            }
        }
    }
}
