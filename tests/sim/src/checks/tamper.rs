//! Deliberate errors of the harness between core and application: the checks must see them.

use tickcast_reliability::delivery;
use tickcast_reliability::delivery::Item;

use crate::checks::delivery::Stream;
use crate::truth::Truth;

/// A deliberate error of the harness between core and application: the checks must see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// The nth record is told twice.
    Twice(u64),
    /// The nth record is not told.
    Drop(u64),
    /// The nth record is told with another content.
    Alter(u64),
    /// The nth loss is not told.
    HideLoss(u64),
    /// No alarm of two publishers is told.
    HideAlarms,
    /// The nth frame with a NACK is sent twice.
    AskTwice(u64),
    /// The nth repair that a publisher gives out leaves twice.
    GiveTwice(u64),
    /// The others are served later where there is a broken one, by this many microseconds.
    DelayOthers(u64),
    /// The nth record of others is not told where there is a broken one.
    StarveOthers(u64),
}

/// A tamper, and how many of what it waits for came by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tampering {
    pub(crate) tamper: Option<Tamper>,
    count: u64,
}

impl Tampering {
    pub(crate) const fn new(tamper: Option<Tamper>) -> Self {
        Self { tamper, count: 0 }
    }

    /// Counts one more of what this tamper waits for, and tells whether it is the one.
    pub(crate) fn is_it(&mut self, of: impl FnOnce(Tamper) -> Option<u64>) -> bool {
        let Some(nth) = self.tamper.and_then(of) else {
            return false;
        };
        self.count += 1;
        self.count == nth
    }

    /// Hands an item to the application, or something else where the run is tampered with.
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
