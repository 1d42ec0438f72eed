//! Runs of datagrams on the caller's own socket, for programs that measure the kernel's own limits
//! as a baseline for this transport.

use std::io;
use std::os::fd::AsRawFd;

use super::socket::set_option;

/// Makes the kernel cut everything that `socket` sends into datagrams of `len` bytes (UDP_SEGMENT).
/// With 0, the kernel cuts nothing.
///
/// # Errors
/// Returns the operating system's error. A kernel before 4.18 does not know the option.
pub fn send_runs_of(socket: &impl AsRawFd, len: u16) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(len))
}

/// Makes the kernel deliver datagrams that arrived together as one buffer (UDP_GRO).
///
/// # Errors
/// Returns the operating system's error. A kernel before 5.0 does not know the option.
pub fn receive_runs(socket: &impl AsRawFd) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1i32)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn gso_send_arrives_as_segments_of_set_length() {
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
