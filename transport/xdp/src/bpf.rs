//! The `bpf()` system call: maps, programs, links and runs of a program on a test packet. Each object is an
//! owned descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of the call (`enum bpf_cmd` of `linux/bpf.h`).
const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
#[cfg(test)]
const PROG_TEST_RUN: u32 = 10;
const LINK_CREATE: u32 = 28;
const LINK_DETACH: u32 = 34;

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// Longest name of an object, with the zero at its end.
const NAME_LEN: usize = 16;
/// Space for the verifier's report, in bytes.
const REPORT_LEN: usize = 16 << 10;

/// Kind of a map (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapKind {
    Hash = 1,
    Sockets = 17,
}

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Destination in the lower half, source in the upper one.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// The attributes of one command: a `repr(C)` prefix of the kernel's `union bpf_attr`.
///
/// # Safety
/// The layout is the kernel's for the command that the type is used with, without padding.
unsafe trait Attributes {}

#[derive(Default)]
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; NAME_LEN],
}

#[derive(Default)]
#[repr(C)]
struct Element {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct LoadProgram {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    report_level: u32,
    report_len: u32,
    report: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_LEN],
    interface: u32,
    attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct CreateLink {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct DetachLink {
    link: u32,
}

// SAFETY: the fields are those of `BPF_MAP_CREATE`, in order and without gaps. Exercised by
// `steering::tests::plain_udp_to_an_entry_is_redirected`.
unsafe impl Attributes for CreateMap {}
// SAFETY: as above, of `BPF_MAP_UPDATE_ELEM`.
unsafe impl Attributes for Element {}
// SAFETY: as above, of `BPF_PROG_LOAD`.
unsafe impl Attributes for LoadProgram {}
// SAFETY: as above, of `BPF_LINK_CREATE`.
unsafe impl Attributes for CreateLink {}
// SAFETY: as above, of `BPF_LINK_DETACH`.
unsafe impl Attributes for DetachLink {}

/// A map that programs and this process read and write.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key_len: usize,
    value_len: usize,
}

impl Map {
    /// Creates a map with room for this number of entries. A key and a value have these lengths, in bytes.
    pub(crate) fn new(
        kind: MapKind,
        name: &str,
        (key_len, value_len): (usize, usize),
        entries: u32,
    ) -> io::Result<Self> {
        let mut attributes = CreateMap {
            kind: kind as u32,
            key_len: key_len as u32,
            value_len: value_len as u32,
            entries,
            name: name_of(name),
            ..CreateMap::default()
        };
        // SAFETY: `CreateMap` contains no address, and the result is a new descriptor. Exercised by
        // `steering::tests::plain_udp_to_an_entry_is_redirected`.
        let fd = unsafe { OwnedFd::from_raw_fd(call(MAP_CREATE, &mut attributes)?) };
        Ok(Self {
            fd,
            key_len,
            value_len,
        })
    }

    /// Sets the value of a key. Fails with `InvalidInput` if a length is not the map's.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, self.key_len)?;
        self.check(value, self.value_len)?;
        let mut attributes = Element {
            map: self.fd.as_raw_fd() as u32,
            key: key.as_ptr().addr() as u64,
            value: value.as_ptr().addr() as u64,
            ..Element::default()
        };
        // SAFETY: the kernel reads as many bytes as the map was created with, which the checks found there.
        // Exercised by `steering::tests::plain_udp_to_an_entry_is_redirected`.
        unsafe { call(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
    }

    /// Removes a key. Does nothing if there is none.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        self.check(key, self.key_len)?;
        let mut attributes = Element {
            map: self.fd.as_raw_fd() as u32,
            key: key.as_ptr().addr() as u64,
            ..Element::default()
        };
        // SAFETY: as above, of the key alone.
        match unsafe { call(MAP_DELETE_ELEM, &mut attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    fn check(&self, bytes: &[u8], len: usize) -> io::Result<()> {
        if bytes.len() == len {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Loads an XDP program. The error contains the end of the verifier's report, if it wrote one.
pub(crate) fn load_program(name: &str, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let mut report = vec![0u8; REPORT_LEN];
    let licence = c"Dual MIT/GPL";
    let mut attributes = LoadProgram {
        kind: PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr().addr() as u64,
        licence: licence.as_ptr().addr() as u64,
        report_level: 1,
        report_len: REPORT_LEN as u32,
        report: report.as_mut_ptr().expose_provenance() as u64,
        name: name_of(name),
        attach_type: ATTACH_TYPE_XDP,
        ..LoadProgram::default()
    };
    // SAFETY: `instructions`, `licence` and `report` outlive the call, and the kernel keeps to the lengths.
    // The result is a new descriptor. Exercised by `steering::tests::plain_udp_to_an_entry_is_redirected`.
    match unsafe { call(PROG_LOAD, &mut attributes) } {
        // SAFETY: as above.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) => {
            let text = report.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let mut last = text.trim().lines().rev().take(3).collect::<Vec<_>>();
            last.reverse();
            if error.kind() == io::ErrorKind::PermissionDenied && !last.is_empty() {
                let told = format!("{error}: {}", last.join("; "));
                return Err(io::Error::new(io::ErrorKind::InvalidData, told));
            }
            Err(error)
        }
    }
}

/// Attaches a program to an interface until the returned link is closed.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, mode: u32) -> io::Result<OwnedFd> {
    let mut attributes = CreateLink {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: ATTACH_TYPE_XDP,
        flags: mode,
    };
    // SAFETY: `CreateLink` contains no address, and the result is a new descriptor. Exercised by
    // tests/veth/receiving.rs `datagrams_arrive_once_in_order_and_whole`.
    unsafe { Ok(OwnedFd::from_raw_fd(call(LINK_CREATE, &mut attributes)?)) }
}

/// Detaches the program of a link, even if a process that was forked meanwhile still has the descriptor.
pub(crate) fn detach(link: &OwnedFd) -> io::Result<()> {
    let mut attributes = DetachLink {
        link: link.as_raw_fd() as u32,
    };
    // SAFETY: `DetachLink` contains no address. Exercised by tests/veth/frames.rs
    // `interface_can_be_opened_again_at_once`.
    unsafe { call(LINK_DETACH, &mut attributes) }.map(drop)
}

/// # Safety
/// Every address in `attributes` is of memory that the kernel may read or write, as the command requires.
unsafe fn call<T: Attributes>(command: u32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the struct is as long as told, and the caller vouches for the addresses inside. Exercised by
    // `steering::tests::plain_udp_to_an_entry_is_redirected`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_ulong,
            &raw mut *attributes,
            size_of::<T>() as libc::c_ulong,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn name_of(name: &str) -> [u8; NAME_LEN] {
    let mut bytes = [0; NAME_LEN];
    // The last byte stays zero, because the kernel expects a C string.
    for (to, from) in bytes[..NAME_LEN - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
#[derive(Default)]
#[repr(C)]
struct TestRun {
    program: u32,
    result: u32,
    len_in: u32,
    len_out: u32,
    bytes_in: u64,
    bytes_out: u64,
    repeat: u32,
    duration: u32,
}

// SAFETY: as above, of `BPF_PROG_TEST_RUN`.
#[cfg(test)]
unsafe impl Attributes for TestRun {}

/// Runs a program on a packet of receive queue 0. Returns its verdict.
#[cfg(test)]
pub(crate) fn test_run(program: &impl AsRawFd, packet: &[u8]) -> io::Result<u32> {
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        len_in: packet.len() as u32,
        bytes_in: packet.as_ptr().addr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: the kernel reads `packet`, which outlives the call, and has no place to write to. Exercised by
    // `steering::tests::plain_udp_to_an_entry_is_redirected`.
    unsafe { call(PROG_TEST_RUN, &mut attributes)? };
    Ok(attributes.result)
}
