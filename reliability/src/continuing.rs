//! Going on with an epoch that continues the one followed, and keeping a mirror of what is followed
//! (docs/PROTOCOL.md §5.7).

use crate::mirror::Mirror;
use crate::receiver::Receiver;

impl Receiver {
    /// What keeps a copy of all that is delivered, if anything does.
    #[must_use]
    pub fn mirror(&self) -> Option<&Mirror> {
        self.order.mirror()
    }

    /// Lets this keep a copy of all that is delivered from now on; gives what did before.
    pub fn set_mirror(&mut self, mirror: Option<Mirror>) -> Option<Mirror> {
        self.order.set_mirror(mirror.map(Box::new)).map(|it| *it)
    }
}
