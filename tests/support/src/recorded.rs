//! Recorded files, built byte by byte: frames of a pcap, and packets of SoupBinTCP.

/// The header of a pcap file: microseconds, Ethernet.
pub const PCAP_HEADER: [u8; 24] = [
    0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0,
];
/// The EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// The EtherType of ARP.
pub const ARP: u16 = 0x0806;

/// Returns the record of an Ethernet frame.
#[must_use]
pub fn frame(at_us: u64, ether_type: u16, body: &[u8]) -> Vec<u8> {
    let (seconds, us) = ((at_us / 1_000_000) as u32, (at_us % 1_000_000) as u32);
    let bytes = [&[0; 12][..], &ether_type.to_be_bytes(), body].concat();
    let len = bytes.len() as u32;
    let head = [seconds, us, len, len].map(u32::to_le_bytes);
    [head.concat(), bytes].concat()
}

/// Returns the record of a UDP datagram over IPv4.
#[must_use]
pub fn udp_frame(at_us: u64, destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 0, 1]);
    ip.extend(destination);
    ip.extend([5_000, port, udp_len, 0].map(u16::to_be_bytes).concat());
    ip.extend(payload);
    frame(at_us, IPV4, &ip)
}

/// Returns a packet of SoupBinTCP.
#[must_use]
pub fn soup(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16 + 1).to_be_bytes();
    [&len[..], &[kind], payload].concat()
}

/// Returns the login of SoupBinTCP whose next message has this sequence.
#[must_use]
pub fn login(session: &str, next: u64) -> Vec<u8> {
    soup(b'A', format!("{session:10}{next:20}").as_bytes())
}

/// Returns a SoupBinTCP file of messages 7 to 12: a later login repeats 8, and another one skips 9 to 11.
#[must_use]
pub fn logins_around_a_gap() -> Vec<u8> {
    let event = soup(b'S', &system_event(0));
    let login = |next| login("ONE", next);
    [
        &login(7)[..],
        &event,
        &event,
        &login(8),
        &event,
        &login(12),
        &event,
    ]
    .concat()
}

/// Returns ITCH's system event *start of market hours*, this many nanoseconds behind midnight.
#[must_use]
pub fn system_event(at_ns: u64) -> Vec<u8> {
    [&b"S\0\0\0\0"[..], &at_ns.to_be_bytes()[2..], b"Q"].concat()
}

/// Returns a message as BinaryFILE frames it, and as a block of MoldUDP64.
#[must_use]
pub fn block(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

/// Returns a packet of MoldUDP64 with these messages.
#[must_use]
pub fn mold_packet(session: &[u8; 10], sequence: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let count = (messages.len() as u16).to_be_bytes();
    let mut packet = [&session[..], &sequence.to_be_bytes(), &count].concat();
    packet.extend(messages.iter().flat_map(|message| block(message)));
    packet
}
