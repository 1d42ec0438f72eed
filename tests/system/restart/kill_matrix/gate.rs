//! A gate on the way between a subscriber and its publisher's control port: it lets every frame pass
//! but the first one that is to be held, and tells when that one is there. So a test does what it does at
//! a moment of the protocol, and not at a time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use tickcast_reliability::control::FRAME_HEAD_LEN;

use tickcast_test_support::PATIENCE;

/// Whether this frame, of this type, is to be held.
pub(crate) type Wanted = fn(kind: u8, body: &[u8]) -> bool;

pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    hold: Option<Wanted>,
    is_held: bool,
    /// Whether what is held is lost, with its connection.
    is_lost: bool,
}

impl Gate {
    /// A gate before this control port.
    pub(crate) fn new(publisher: SocketAddr, hold: Option<Wanted>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = listener.local_addr().expect("its address");
        let state = State {
            hold,
            is_held: false,
            is_lost: false,
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let of = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Where nobody listens, what came is closed, as the system would refuse it.
                let Ok(far) = TcpStream::connect(publisher) else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone(), to.try_clone());
                    let (from, to) = (from.expect("a handle"), to.expect("a handle"));
                    let of = Arc::clone(&of);
                    std::thread::spawn(move || {
                        let _ = pass(&from, &to, &of);
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, state }
    }

    /// Whether a frame is held.
    pub(crate) fn holds(&self) -> bool {
        self.state.0.lock().expect("nobody panicked").is_held
    }

    /// Lets what it held go on, and holds nothing more.
    pub(crate) fn open(&self) {
        self.let_go(false);
    }

    /// Lets everything pass from here on but what is held: it was lost with the publisher.
    pub(crate) fn lose(&self) {
        self.let_go(true);
    }

    fn let_go(&self, is_lost: bool) {
        let mut state = self.state.0.lock().expect("nobody panicked");
        (state.hold, state.is_held, state.is_lost) = (None, false, is_lost);
        self.state.1.notify_all();
    }
}

fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    of: &(Mutex<State>, Condvar),
) -> std::io::Result<()> {
    let mut frame = vec![0; FRAME_HEAD_LEN];
    loop {
        frame.resize(FRAME_HEAD_LEN, 0);
        from.read_exact(&mut frame)?;
        let len = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
        frame.resize(FRAME_HEAD_LEN + len as usize, 0);
        from.read_exact(&mut frame[FRAME_HEAD_LEN..])?;
        let mut state = of.0.lock().expect("nobody panicked");
        let is_wanted = |hold: Wanted| hold(frame[4], &frame[FRAME_HEAD_LEN..]);
        if state.hold.is_some_and(is_wanted) {
            state.is_held = true;
            while state.hold.is_some() {
                let waited = of.1.wait_timeout(state, PATIENCE).expect("nobody panicked");
                assert!(!waited.1.timed_out(), "nobody opened the gate");
                state = waited.0;
            }
            if state.is_lost {
                return Ok(());
            }
        }
        drop(state);
        to.write_all(&frame)?;
    }
}
