//! Handles. A pointer from C is looked up among the handles given out, and never followed. A freed
//! handle, one of another kind, or an invalid pointer is therefore a harmless error.
//!
//! The value of a handle is behind a lock that calls try but do not wait for. A second thread, or a
//! callback of the call that holds the lock, is rejected. Only monitors and directories, which all threads
//! may use, are waited for, because their calls are short and run no callback. They have separate
//! places, and the kind is checked before the lock, so that no call waits for another kind of handle.
//! Places of freed handles are reused, the longest unused first, so that an old pointer is not
//! soon mistaken for a new one.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::error::Error;

/// The value behind a handle; `None` after it was freed.
type Value = Option<Box<dyn Any + Send>>;

/// The kind of a place's value, readable without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Nothing,
    Builder,
    Subscriber,
    Running,
    Reader,
    Monitor,
    Directory,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Builder,
        Self::Subscriber,
        Self::Running,
        Self::Reader,
        Self::Monitor,
        Self::Directory,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "handle that was freed",
            Self::Builder => "builder",
            Self::Subscriber => "subscriber",
            Self::Running => "running subscriber",
            Self::Reader => "reader",
            Self::Monitor => "monitor",
            Self::Directory => "directory",
        }
    }

    /// Returns whether all threads may use a handle of this kind at once.
    const fn is_for_all(self) -> bool {
        matches!(self, Self::Monitor | Self::Directory)
    }
}

/// A kind of handle, as C sees it.
pub(crate) trait Handle: Sized {
    /// The type of the value behind the handle.
    type Behind: Any + Send;
    const KIND: Kind;
    const NAME: &'static str = Self::KIND.name();
}

/// The target of a handle. Its memory is never freed, so that a lookup is always valid.
struct Place {
    /// The [`Kind`] of the value. It changes only under the lock, and can be read without it.
    kind: AtomicU8,
    value: Mutex<Value>,
    /// The thread that holds the lock, by [`this_thread`]. It serves only for a better error text.
    holder: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        Self {
            kind: AtomicU8::new(Kind::Nothing as u8),
            value: Mutex::new(None),
            holder: AtomicUsize::new(0),
        }
    }

    /// Rejects a value of another kind, without waiting for a call that uses it.
    fn check<H: Handle>(&self) -> Result<(), Error> {
        let kind = self.kind.load(Acquire);
        if kind == H::KIND as u8 {
            return Ok(());
        }
        let expected = H::NAME;
        let found = Kind::ALL.into_iter().find(|it| *it as u8 == kind);
        Err(match found.unwrap_or(Kind::Nothing) {
            Kind::Nothing => Error::Freed { expected },
            other => Error::OtherKind {
                found: other.name(),
                expected,
            },
        })
    }

    fn hold<H: Handle>(&self) -> Result<MutexGuard<'_, Value>, Error> {
        self.check::<H>()?;
        let expected = H::NAME;
        let guard = self.value.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock if self.holder.load(Relaxed) == this_thread() => {
                Error::WithinItself { expected }
            }
            TryLockError::WouldBlock => Error::InUse { expected },
            TryLockError::Poisoned(_) => Error::Panicked {
                message: format!("this {expected} has failed before"),
            },
        })?;
        self.holder.store(this_thread(), Relaxed);
        Ok(guard)
    }
}

/// Returns a number that differs between live threads.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.try_with(|here| std::ptr::from_ref(here).addr())
        .unwrap_or(0)
}

const FIRST_LEN: usize = 64;
/// The number of chunks. Each is twice as long as the one before.
const CHUNKS: usize = 14;

static FIRST: [Place; FIRST_LEN] = [const { Place::new() }; FIRST_LEN];
static MORE: [OnceLock<Box<[Place]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// Freed places are reused only while more than this many are free.
const RESTING: usize = 256;

struct Unused {
    fresh: usize,
    /// Freed places: those for one thread at a time, and those for all threads. A place never changes sides.
    freed: [VecDeque<&'static Place>; 2],
}

static UNUSED: Mutex<Unused> = Mutex::new(Unused {
    fresh: 0,
    freed: [const { VecDeque::new() }; 2],
});

/// Locks the unused places. A panic inside leaves both fields consistent.
fn unused() -> MutexGuard<'static, Unused> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn chunks() -> impl Iterator<Item = &'static [Place]> {
    let more = MORE.iter().map_while(|chunk| chunk.get().map(|it| &**it));
    std::iter::once(&FIRST[..]).chain(more)
}

impl Unused {
    fn take(&mut self, kind: Kind) -> Result<&'static Place, Error> {
        let freed = &mut self.freed[usize::from(kind.is_for_all())];
        if freed.len() > RESTING
            && let Some(place) = freed.pop_front()
        {
            return Ok(place);
        }
        let (mut at, mut len) = (self.fresh, FIRST_LEN);
        let mut chunk = &FIRST[..];
        for next in &MORE {
            if at < len {
                break;
            }
            (at, len) = (at - len, len * 2);
            chunk = next.get_or_init(|| (0..len).map(|_| Place::new()).collect());
        }
        let place = chunk.get(at).or_else(|| freed.pop_front());
        self.fresh += usize::from(at < len);
        place.ok_or(Error::TooMany { count: self.fresh })
    }
}

/// Returns a new handle of a value.
pub(crate) fn give<H: Handle>(behind: H::Behind) -> Result<*mut H, Error> {
    let place = unused().take(H::KIND)?;
    let mut value = place.value.lock().unwrap_or_else(PoisonError::into_inner);
    *value = Some(Box::new(behind));
    place.kind.store(H::KIND as u8, Release);
    Ok(std::ptr::from_ref(place).cast::<H>().cast_mut())
}

fn find<H: Handle>(handle: *const H) -> Result<&'static Place, Error> {
    if handle.is_null() {
        return Err(Error::Null { what: H::NAME });
    }
    let found = chunks().find_map(|chunk| {
        let offset = handle.addr().wrapping_sub(chunk.as_ptr().addr());
        let is_place = offset.is_multiple_of(size_of::<Place>());
        chunk.get(offset / size_of::<Place>()).filter(|_| is_place)
    });
    found.ok_or(Error::NoHandle { expected: H::NAME })
}

/// Returns the value behind a handle of this kind. It may have been freed since its kind was read.
fn behind<H: Handle>(value: &mut Value) -> Result<&mut H::Behind, Error> {
    let behind = value.as_mut().and_then(|behind| behind.downcast_mut());
    behind.ok_or(Error::Freed { expected: H::NAME })
}

/// Uses the value behind a handle exclusively.
#[inline]
pub(crate) fn with<H: Handle, R>(
    handle: *const H,
    call: impl FnOnce(&mut H::Behind) -> Result<R, Error>,
) -> Result<R, Error> {
    call(behind::<H>(&mut *find(handle)?.hold::<H>()?)?)
}

/// Uses the value behind a handle that all threads may use. `call` must be short and run no callback.
pub(crate) fn shared<H: Handle, R>(
    handle: *const H,
    call: impl FnOnce(&H::Behind) -> R,
) -> Result<R, Error> {
    const { assert!(H::KIND.is_for_all(), "others may be held for long") };
    let place = find(handle)?;
    place.check::<H>()?;
    let mut value = place.value.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(call(behind::<H>(&mut value)?))
}

/// Ends a handle and returns its value.
pub(crate) fn take<H: Handle>(handle: *const H) -> Result<H::Behind, Error> {
    let place = find(handle)?;
    let mut value = place.hold::<H>()?;
    behind::<H>(&mut value)?;
    place.kind.store(Kind::Nothing as u8, Release);
    let taken = value.take();
    drop(value);
    unused().freed[usize::from(H::KIND.is_for_all())].push_back(place);
    let taken = taken.and_then(|behind| behind.downcast().ok());
    taken
        .map(|behind| *behind)
        .ok_or(Error::Freed { expected: H::NAME })
}

/// Frees a handle and its value. Null is allowed, and so is a handle that has panicked.
pub(crate) fn free<H: Handle>(handle: *const H) -> Result<(), Error> {
    if handle.is_null() {
        return Ok(());
    }
    let place = find(handle)?;
    match place.hold::<H>() {
        Err(Error::Panicked { .. }) => place.value.clear_poison(),
        other => drop(other?),
    }
    take(handle).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test handles: one for one thread at a time, and one for all threads.
    struct Builder;
    struct Directory;
    struct Reader;

    impl Handle for Builder {
        type Behind = u32;
        const KIND: Kind = Kind::Builder;
    }

    impl Handle for Directory {
        type Behind = u32;
        const KIND: Kind = Kind::Directory;
    }

    impl Handle for Reader {
        type Behind = u32;
        const KIND: Kind = Kind::Reader;
    }

    /// Locks out other tests, because the table is shared by the process and its next place must be known.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory() -> *mut Directory {
        give::<Directory>(7).unwrap()
    }

    #[test]
    fn foreign_pointer_is_refused_as_handle() {
        let _alone = alone();
        let handle = directory();
        assert!(shared(handle, |_| ()).is_ok());
        let beside = handle.cast::<u8>().wrapping_add(8).cast::<Directory>();
        let far = std::ptr::without_provenance::<Directory>(usize::MAX);
        let local = 0_u64;
        let foreign = std::ptr::from_ref(&local).cast::<Directory>();
        for pointer in [beside.cast_const(), far, foreign] {
            assert!(matches!(
                with(pointer, |_| Ok(())),
                Err(Error::NoHandle { .. })
            ));
            assert!(matches!(free(pointer), Err(Error::NoHandle { .. })));
        }
        let other = handle.cast::<Builder>();
        assert!(matches!(
            take(other),
            Err(Error::OtherKind {
                found: "directory",
                ..
            })
        ));
        assert!(free(handle).is_ok());
        assert!(matches!(free(handle), Err(Error::Freed { .. })));
        assert!(free(std::ptr::null::<Directory>()).is_ok());
    }

    #[test]
    fn handles_beyond_first_chunk_rest_before_reuse() {
        let _alone = alone();
        let many: Vec<_> = (0..FIRST_LEN * 5).map(|_| directory()).collect();
        for handle in &many {
            assert!(shared(*handle, |_| ()).is_ok());
        }
        let old = many[0];
        for handle in &many {
            free(*handle).unwrap();
        }
        let next = directory();
        assert!(next == old || matches!(shared(old, |_| ()), Err(Error::Freed { .. })));
        free(next).unwrap();
        for _ in 0..RESTING / 2 {
            let handle = directory();
            assert_ne!(handle, next);
            free(handle).unwrap();
        }
    }

    #[test]
    fn busy_handle_of_other_kind_is_refused_at_once() {
        let _alone = alone();
        let handle = give::<Builder>(7).unwrap();
        let used = with(handle, |_| {
            let other = shared(handle.cast::<Directory>(), |_| ());
            assert!(matches!(
                other,
                Err(Error::OtherKind {
                    found: "builder",
                    expected: "directory"
                })
            ));
            let reader = with(handle.cast::<Reader>(), |_| Ok(()));
            assert!(matches!(reader, Err(Error::OtherKind { .. })));
            Ok(())
        });
        assert!(used.is_ok());
        free(handle).unwrap();
    }

    #[test]
    fn shared_handle_slot_is_not_reused_as_exclusive() {
        let _alone = alone();
        // Create more than `RESTING`, so that places are reused.
        let many: Vec<_> = (0..RESTING * 2).map(|_| directory()).collect();
        for handle in &many {
            free(*handle).unwrap();
        }
        let taken: Vec<_> = (0..RESTING * 2).map(|_| directory()).collect();
        assert!(taken.iter().any(|it| many.contains(it)), "used again");
        for handle in &taken {
            free(*handle).unwrap();
        }
        for _ in 0..RESTING * 2 {
            let builder = give::<Builder>(7).unwrap();
            assert!(!many.contains(&builder.cast()) && !taken.contains(&builder.cast()));
            free(builder).unwrap();
        }
    }

    #[test]
    fn busy_handle_is_refused_poisoned_can_be_freed() {
        let _alone = alone();
        let handle = directory();
        let address = handle.expose_provenance();
        let used = with(handle, |_| {
            assert!(matches!(free(handle), Err(Error::WithinItself { .. })));
            let elsewhere = std::thread::spawn(move || {
                let same = std::ptr::with_exposed_provenance::<Directory>(address);
                matches!(with(same, |_| Ok(())), Err(Error::InUse { .. }))
            });
            Ok(elsewhere.join().unwrap())
        });
        assert!(used.unwrap());
        let failed: i32 = crate::error::number(|| with(handle, |_| panic!("within")));
        assert_eq!(failed, -9);
        assert!(matches!(
            with(handle, |_| Ok(())),
            Err(Error::Panicked { .. })
        ));
        assert!(free(handle).is_ok());
        assert!(matches!(free(handle), Err(Error::Freed { .. })));
    }
}
