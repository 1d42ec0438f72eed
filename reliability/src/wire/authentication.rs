//! The authentication of datagrams: a tag that only holders of the channel's key can make
//! (docs/PROTOCOL.md §3.3, docs/decisions/0036).
//!
//! The tag is BLAKE3 under a key, the first 16 bytes. A publisher derives each key from its secret, the
//! channel, the epoch and the key's number; the sequence of a datagram says which key made its tag.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Datagram, HEADER_LEN, Header, RELAY_OFFSET, datagram_flags};
use crate::planted::{Bug, planted};
use crate::types::{ChannelId, Epoch, Sequence};

/// Length of a key in bytes.
pub const KEY_LEN: usize = 32;
/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;
/// Length of a header with a tag in bytes.
pub const TAGGED_HEADER_LEN: usize = HEADER_LEN + TAG_LEN;
/// Maximum number of keys that a WELCOME lists: the one before, the present one, the next one.
pub const KEYS_MAX: usize = 3;

/// A key of the datagrams of a channel. It prints as nothing, so that no log shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LEN]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key that stands where a journal leaves a key out.
    pub const REDACTED: Self = Self([0; KEY_LEN]);

    /// Returns the key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Returns the tag of a datagram: over its header without relay byte and CRC, and over the bytes behind
    /// the tag. The header's fields are those that are sent.
    #[must_use]
    pub fn tag(&self, header: &[u8; HEADER_LEN], behind: &[u8]) -> [u8; TAG_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&header[..RELAY_OFFSET]);
        hasher.update(behind);
        let mut tag = [0; TAG_LEN];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_LEN]);
        tag
    }

    /// Returns whether a datagram carries the tag that this key makes.
    #[must_use]
    pub fn made(&self, datagram: &Datagram<'_>) -> bool {
        let (header, bytes) = (datagram.header(), datagram.bytes());
        let is_tagged = header.flags & datagram_flags::TAGGED != 0
            && usize::from(header.header_len) >= TAGGED_HEADER_LEN;
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return false;
        };
        match rest.split_first_chunk::<TAG_LEN>() {
            // One comparison of 128 bits: its time does not depend on the place of a difference.
            Some((tag, behind)) if is_tagged => {
                u128::from_le_bytes(*tag) == u128::from_le_bytes(self.tag(head, behind))
            }
            _ => false,
        }
    }
}

impl Serialize for Key {
    /// Writes the key as 64 hexadecimal digits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = self.0.iter().map(|byte| format!("{byte:02x}"));
        serializer.serialize_str(&digits.collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom("a key has 64 hexadecimal digits");
        let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
            return Err(wrong());
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        let bytes = pairs
            .iter()
            .map(|[high, low]| Ok((digit(*high)? * 16 + digit(*low)?) as u8));
        let bytes: Vec<u8> = bytes.collect::<Result<_, D::Error>>()?;
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

/// A key and its number: the key of number `n` makes the tags of the sequences from `n` × the datagrams of a
/// key on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedKey {
    /// Its number.
    pub number: u64,
    /// The key.
    pub key: Key,
}

/// The authentication of a channel in a WELCOME.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authentication {
    /// Number of sequences that one key authenticates.
    pub datagrams_per_key: u64,
    /// The keys around the newest sequence, at most [`KEYS_MAX`].
    #[serde(default)]
    pub keys: Vec<NumberedKey>,
}

impl Authentication {
    /// Returns the number of the key for a sequence.
    #[must_use]
    pub const fn number_of(&self, sequence: Sequence) -> u64 {
        match sequence.0.checked_div(self.datagrams_per_key) {
            Some(number) => number,
            None => 0,
        }
    }

    /// Returns the key for a sequence, if it is known.
    #[must_use]
    pub fn key_of(&self, sequence: Sequence) -> Option<&Key> {
        let number = self.number_of(sequence);
        let of = self.keys.iter().find(|of| of.number == number)?;
        Some(&of.key)
    }

    /// Returns whether a receiver can use this: it has keys, and not too many, up to the newest sequence.
    #[must_use]
    pub fn is_usable(&self, newest: Sequence) -> bool {
        self.datagrams_per_key > 0 && self.keys.len() <= KEYS_MAX && self.key_of(newest).is_some()
    }

    /// Returns whether one of the known keys made the tag of a datagram.
    #[must_use]
    pub fn admits(&self, datagram: &Datagram<'_>) -> bool {
        planted(Bug::TagIgnored)
            || (self.key_of(datagram.header().sequence)).is_some_and(|key| key.made(datagram))
    }

    /// Adds a key that was announced. The keys that are more than two older are dropped.
    pub fn add(&mut self, announced: &NumberedKey) {
        let oldest = announced.number.saturating_sub(KEYS_MAX as u64 - 1);
        self.keys
            .retain(|of| of.number >= oldest && of.number != announced.number);
        if self.keys.len() < KEYS_MAX {
            self.keys.push(announced.clone());
        }
    }

    /// Replaces the keys, which are not for everybody to read.
    pub fn redact(&mut self) {
        for of in &mut self.keys {
            of.key = Key::REDACTED;
        }
    }
}

/// Serialisation without the keys.
pub(crate) mod redacted {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Authentication;

    pub(crate) fn serialize<S: Serializer>(
        of: &Option<Authentication>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut of = of.clone();
        of.iter_mut().for_each(Authentication::redact);
        of.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Authentication>, D::Error> {
        Option::deserialize(deserializer)
    }
}

/// The keys of one channel in one epoch, as its publisher derives them.
#[derive(Clone, Debug)]
pub struct ChannelKeys {
    secret: Key,
    datagrams_per_key: u64,
    channel: ChannelId,
    epoch: Epoch,
}

impl ChannelKeys {
    /// Returns the keys that follow from `secret`, which comes from the system's randomness, anew at each
    /// start. Each key is for this number of sequences, at least 1.
    #[must_use]
    pub fn new(secret: Key, datagrams_per_key: u64, channel: ChannelId, epoch: Epoch) -> Self {
        Self {
            secret,
            datagrams_per_key: datagrams_per_key.max(1),
            channel,
            epoch,
        }
    }

    /// Returns the number of the key for a sequence.
    #[must_use]
    pub const fn number_of(&self, sequence: Sequence) -> u64 {
        sequence.0 / self.datagrams_per_key
    }

    /// Returns the key of this number.
    #[must_use]
    pub fn key(&self, number: u64) -> NumberedKey {
        let mut hasher = blake3::Hasher::new_keyed(self.secret.bytes());
        hasher.update(b"tickcast datagram key");
        hasher.update(&self.channel.0.to_le_bytes());
        hasher.update(&self.epoch.0.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        let key = Key(*hasher.finalize().as_bytes());
        NumberedKey { number, key }
    }

    /// Returns what a joiner needs: the key of the newest sequence, the one before and the next one.
    #[must_use]
    pub fn offer(&self, newest: Sequence) -> Authentication {
        let number = self.number_of(newest);
        let numbers = number.saturating_sub(1)..=number.saturating_add(1);
        Authentication {
            datagrams_per_key: self.datagrams_per_key,
            keys: numbers.map(|number| self.key(number)).collect(),
        }
    }
}

/// The key in use at the seal.
#[derive(Clone, Debug)]
pub struct Tagger {
    keys: ChannelKeys,
    current: NumberedKey,
}

impl Tagger {
    /// Returns the tagger for these keys.
    #[must_use]
    pub fn new(keys: ChannelKeys) -> Self {
        let current = keys.key(0);
        Self { keys, current }
    }

    /// Returns the keys.
    #[must_use]
    pub const fn keys(&self) -> &ChannelKeys {
        &self.keys
    }

    /// Returns the tag of the datagram with this header and these bytes behind the tag.
    pub fn tag(&mut self, header: &Header, behind: &[u8]) -> [u8; TAG_LEN] {
        let number = self.keys.number_of(header.sequence);
        if number != self.current.number {
            self.current = self.keys.key(number);
        }
        self.current.key.tag(&header.to_bytes(0), behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Nanos, RecordNumber, SourceId, SourcePosition};
    use crate::wire::{CrcVerdict, Kind, RELAY_OFFSET, crc_of};

    fn keys() -> ChannelKeys {
        ChannelKeys::new(Key::new([7; KEY_LEN]), 10, ChannelId(3), Epoch(5))
    }

    /// Returns a datagram of this sequence with the tag of the given key.
    fn tagged(sequence: u64, key: &Key, payload: &[u8]) -> Vec<u8> {
        flagged(datagram_flags::TAGGED, sequence, key, payload)
    }

    /// Returns such a datagram with these flags.
    fn flagged(flags: u16, sequence: u64, key: &Key, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::Event,
            channel: ChannelId(3),
            count: 0,
            epoch: Epoch(5),
            sequence: Sequence(sequence),
            first_record: RecordNumber(1),
            source_position: SourcePosition(2),
            sent_at: Nanos(3),
            retained: 1,
            source: SourceId(1),
            payload_len: payload.len() as u16,
            flags,
            header_len: TAGGED_HEADER_LEN as u16,
            relay: 0,
        };
        let mut rest = key.tag(&header.to_bytes(0), payload).to_vec();
        rest.extend(payload);
        let mut bytes = header.to_bytes(crc_of(&header.to_bytes(0), &rest)).to_vec();
        bytes.extend(rest);
        bytes
    }

    /// Returns the datagram with the CRC that its bytes should have.
    fn with_right_crc(mut bytes: Vec<u8>) -> Vec<u8> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
        let crc = crc_of(head, rest).to_le_bytes();
        bytes[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&crc);
        bytes
    }

    #[test]
    fn tag_covers_every_byte_but_relay_and_crc() {
        let key = keys().key(0).key;
        let good = tagged(4, &key, &[9; 24]);
        assert!(key.made(&Datagram::parse(&good).unwrap()));
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            let changed = with_right_crc(changed);
            let Ok(datagram) = Datagram::parse(&changed) else {
                continue;
            };
            assert_eq!(datagram.verdict(), CrcVerdict::Good);
            let is_outside = at == RELAY_OFFSET || (60..64).contains(&at);
            assert_eq!(key.made(&datagram), is_outside, "byte {at}");
        }
    }

    #[test]
    fn datagram_without_tag_or_flag_is_not_admitted() {
        let mut offer = keys().offer(Sequence(4));
        let good = tagged(4, &keys().key(0).key, &[9; 24]);
        assert!(offer.admits(&Datagram::parse(&good).unwrap()));
        for (at, value) in [(56, 0), (58, 8), (58, 9)] {
            let mut other = good.clone();
            other[at] = value;
            let other = with_right_crc(other);
            assert!(!offer.admits(&Datagram::parse(&other).unwrap()), "{at}");
        }
        let unflagged = flagged(0, 4, &keys().key(0).key, &[9; 24]);
        assert!(!offer.admits(&Datagram::parse(&unflagged).unwrap()));
        offer.keys.clear();
        assert!(!offer.admits(&Datagram::parse(&good).unwrap()));
    }

    #[test]
    fn key_differs_by_number_channel_and_epoch() {
        let all = [
            keys().key(0),
            keys().key(1),
            ChannelKeys::new(Key::new([7; KEY_LEN]), 10, ChannelId(4), Epoch(5)).key(0),
            ChannelKeys::new(Key::new([7; KEY_LEN]), 10, ChannelId(3), Epoch(6)).key(0),
            ChannelKeys::new(Key::new([8; KEY_LEN]), 10, ChannelId(3), Epoch(5)).key(0),
        ];
        for (nth, of) in all.iter().enumerate() {
            assert!(all[..nth].iter().all(|other| other.key != of.key));
        }
        assert_eq!(format!("{:?}", all[0].key), "Key", "it prints as nothing");
    }

    #[test]
    fn keys_follow_sequences_across_roll_over() {
        let mut known = keys().offer(Sequence(5));
        assert_eq!(numbers(&known), [0, 1]);
        let mut tagger = Tagger::new(keys());
        for sequence in 1..=95 {
            let bytes = tagged(sequence, &keys().key(sequence / 10).key, &[1; 8]);
            let datagram = Datagram::parse(&bytes).unwrap();
            let tag = tagger.tag(datagram.header(), datagram.payload());
            assert_eq!(bytes[HEADER_LEN..TAGGED_HEADER_LEN], tag);
            assert!(known.admits(&datagram), "{sequence}");
            if sequence % 10 == 0 {
                known.add(&keys().key(sequence / 10 + 1));
                assert!(known.keys.len() <= KEYS_MAX);
            }
        }
        assert_eq!(numbers(&known), [8, 9, 10]);
        let late = tagged(89, &keys().key(8).key, &[1; 8]);
        assert!(
            known.admits(&Datagram::parse(&late).unwrap()),
            "the key before"
        );
        let old = tagged(79, &keys().key(7).key, &[1; 8]);
        assert!(!known.admits(&Datagram::parse(&old).unwrap()));
        let wrong = tagged(95, &keys().key(8).key, &[1; 8]);
        assert!(
            !known.admits(&Datagram::parse(&wrong).unwrap()),
            "another number"
        );
    }

    fn numbers(of: &Authentication) -> Vec<u64> {
        of.keys.iter().map(|of| of.number).collect()
    }

    #[test]
    fn authentication_without_key_of_newest_is_unusable() {
        let offer = keys().offer(Sequence(30));
        assert!(offer.is_usable(Sequence(30)) && offer.is_usable(Sequence(49)));
        assert!(!offer.is_usable(Sequence(50)));
        let many = (0..4).map(|number| keys().key(number)).collect();
        let unusable = [
            Authentication {
                datagrams_per_key: 0,
                keys: offer.keys.clone(),
            },
            Authentication {
                datagrams_per_key: 10,
                keys: Vec::new(),
            },
            Authentication {
                datagrams_per_key: 10,
                keys: many,
            },
        ];
        for it in unusable {
            assert!(!it.is_usable(Sequence(30)), "{it:?}");
        }
    }

    #[test]
    fn key_in_json_is_64_hexadecimal_digits() {
        let of = keys().key(1);
        let text = serde_json::to_string(&of).unwrap();
        assert_eq!(serde_json::from_str::<NumberedKey>(&text).unwrap(), of);
        for wrong in [
            "",
            "0",
            &"0".repeat(63),
            &"0".repeat(66),
            &"x".repeat(64),
            &"é".repeat(32),
        ] {
            let text = format!(r#"{{"number": 1, "key": "{wrong}"}}"#);
            assert!(
                serde_json::from_str::<NumberedKey>(&text).is_err(),
                "{wrong}"
            );
        }
    }
}
