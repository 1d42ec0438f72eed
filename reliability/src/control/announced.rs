//! KEY: a key of an authenticated channel, sent before its sequences come (docs/PROTOCOL.md §6.9).

use super::{ControlError, Fields, bad};
use crate::types::Epoch;
use crate::wire::authentication::{KEY_LEN, Key, NumberedKey};

/// KEY: the next key of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The epoch whose datagrams it authenticates.
    pub epoch: Epoch,
    /// The key and its number.
    pub of: NumberedKey,
}

impl Announced {
    const LEN: usize = 16 + KEY_LEN;

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.epoch.0.to_le_bytes());
        out.extend(self.of.number.to_le_bytes());
        out.extend(self.of.key.bytes());
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, ControlError> {
        let mut fields = Fields::new("KEY", body, Self::LEN)?;
        let (epoch, number) = (Epoch(fields.u64()), fields.u64());
        let key = body[16..].first_chunk::<KEY_LEN>();
        let key = Key::new(*key.ok_or_else(|| bad("KEY", "it has no key"))?);
        let of = NumberedKey { number, key };
        Ok(Self { epoch, of })
    }
}
