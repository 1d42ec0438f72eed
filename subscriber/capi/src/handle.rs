//! Handles: a pointer from C is looked up among those that were given out, and never followed. So
//! one that was freed, is of another kind, or was never a handle is an error and no harm.
//!
//! What stands behind a handle is behind a lock that is tried and never waited for: a second
//! thread, or a callback of the call that holds it, is refused. The places of freed handles are
//! used again, the longest unused first, so that an old pointer is not soon taken for a new one.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use tickcast_subscriber as rust;

use crate::builder::Description;
use crate::directory::Symbols;
use crate::error::Error;

/// What a handle stands for.
pub(crate) enum Value {
    Nothing,
    Builder(Box<Description>),
    Subscriber(Box<rust::Subscriber>),
    Running(rust::Running),
    Reader(Box<rust::Reader>),
    Monitor(rust::Monitor),
    Directory(Box<Symbols>),
}

impl Value {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Nothing => "handle that was freed",
            Self::Builder(_) => "builder",
            Self::Subscriber(_) => "subscriber",
            Self::Running(_) => "running subscriber",
            Self::Reader(_) => "reader",
            Self::Monitor(_) => "monitor",
            Self::Directory(_) => "directory",
        }
    }
}

/// A kind of handle, as C sees it.
pub(crate) trait Handle: Sized {
    /// What stands behind it.
    type Behind;
    const NAME: &'static str;
    fn wrap(behind: Self::Behind) -> Value;
    fn of(value: &mut Value) -> Option<&mut Self::Behind>;
    fn unwrap(value: Value) -> Option<Self::Behind>;
}

macro_rules! handle {
    ($handle:ty, $variant:ident, $behind:ty, $name:literal) => {
        impl Handle for $handle {
            type Behind = $behind;
            const NAME: &'static str = $name;
            fn wrap(behind: $behind) -> Value {
                Value::$variant(behind)
            }
            fn of(value: &mut Value) -> Option<&mut $behind> {
                match value {
                    Value::$variant(behind) => Some(behind),
                    _ => None,
                }
            }
            fn unwrap(value: Value) -> Option<$behind> {
                match value {
                    Value::$variant(behind) => Some(behind),
                    _ => None,
                }
            }
        }
    };
}

handle!(
    crate::builder::Builder,
    Builder,
    Box<Description>,
    "builder"
);
handle!(
    crate::subscriber::Subscriber,
    Subscriber,
    Box<rust::Subscriber>,
    "subscriber"
);
handle!(
    crate::reader::Running,
    Running,
    rust::Running,
    "running subscriber"
);
handle!(crate::reader::Reader, Reader, Box<rust::Reader>, "reader");
handle!(crate::monitor::Monitor, Monitor, rust::Monitor, "monitor");
handle!(
    crate::directory::Directory,
    Directory,
    Box<Symbols>,
    "directory"
);

/// Where a handle points to. It is never given back, so that it can always be asked.
struct Place {
    value: Mutex<Value>,
    /// Who holds the lock, by [`this_thread`]; only for a better text.
    holder: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        Self {
            value: Mutex::new(Value::Nothing),
            holder: AtomicUsize::new(0),
        }
    }

    fn hold<H: Handle>(&self) -> Result<MutexGuard<'_, Value>, Error> {
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

/// Differs between threads that are alive.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.try_with(|here| std::ptr::from_ref(here).addr())
        .unwrap_or(0)
}

const FIRST_LEN: usize = 64;
/// Each chunk is twice as long as the one before.
const CHUNKS: usize = 14;

static FIRST: [Place; FIRST_LEN] = [const { Place::new() }; FIRST_LEN];
static MORE: [OnceLock<Box<[Place]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// Freed places are not used again before there are so many of them.
const RESTING: usize = 256;

struct Unused {
    fresh: usize,
    freed: VecDeque<&'static Place>,
}

static UNUSED: Mutex<Unused> = Mutex::new(Unused {
    fresh: 0,
    freed: VecDeque::new(),
});

/// A panic within leaves both fields whole.
fn unused() -> MutexGuard<'static, Unused> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn chunks() -> impl Iterator<Item = &'static [Place]> {
    let more = MORE.iter().map_while(|chunk| chunk.get().map(|it| &**it));
    std::iter::once(&FIRST[..]).chain(more)
}

impl Unused {
    fn take(&mut self) -> Result<&'static Place, Error> {
        if self.freed.len() > RESTING
            && let Some(place) = self.freed.pop_front()
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
        let place = chunk.get(at).or_else(|| self.freed.pop_front());
        self.fresh += usize::from(at < len);
        place.ok_or(Error::TooMany { count: self.fresh })
    }
}

/// Gives out a handle.
pub(crate) fn give<H: Handle>(behind: H::Behind) -> Result<*mut H, Error> {
    let place = unused().take()?;
    let mut value = place.value.lock().unwrap_or_else(PoisonError::into_inner);
    *value = H::wrap(behind);
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

fn wrong<H: Handle>(value: &Value) -> Error {
    let (found, expected) = (value.kind(), H::NAME);
    match value {
        Value::Nothing => Error::Freed { expected },
        _ => Error::OtherKind { found, expected },
    }
}

/// Uses what stands behind a handle, alone.
#[inline]
pub(crate) fn with<H: Handle, R>(
    handle: *const H,
    call: impl FnOnce(&mut H::Behind) -> Result<R, Error>,
) -> Result<R, Error> {
    let mut value = find(handle)?.hold::<H>()?;
    match H::of(&mut value) {
        Some(behind) => call(behind),
        None => Err(wrong::<H>(&value)),
    }
}

/// Uses it together with others: `call` is short and calls nobody back.
pub(crate) fn shared<H: Handle, R>(
    handle: *const H,
    call: impl FnOnce(&H::Behind) -> R,
) -> Result<R, Error> {
    let value = &find(handle)?.value;
    let mut value = value.lock().unwrap_or_else(PoisonError::into_inner);
    match H::of(&mut value) {
        Some(behind) => Ok(call(behind)),
        None => Err(wrong::<H>(&value)),
    }
}

/// Ends a handle, and takes what stood behind it.
pub(crate) fn take<H: Handle>(handle: *const H) -> Result<H::Behind, Error> {
    let place = find(handle)?;
    let mut value = place.hold::<H>()?;
    if H::of(&mut value).is_none() {
        return Err(wrong::<H>(&value));
    }
    let taken = std::mem::replace(&mut *value, Value::Nothing);
    drop(value);
    unused().freed.push_back(place);
    H::unwrap(taken).ok_or(Error::Freed { expected: H::NAME })
}

/// Ends a handle and what stood behind it; null is fine. One that has failed can be freed too.
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
    use crate::builder::Builder;
    use crate::directory::Directory;

    fn directory() -> *mut Directory {
        give::<Directory>(Box::default()).unwrap()
    }

    #[test]
    fn only_a_pointer_that_was_given_out_is_a_handle() {
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
    fn handles_beyond_the_first_chunk_are_found_and_an_old_pointer_rests_before_it_is_new() {
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
    fn a_handle_in_use_is_refused_and_one_that_failed_can_only_be_freed() {
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
