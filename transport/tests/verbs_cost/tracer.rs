//! Steps through marked parts of another process and counts instructions by location, and system calls
//! by caller.

use std::arch::asm;
use std::collections::HashMap;
use std::mem::offset_of;
use std::process::{Child, Command};

/// Cost of a part, over all times that it ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    counts: [u64; 3],
    /// System calls by the program itself, directly or through libc.
    pub(crate) own_calls: u64,
    /// System calls by libibverbs and the device's provider, and the number of the last one.
    pub(crate) library_calls: u64,
    pub(crate) library_call: Option<u64>,
}

impl Cost {
    /// Returns the instructions in the program itself, in libibverbs and the device's provider, and in libc.
    pub(crate) fn instructions(&self) -> [u64; 3] {
        self.counts
    }
}

/// Location of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Program,
    Provider,
    System,
}

/// Kind of an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mark,
    Call,
    Other,
}

/// Lets the parent process step through this thread.
pub(crate) fn begin() {
    // SAFETY: it passes no memory.
    let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Begins or ends a part.
#[inline(never)]
pub(crate) fn mark(part: u64) {
    // SAFETY: a breakpoint changes nothing; the tracer of this thread continues behind it.
    unsafe { asm!("int3", in("rdi") part) };
}

/// Runs a program that marks parts, and counts each part.
pub(crate) fn trace(program: &mut Command, parts: usize) -> Vec<Cost> {
    let mut costs = vec![Cost::default(); parts];
    let mut child = program.spawn().unwrap();
    let mut stepper = None;
    while let Some(thread) = wait(&child, stepper.as_ref()) {
        let stepper = stepper.get_or_insert_with(|| Stepper::new(&child, thread));
        let part = stepper.register(offset_of!(libc::user_regs_struct, rdi));
        stepper.count(&mut costs[part as usize]);
        // Step over the mark and continue.
        stepper.resume(libc::PTRACE_CONT);
        assert!(wait(&child, Some(stepper)).is_some(), "ended within a part");
        stepper.resume(libc::PTRACE_CONT);
    }
    assert!(stepper.is_some(), "it marked nothing");
    assert!(child.wait().unwrap().success());
    costs
}

/// Waits until the traced thread stops. `None` when it has ended.
fn wait(child: &Child, stepper: Option<&Stepper>) -> Option<i32> {
    let mut status = 0;
    let whom = stepper.map_or(-1, |stepper| stepper.thread);
    // SAFETY: the status lives through the call.
    let thread = unsafe { libc::waitpid(whom, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(thread > 0, "{}", std::io::Error::last_os_error());
    if libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        assert_eq!(signal, libc::SIGTRAP, "stopped by a signal");
        return Some(thread);
    }
    assert!(thread != child.id() as i32, "it ended, status {status:#x}");
    None
}

/// A thread that is stepped through.
struct Stepper {
    thread: i32,
    /// Address ranges of the mapped files.
    places: Vec<(u64, u64, Place)>,
    /// Instructions decoded before.
    known: HashMap<u64, (Kind, Place)>,
}

impl Stepper {
    fn new(child: &Child, thread: i32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let program = std::env::current_exe().unwrap();
        let program = program.to_str().unwrap();
        let places = maps.lines().filter_map(|line| {
            // Range, rights, offset, device, inode, path.
            let fields: Vec<_> = line.split_whitespace().collect();
            let (from, to) = fields[0].split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let place = match fields.get(5) {
                Some(path) if *path == program => Place::Program,
                Some(path) if path.contains("ibverbs") || path.contains("rdmav") => Place::Provider,
                _ => Place::System,
            };
            Some((address(from), address(to), place))
        });
        Self {
            thread,
            places: places.collect(),
            known: HashMap::new(),
        }
    }

    /// Steps from behind a mark to the next one.
    fn count(&mut self, cost: &mut Cost) {
        // The caller of libc, while the thread is in libc.
        let mut caller = Place::Program;
        loop {
            let at = self.register(offset_of!(libc::user_regs_struct, rip));
            let (kind, place) = self.look(at);
            if place != Place::System {
                caller = place;
            }
            match (kind, caller) {
                (Kind::Mark, _) => return,
                (Kind::Call, Place::Provider) => {
                    cost.library_calls += 1;
                    cost.library_call =
                        Some(self.register(offset_of!(libc::user_regs_struct, rax)));
                }
                (Kind::Call, _) => cost.own_calls += 1,
                (Kind::Other, _) => {}
            }
            cost.counts[place as usize] += 1;
            self.resume(libc::PTRACE_SINGLESTEP);
            let mut status = 0;
            // SAFETY: the status lives through the call.
            let thread = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
            let is_step = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
            assert!(thread == self.thread && is_step, "status {status:#x}");
        }
    }

    fn look(&mut self, at: u64) -> (Kind, Place) {
        if let Some(known) = self.known.get(&at) {
            return *known;
        }
        // SAFETY: it reads from the other process; all arguments are values.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.thread, at, 0) };
        let kind = match word.to_le_bytes() {
            [0xcc, ..] => Kind::Mark,
            [0x0f, 0x05, ..] => Kind::Call,
            _ => Kind::Other,
        };
        let place = self
            .places
            .iter()
            .find(|(from, to, _)| (*from..*to).contains(&at));
        let known = (kind, place.map_or(Place::System, |(_, _, place)| *place));
        self.known.insert(at, known);
        known
    }

    fn register(&self, offset: usize) -> u64 {
        // SAFETY: it reads a register of a thread that is stopped; all arguments are values.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, offset, 0) as u64 }
    }

    fn resume(&self, how: libc::c_uint) {
        // SAFETY: it passes no memory.
        let result = unsafe { libc::ptrace(how, self.thread, 0, 0) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}
