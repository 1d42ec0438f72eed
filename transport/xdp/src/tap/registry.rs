//! The taps of this process, one per interface. Lines of one interface share its tap.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Tap;
use crate::error::XdpError;

/// Identity of an interface: the number of its network namespace, and its own.
pub(super) type Key = (u64, u32);

/// Held while a tap is opened or closed, so that nobody meets an interface that a closing tap still occupies.
static TAPS: Mutex<Vec<(Key, Weak<Tap>)>> = Mutex::new(Vec::new());

fn taps() -> MutexGuard<'static, Vec<(Key, Weak<Tap>)>> {
    TAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tap that others may share. The last one to be dropped closes it.
pub(crate) struct SharedTap(Option<Arc<Tap>>);

impl SharedTap {
    /// Returns the interface's tap, or opens it.
    pub(super) fn find(
        key: Key,
        open: impl FnOnce() -> Result<Tap, XdpError>,
    ) -> Result<Self, XdpError> {
        let mut taps = taps();
        taps.retain(|(_, tap)| tap.strong_count() > 0);
        let found = taps.iter().find(|(of, _)| *of == key);
        if let Some(tap) = found.and_then(|(_, tap)| tap.upgrade()) {
            return Ok(Self(Some(tap)));
        }
        let tap = Arc::new(open()?);
        taps.push((key, Arc::downgrade(&tap)));
        Ok(Self(Some(tap)))
    }
}

impl Deref for SharedTap {
    type Target = Tap;

    #[inline]
    fn deref(&self) -> &Tap {
        // invariant: only `drop` takes the tap out.
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl fmt::Debug for SharedTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedTap").field(&self.name()).finish()
    }
}

impl Drop for SharedTap {
    fn drop(&mut self) {
        let taps = taps();
        drop(self.0.take());
        drop(taps);
    }
}
