//! The XDP program: it redirects plain UDP datagrams of known groups to a socket, and passes all other
//! frames to the kernel.

use crate::bpf::Instruction;
use crate::frame::{
    AT_DESTINATION, AT_ETHERTYPE, AT_FRAGMENT, AT_PORT, AT_PROTOCOL, AT_VERSION, ETHERTYPE_IPV4,
    FRAGMENT_MASK, HEADERS_LEN, PROTOCOL_UDP, VERSION_AND_LEN,
};

/// Verdict that passes a frame to the kernel (`XDP_PASS`).
pub(super) const PASS: i32 = 2;
/// Verdict of a frame that a socket receives (`XDP_REDIRECT`).
#[cfg(test)]
pub(super) const REDIRECT: i32 = 4;

/// Fields of the program's argument (`struct xdp_md`).
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

/// Functions of the kernel (`enum bpf_func_id`).
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;

/// The key on the stack: four bytes of address, and the port in four bytes.
const KEY: i16 = -8;

/// Registers of the machine.
#[derive(Clone, Copy)]
enum Register {
    /// Result of a call, and the program's verdict.
    R0,
    /// First argument of a call, and the program's.
    R1,
    R2,
    R3,
    /// Scratch until the next call.
    R4,
    /// Kept over calls.
    R6,
    /// Address of the stack's end.
    R10,
}

use Register::{R0, R1, R2, R3, R4, R6, R10};

impl Register {
    const fn number(self) -> u8 {
        match self {
            R0 => 0,
            R1 => 1,
            R2 => 2,
            R3 => 3,
            R4 => 4,
            R6 => 6,
            R10 => 10,
        }
    }
}

/// Width of a load, as the instruction's code.
#[derive(Clone, Copy)]
enum Load {
    Byte = 0x71,
    Half = 0x69,
    Word = 0x61,
}

/// A program under construction. Jumps all lead to its end, which passes the frame.
#[derive(Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<usize>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: to.number() | from << 4,
            offset,
            immediate,
        });
    }

    fn load(&mut self, width: Load, to: Register, from: Register, offset: i16) {
        self.push(width as u8, to, from.number(), offset, 0);
    }

    /// Stores the lower four bytes of a register on the stack.
    fn store(&mut self, offset: i16, from: Register) {
        self.push(0x63, R10, from.number(), offset, 0);
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from.number(), 0, 0);
    }

    fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from.number(), 0, 0);
    }

    fn and(&mut self, to: Register, mask: i32) {
        self.push(0x57, to, 0, 0, mask);
    }

    /// Sets a register to the address of a map, given by its descriptor.
    fn set_map(&mut self, to: Register, map: i32) {
        const OF_DESCRIPTOR: u8 = 1;
        self.push(0x18, to, OF_DESCRIPTOR, 0, map);
        self.push(0, R0, 0, 0, 0);
    }

    fn call(&mut self, function: i32) {
        self.push(0x85, R0, 0, 0, function);
    }

    fn pass_unless_equal(&mut self, of: Register, value: i32) {
        self.jumps.push(self.instructions.len());
        self.push(0x55, of, 0, 0, value);
    }

    fn pass_if_equal(&mut self, of: Register, value: i32) {
        self.jumps.push(self.instructions.len());
        self.push(0x15, of, 0, 0, value);
    }

    fn pass_if_at_least(&mut self, of: Register, value: i32) {
        self.jumps.push(self.instructions.len());
        self.push(0x35, of, 0, 0, value);
    }

    fn pass_if_above(&mut self, of: Register, other: Register) {
        self.jumps.push(self.instructions.len());
        self.push(0x2d, of, other.number(), 0, 0);
    }

    fn exit(&mut self) {
        self.push(0x95, R0, 0, 0, 0);
    }

    /// Appends the end that all jumps lead to.
    fn finish(mut self) -> Vec<Instruction> {
        let end = self.instructions.len();
        for at in self.jumps {
            self.instructions[at].offset = (end - at - 1) as i16;
        }
        self.jumps = Vec::new();
        self.set(R0, PASS);
        self.exit();
        self.instructions
    }
}

/// Returns the value that a load of two bytes of the frame yields.
const fn loaded(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes) as i32
}

/// Returns the program for these maps, given by their descriptors. It serves the receive queues below
/// `queues`: a group's entry in `groups` plus the queue is the socket's index in `sockets`.
pub(super) fn program(groups: i32, sockets: i32, queues: u32) -> Vec<Instruction> {
    let mut it = Assembler::default();
    it.copy(R6, R1);
    it.load(Load::Word, R2, R1, CONTEXT_DATA);
    it.load(Load::Word, R3, R1, CONTEXT_DATA_END);
    it.copy(R4, R2);
    it.add(R4, HEADERS_LEN as i32);
    it.pass_if_above(R4, R3);

    it.load(Load::Half, R4, R2, AT_ETHERTYPE as i16);
    it.pass_unless_equal(R4, loaded(ETHERTYPE_IPV4));
    it.load(Load::Byte, R4, R2, AT_VERSION as i16);
    it.pass_unless_equal(R4, VERSION_AND_LEN.into());
    it.load(Load::Half, R4, R2, AT_FRAGMENT as i16);
    it.and(R4, loaded(FRAGMENT_MASK));
    it.pass_unless_equal(R4, 0);
    it.load(Load::Byte, R4, R2, AT_PROTOCOL as i16);
    it.pass_unless_equal(R4, PROTOCOL_UDP.into());

    it.load(Load::Word, R4, R2, AT_DESTINATION as i16);
    it.store(KEY, R4);
    it.load(Load::Half, R4, R2, AT_PORT as i16);
    it.store(KEY + 4, R4);
    it.set_map(R1, groups);
    it.copy(R2, R10);
    it.add(R2, KEY.into());
    it.call(MAP_LOOKUP_ELEM);
    it.pass_if_equal(R0, 0);

    it.load(Load::Word, R2, R0, 0);
    it.load(Load::Word, R4, R6, CONTEXT_QUEUE);
    it.pass_if_at_least(R4, queues as i32);
    it.add_register(R2, R4);
    it.set_map(R1, sockets);
    // Also the verdict if there is no socket.
    it.set(R3, PASS);
    it.call(REDIRECT_MAP);
    it.exit();
    it.finish()
}
