//! Arrays whose addresses the kernel gets, allocated once: nothing is allocated after the start.

use std::mem;

/// An array whose address the kernel gets. It is never moved or resized, and is accessed only through
/// its address, so that the kernel's writes are visible.
pub(super) struct Array<T>(*mut [T]);

impl<T: Copy> Array<T> {
    pub(super) fn new(value: T, count: usize) -> Self {
        Self(Box::into_raw(vec![value; count].into_boxed_slice()))
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn at(&self, i: usize) -> *mut T {
        assert!(i < self.len());
        self.0.cast::<T>().wrapping_add(i)
    }

    pub(super) const fn as_slice(&self) -> &[T] {
        // SAFETY: `new` made it from a box that only `drop` takes back; the kernel writes only
        // within calls that hold the owner mutably. Exercised by every test in tests/local/udp.rs.
        unsafe { &*self.0 }
    }

    pub(super) const fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { &mut *self.0 }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made it from a box, and nothing else frees it. Exercised by every test in
        // tests/local/udp.rs.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

pub(super) const NO_IOVEC: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Returns an empty header. On some platforms it has private padding, so it can't be written out.
pub(super) const fn no_header() -> libc::mmsghdr {
    // SAFETY: null pointers and zero lengths are a value of every field. Exercised by every test
    // in tests/local/udp.rs.
    unsafe { mem::zeroed() }
}
