//! A proxy between a subscriber and its publisher's control port. It forwards all frames except the first
//! one that it should hold, and reports when that frame has arrived. A test can thus act at a point of
//! the protocol instead of at a time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use tickcast_reliability::control::FRAME_HEAD_LEN;

use tickcast_test_support::PATIENCE;

/// Returns whether to hold a frame of this type.
pub(crate) type Wanted = fn(kind: u8, body: &[u8]) -> bool;

pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    hold: Option<Wanted>,
    is_held: bool,
    /// Whether the held frame is lost, together with its connection.
    is_lost: bool,
}

impl Gate {
    /// Starts a proxy in front of this control port.
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
                // If the publisher does not listen, close the connection, as the system would refuse it.
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

    /// Returns whether a frame is held.
    pub(crate) fn holds(&self) -> bool {
        self.state.0.lock().expect("nobody panicked").is_held
    }

    /// Forwards the held frame, and holds no more.
    pub(crate) fn open(&self) {
        self.let_go(false);
    }

    /// Forwards everything from here on except the held frame, which was lost with the publisher.
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
