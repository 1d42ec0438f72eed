//! Memory that no other process shares, on huge pages where the system gives them: buffers that a device
//! writes and this process reads.

use std::io;

use memmap2::{Advice, MmapMut, MmapRaw};
use tickcast_reliability::ring::RingMemory;

/// Size of a huge page of x86-64, and of Arm with pages of 4 KiB.
const HUGE: usize = 2 << 20;

/// Zeroed memory, aligned to huge pages if it is longer than one. It is freed with this value. A child that
/// this process forks does not have it, because the copy of a page would part the device from its reader.
#[derive(Debug)]
pub struct PrivateMemory {
    map: MmapRaw,
    /// Place of the first byte in the mapping.
    at: usize,
    len: usize,
}

impl PrivateMemory {
    /// Allocates `len` bytes. All of them are backed by memory when this returns.
    ///
    /// # Errors
    /// Returns the operating system's error if the memory can't be had.
    pub fn new(len: usize) -> io::Result<Self> {
        let spare = if len >= HUGE { HUGE } else { 0 };
        let mut map = MmapMut::map_anon(len.saturating_add(spare))?;
        let at = if spare > 0 {
            map.as_ptr().align_offset(HUGE).min(spare)
        } else {
            0
        };
        map.advise(Advice::DontFork)?;
        if spare > 0 {
            // A kernel without transparent huge pages refuses the advice, and gives ordinary pages.
            let _ = map.advise_range(Advice::HugePage, at, len);
        }
        map[at..at + len].fill(0);
        Ok(Self {
            map: map.into(),
            at,
            len,
        })
    }
}

// SAFETY: the mapping stays at one address, page-aligned, of at least `at + len` bytes that `new` zeroed,
// until it is dropped; no other process has it, and no reference into it is made here. Exercised by
// `tests::private_memory_is_zeroed_aligned_and_advised`.
unsafe impl RingMemory for PrivateMemory {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `at` lies within the mapping. Exercised as above.
        unsafe { self.map.as_mut_ptr().add(self.at) }
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the flags of the mapping that holds an address.
    fn flags_at(address: usize) -> Vec<String> {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_in = false;
        for line in maps.lines() {
            let ends = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = ends.map(|(from, to)| (hex(from), hex(to))) {
                is_in = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| is_in) {
                return flags.split(' ').map(str::to_owned).collect();
            }
        }
        panic!("no mapping holds {address:#x}");
    }

    fn bytes(memory: &PrivateMemory) -> &[u8] {
        // SAFETY: all of it is initialised, and nobody writes it here.
        unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) }
    }

    #[test]
    fn private_memory_is_zeroed_aligned_and_advised() {
        let has_huge_pages = fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
        for (len, is_huge) in [
            (1, false),
            (HUGE - 1, false),
            (HUGE, true),
            (5 * HUGE / 2, true),
        ] {
            let memory = PrivateMemory::new(len).unwrap();
            assert_eq!(RingMemory::len(&memory), len);
            assert!(bytes(&memory).iter().all(|byte| *byte == 0));
            let address = memory.as_ptr().addr();
            assert!(address.is_multiple_of(if is_huge { HUGE } else { 4096 }));
            let flags = flags_at(address);
            assert!(
                flags.iter().any(|flag| flag == "dc"),
                "not forked: {flags:?}"
            );
            let is_advised = flags.iter().any(|flag| flag == "hg");
            assert_eq!(is_advised, is_huge && has_huge_pages, "{flags:?}");
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert!(PrivateMemory::new(usize::MAX / 2).is_err());
    }
}
