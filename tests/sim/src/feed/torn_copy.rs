//! Torn copies: the writer continues during a copy, so that the reader finds the second half of a
//! slot overwritten or half written.
//!
//! The memory of simulated rings calls [`interrupt`] in the middle of every copy. The call has no
//! effect unless [`during`] has armed a writer.

use std::cell::RefCell;
use std::rc::Rc;

/// A writer that continues in the middle of a copy.
pub(crate) trait Writer {
    /// Continues writing, at the first call only.
    fn interrupt(&mut self);
}

thread_local! {
    static ARMED: RefCell<Option<Rc<RefCell<dyn Writer>>>> = const { RefCell::new(None) };
}

/// Runs `copies` with the writer armed. Returns the writer in its final state, and the result.
pub(crate) fn during<W: Writer + 'static, T>(writer: W, copies: impl FnOnce() -> T) -> (W, T) {
    let armed = Rc::new(RefCell::new(writer));
    ARMED.set(Some(armed.clone()));
    let result = copies();
    ARMED.take();
    // invariant: the other reference was taken out above.
    let writer = Rc::into_inner(armed).unwrap_or_else(|| unreachable!("nothing else holds it"));
    (writer.into_inner(), result)
}

/// Called by memory in the middle of a copy.
pub(crate) fn interrupt() {
    ARMED.with_borrow(|armed| {
        if let Some(writer) = armed {
            writer.borrow_mut().interrupt();
        }
    });
}
