//! Events of RDMA ports that explain loss and delay: congestion, discards and damage, as the operating
//! system counts them in `/sys/class/infiniband`. Reading them needs no rights and no libraries.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::ports::CLASS;

/// Longest counter that is read, in bytes: a number of 64 bits and a line break fit.
const COUNTER_LEN_MAX: usize = 32;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// A packet arrived with a mark of congestion (ECN).
    EcnMark,
    /// The port asked a sender to slow down (CNP).
    CnpSent,
    /// The port was asked to slow down and did so (CNP).
    CnpHandled,
    /// The port waited, because a pause or missing credits held back its packets. The unit is the device's
    /// tick.
    SendWait,
    /// A packet found no receive buffer.
    OutOfBuffer,
    /// The port discarded a packet that it could not send.
    SendDiscard,
    /// A packet arrived damaged or malformed.
    ReceiveError,
    /// A RoCE packet arrived with a wrong checksum.
    ChecksumError,
    /// The cable delivered a symbol that is none.
    SymbolError,
    /// The link went down.
    LinkDown,
}

impl PortEvent {
    /// All events.
    pub const ALL: [Self; 10] = [
        Self::EcnMark,
        Self::CnpSent,
        Self::CnpHandled,
        Self::SendWait,
        Self::OutOfBuffer,
        Self::SendDiscard,
        Self::ReceiveError,
        Self::ChecksumError,
        Self::SymbolError,
        Self::LinkDown,
    ];

    /// Returns the name of its counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EcnMark => "port_ecn_marks",
            Self::CnpSent => "port_cnps_sent",
            Self::CnpHandled => "port_cnps_handled",
            Self::SendWait => "port_send_waits",
            Self::OutOfBuffer => "port_out_of_buffer",
            Self::SendDiscard => "port_send_discards",
            Self::ReceiveError => "port_receive_errors",
            Self::ChecksumError => "port_checksum_errors",
            Self::SymbolError => "port_symbol_errors",
            Self::LinkDown => "port_link_downs",
        }
    }

    /// Returns whether the event shows a network under congestion.
    #[must_use]
    pub const fn is_congestion(self) -> bool {
        matches!(
            self,
            Self::EcnMark | Self::CnpSent | Self::CnpHandled | Self::SendWait
        )
    }

    /// Returns the files below the port that may count it; drivers name them differently, and a port has one
    /// of them or none.
    const fn files(self) -> &'static [&'static str] {
        match self {
            // mlx5, irdma, bnxt_re.
            Self::EcnMark => &[
                "hw_counters/np_ecn_marked_roce_packets",
                "hw_counters/RxECNMrkd",
                "hw_counters/rx_ecn_marked_pkts",
            ],
            Self::CnpSent => &[
                "hw_counters/np_cnp_sent",
                "hw_counters/cnpSent",
                "hw_counters/tx_cnp_pkts",
            ],
            Self::CnpHandled => &[
                "hw_counters/rp_cnp_handled",
                "hw_counters/cnpHandled",
                "hw_counters/rx_cnp_pkts",
            ],
            Self::SendWait => &["counters/port_xmit_wait"],
            Self::OutOfBuffer => &["hw_counters/out_of_buffer", "hw_counters/oos_drop_count"],
            Self::SendDiscard => &["counters/port_xmit_discards"],
            Self::ReceiveError => &["counters/port_rcv_errors"],
            Self::ChecksumError => &["hw_counters/rx_icrc_encapsulated"],
            Self::SymbolError => &["counters/symbol_error"],
            Self::LinkDown => &["counters/link_downed"],
        }
    }
}

/// The counters of one port.
#[derive(Debug)]
struct PortCounters {
    device: String,
    port: u8,
    files: Vec<(PortEvent, File)>,
}

/// The counts of one port at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCounts {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// The events that the device counts, since its driver was loaded.
    pub counts: Vec<(PortEvent, u64)>,
}

impl PortCounts {
    /// Returns the count of an event; `None` if the device does not count it.
    #[must_use]
    pub fn get(&self, event: PortEvent) -> Option<u64> {
        let mut all = self.counts.iter();
        all.find(|it| it.0 == event).map(|it| it.1)
    }
}

/// Open counters of ports. Each read costs one system call a counter, so it belongs off every hot path.
#[derive(Debug, Default)]
pub struct PortEvents {
    ports: Vec<PortCounters>,
}

impl PortEvents {
    /// Opens the counters of these ports, each a device and its port's number. A counter that a device does
    /// not have is left out.
    #[must_use]
    pub fn open<'a>(ports: impl IntoIterator<Item = (&'a str, u8)>) -> Self {
        Self::below(Path::new(CLASS), ports)
    }

    fn below<'a>(class: &Path, ports: impl IntoIterator<Item = (&'a str, u8)>) -> Self {
        let open = |(device, port): (&str, u8)| {
            let folder = class.join(device).join("ports").join(port.to_string());
            let file = |event: PortEvent| {
                let mut files = event.files().iter();
                let file = files.find_map(|file| File::open(folder.join(file)).ok())?;
                Some((event, file))
            };
            PortCounters {
                device: device.to_owned(),
                port,
                files: PortEvent::ALL.into_iter().filter_map(file).collect(),
            }
        };
        Self {
            ports: ports.into_iter().map(open).collect(),
        }
    }

    /// Reads all counters. Leaves out counters that fail, as those of a removed device.
    #[must_use]
    pub fn read(&self) -> Vec<PortCounts> {
        let counts = |port: &PortCounters| PortCounts {
            device: port.device.clone(),
            port: port.port,
            counts: (port.files.iter())
                .filter_map(|(event, file)| Some((*event, count(file).ok()?)))
                .collect(),
        };
        self.ports.iter().map(counts).collect()
    }
}

/// Reads a counter anew. The kernel renders the file at each read of its beginning.
fn count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; COUNTER_LEN_MAX];
    let len = file.read_at(&mut bytes, 0)?;
    let text = str::from_utf8(&bytes[..len]).unwrap_or_default();
    text.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A faked /sys/class/infiniband, removed at the end.
    struct Class(std::path::PathBuf);

    impl Class {
        fn new(name: &str) -> Self {
            let name = format!("tickcast-events-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn put(&self, file: &str, text: &str) {
            let file = self.0.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    impl Drop for Class {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn port_events_are_read_anew_from_open_files() {
        let class = Class::new("anew");
        class.put("mlx5_0/ports/1/hw_counters/np_cnp_sent", "7\n");
        class.put("mlx5_0/ports/1/counters/port_xmit_discards", "0\n");
        class.put("mlx5_0/ports/2/counters/port_xmit_discards", "9\n");
        let events = PortEvents::below(&class.0, [("mlx5_0", 1), ("mlx5_0", 2)]);
        let [one, two] = &events.read()[..] else {
            panic!("two ports");
        };
        assert_eq!((one.device.as_str(), one.port), ("mlx5_0", 1));
        let expected = [(PortEvent::CnpSent, 7), (PortEvent::SendDiscard, 0)];
        assert_eq!(one.counts, expected, "missing files are left out");
        assert_eq!(two.counts, [(PortEvent::SendDiscard, 9)]);
        class.put(
            "mlx5_0/ports/1/hw_counters/np_cnp_sent",
            "18446744073709551615\n",
        );
        let counts = &events.read()[0];
        assert_eq!(counts.get(PortEvent::CnpSent), Some(u64::MAX));
        assert_eq!(counts.get(PortEvent::EcnMark), None);
    }

    #[test]
    fn counters_of_other_drivers_are_found() {
        let class = Class::new("others");
        for (file, text) in [
            ("cnpSent", "1\n"),
            ("cnpHandled", "2\n"),
            ("RxECNMrkd", "3\n"),
        ] {
            class.put(&format!("irdma0/ports/1/hw_counters/{file}"), text);
        }
        let counts = PortEvents::below(&class.0, [("irdma0", 1)]).read();
        let expected = [
            (PortEvent::EcnMark, 3),
            (PortEvent::CnpSent, 1),
            (PortEvent::CnpHandled, 2),
        ];
        assert_eq!(counts[0].counts, expected);
    }

    #[test]
    fn port_without_counters_or_with_odd_ones_has_no_events() {
        let class = Class::new("odd");
        class.put("rxe0/ports/1/hw_counters/out_of_buffer", "N/A (no PMA)\n");
        class.put("rxe0/ports/1/counters/port_rcv_errors", "");
        class.put("rxe0/ports/1/counters/link_downed", "-1\n");
        let ports = [("rxe0", 1), ("none", 1)];
        for counts in PortEvents::below(&class.0, ports).read() {
            assert_eq!(counts.counts, [], "{}", counts.device);
        }
        assert_eq!(PortEvents::default().read(), []);
    }
}
