//! UDP that is no feed: services by their port, and tunnels that are not read.

/// Returns the name of a service that is never a feed.
pub(super) const fn service(port: u16) -> Option<&'static str> {
    Some(match port {
        53 => "DNS",
        67 | 68 => "DHCP",
        123 => "NTP",
        137 | 138 => "NetBIOS",
        161 | 162 => "SNMP",
        319 | 320 => "PTP",
        514 => "syslog",
        546 | 547 => "DHCPv6",
        1900 => "SSDP",
        1985 => "HSRP",
        3784 => "BFD",
        5353 => "mDNS",
        5355 => "LLMNR",
        6343 => "sFlow",
        _ => return None,
    })
}

/// Returns the name of a tunnel over UDP that is not read, by its port and first bytes.
pub(super) fn tunnel(port: u16, payload: &[u8]) -> Option<&'static str> {
    let [first, second, third, fourth] = *payload.first_chunk()?;
    let kind = u16::from_be_bytes([third, fourth]);
    match port {
        2152 if first >> 4 == 3 && second == 0xff => Some("GTP-U"),
        4789 | 4790 | 8472 if first & 0xf0 == 0 && first & 4 != 0 => Some("VXLAN-GPE"),
        // With or without a group policy.
        4789 | 4790 | 8472 if first & 0x78 == 8 => Some("VXLAN of an unknown extension"),
        6081 if first >> 6 == 0 && matches!(kind, 0x6558 | 0x0800 | 0x86dd) => Some("Geneve"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_by_their_ports() {
        let named: Vec<_> = (0..=u16::MAX)
            .filter_map(|port| Some((port, service(port)?)))
            .collect();
        let expected = [
            (53, "DNS"),
            (67, "DHCP"),
            (68, "DHCP"),
            (123, "NTP"),
            (137, "NetBIOS"),
            (138, "NetBIOS"),
            (161, "SNMP"),
            (162, "SNMP"),
            (319, "PTP"),
            (320, "PTP"),
            (514, "syslog"),
            (546, "DHCPv6"),
            (547, "DHCPv6"),
            (1900, "SSDP"),
            (1985, "HSRP"),
            (3784, "BFD"),
            (5353, "mDNS"),
            (5355, "LLMNR"),
            (6343, "sFlow"),
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn tunnels_are_named_by_port_and_first_bytes() {
        for (port, payload, name) in [
            (2152, [0x30, 0xff, 0, 0], Some("GTP-U")),
            (2152, [0x3f, 0xff, 9, 9], Some("GTP-U")),
            (2152, [0x20, 0xff, 0, 0], None),
            (2152, [0x30, 0xfe, 0, 0], None),
            (4790, [0x04, 0, 0, 0], Some("VXLAN-GPE")),
            (4790, [0x0c, 9, 9, 9], Some("VXLAN-GPE")),
            (4789, [0x0c, 0, 0, 1], Some("VXLAN-GPE")),
            (8472, [0x0c, 0, 0, 1], Some("VXLAN-GPE")),
            (
                4789,
                [0x08, 0x20, 0, 0],
                Some("VXLAN of an unknown extension"),
            ),
            (8472, [0x89, 0, 0, 0], Some("VXLAN of an unknown extension")),
            (4789, [0x48, 0, 0, 0], None),
            (4788, [0x0c, 0, 0, 1], None),
            (4790, [0x14, 0, 0, 0], None),
            (6081, [0x00, 0, 0x65, 0x58], Some("Geneve")),
            (6081, [0x3f, 9, 0x08, 0x00], Some("Geneve")),
            (6081, [0x00, 0, 0x86, 0xdd], Some("Geneve")),
            (6081, [0x40, 0, 0x65, 0x58], None),
            (6081, [0x00, 0, 0x08, 0x06], None),
            (6082, [0x00, 0, 0x65, 0x58], None),
        ] {
            assert_eq!(tunnel(port, &payload), name, "{port} {payload:02x?}");
            assert_eq!(tunnel(port, &payload[..3]), None, "too short");
        }
    }
}
