//! Runs of datagrams on a socket of one's own: for programs that measure what the kernel itself can
//! do, beside which this transport is held.

use std::io;
use std::os::fd::AsRawFd;

use super::socket::set_option;

/// Has the kernel cut whatever `socket` sends into datagrams of `len` bytes (UDP_SEGMENT); 0: into
/// none.
///
/// # Errors
/// What the operating system says; a kernel before 4.18 knows no such option.
pub fn send_runs_of(socket: &impl AsRawFd, len: u16) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(len))
}

/// Has the kernel hand over datagrams that came together as one (UDP_GRO).
///
/// # Errors
/// What the operating system says; a kernel before 5.0 knows no such option.
pub fn receive_runs(socket: &impl AsRawFd) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1i32)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn one_send_arrives_as_datagrams_of_that_length() {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        send_runs_of(&from, 100).unwrap();
        from.send_to(&[7; 250], to.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 1024];
        let lens = [(); 3].map(|()| to.recv(&mut bytes).unwrap());
        assert_eq!(lens, [100, 100, 50]);
        receive_runs(&to).unwrap();
        from.send_to(&[8; 200], to.local_addr().unwrap()).unwrap();
        assert_eq!(to.recv(&mut bytes).unwrap(), 200);
    }
}
