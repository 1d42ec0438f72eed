//! Deliberate errors of the harness between core and application, which the checks must detect.

use tickcast_reliability::delivery;
use tickcast_reliability::delivery::Item;

use crate::checks::delivery::Stream;
use crate::truth::Truth;

/// A deliberate error of the harness between core and application, which the checks must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// The nth record is delivered twice.
    Twice(u64),
    /// The nth record is not delivered.
    Drop(u64),
    /// The nth record is delivered with another content.
    Alter(u64),
    /// The nth loss is not delivered.
    HideLoss(u64),
    /// Alarms about two publishers are not delivered.
    HideAlarms,
    /// The nth frame with a NACK is sent twice.
    AskTwice(u64),
    /// The nth repair of a publisher is sent twice.
    GiveTwice(u64),
    /// Other subscribers are served later while one is broken, by this many microseconds.
    DelayOthers(u64),
    /// The nth record of other subscribers is not delivered while one is broken.
    StarveOthers(u64),
}

/// A tamper, and the number of its candidates so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tampering {
    pub(crate) tamper: Option<Tamper>,
    count: u64,
}

impl Tampering {
    pub(crate) const fn new(tamper: Option<Tamper>) -> Self {
        Self { tamper, count: 0 }
    }

    /// Counts a candidate of this tamper. Returns whether it is the one to tamper with.
    pub(crate) fn is_it(&mut self, of: impl FnOnce(Tamper) -> Option<u64>) -> bool {
        let Some(nth) = self.tamper.and_then(of) else {
            return false;
        };
        self.count += 1;
        self.count == nth
    }

    /// Passes an item to the application, tampered with if it is the one.
    pub(crate) fn tell(
        &mut self,
        stream: &mut Stream,
        truth: &Truth,
        item: &Item<'_>,
    ) -> Result<(), String> {
        let is_record = matches!(item, Item::Record(..));
        let is_loss = matches!(item, Item::Event(_, delivery::Event::Lost(_)));
        let it = self.is_it(|tamper| match tamper {
            Tamper::Twice(n) | Tamper::Drop(n) | Tamper::Alter(n) if is_record => Some(n),
            Tamper::HideLoss(n) if is_loss => Some(n),
            _ => None,
        });
        match (self.tamper.filter(|_| it), item) {
            (Some(Tamper::Twice(_)), _) => {
                stream.take(truth, item)?;
                stream.take(truth, item)
            }
            (Some(Tamper::Drop(_) | Tamper::HideLoss(_)), _) => Ok(()),
            (Some(Tamper::Alter(_)), Item::Record(position, record)) => {
                let bytes: &[u8] = record.as_ref();
                let mut altered = bytes.to_vec();
                altered[20] ^= 1;
                stream.record(truth, position, &altered)
            }
            _ => stream.take(truth, item),
        }
    }
}
