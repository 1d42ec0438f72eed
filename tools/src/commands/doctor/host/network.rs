//! Checks of sockets: buffers, drops, busy polling.

use super::super::check::{Check, Fix, Subject};
use super::wanted::Wanted;
use crate::commands::tree::Tree;

/// Size of a receive buffer that a burst at 10 Gbit/s fills in 6 ms.
const BUFFER_ENOUGH_BYTES: u64 = 8 << 20;
/// Time for which a socket polls its device, in microseconds: the kernel's documentation recommends it, and
/// it is longer than the interval of datagrams in a burst.
const BUSY_POLL_US: u64 = 50;
const SNMP: &str = "/proc/net/snmp";

/// Runs all checks of sockets.
pub(super) fn checks(tree: &Tree, wanted: &Wanted) -> Vec<Check> {
    let (receive, send) = (wanted.receive_buffer_bytes, wanted.send_buffer_bytes);
    vec![
        buffer(tree, "rmem_max", receive, wanted),
        buffer(tree, "wmem_max", send, wanted),
        drops(tree, wanted),
        busy_poll(tree, wanted),
    ]
}

/// Checks the limit of a kind of buffer against the config's request.
fn buffer(tree: &Tree, name: &str, asked: Option<u64>, wanted: &Wanted) -> Check {
    let id = Subject::SocketBuffers;
    let Some(bytes) = tree.number(&format!("/proc/sys/net/core/{name}")) else {
        return Check::unknown(id, format!("this system does not report net.core.{name}"));
    };
    let name = format!("net.core.{name}");
    let needed = asked.unwrap_or(BUFFER_ENOUGH_BYTES);
    let found = match asked {
        Some(asked) => format!("{name} is {bytes}, and this config requests {asked}"),
        None => format!("{name} is {bytes}"),
    };
    // Without a request in the config, the default of the kernel is enough to send.
    let has_config = wanted.is_configured || wanted.is_subscriber;
    if bytes >= needed || (has_config && asked.is_none() && name.ends_with("wmem_max")) {
        return Check::ok(id, found);
    }
    let check = if asked.is_some() {
        Check::warning
    } else {
        Check::note
    };
    check(
        id,
        found,
        "the kernel grants no larger buffer, and a burst that exceeds it is dropped and repaired; a \
         process with CAP_NET_ADMIN may exceed the limit",
        "",
    )
    .fixed_by([Fix::sysctl(&name, needed, bytes)])
}

/// Reports datagrams that found no room in a socket.
fn drops(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::SocketDrops;
    let (mut counted, mut is_reported) = (Vec::new(), false);
    for name in ["RcvbufErrors", "SndbufErrors", "MemErrors"] {
        let count = tree.counter(SNMP, "Udp", name);
        is_reported |= count.is_some();
        if let Some(count @ 1..) = count {
            counted.push(format!("{name} {count}"));
        }
    }
    if !is_reported {
        return Check::unknown(id, "this system does not report them");
    }
    if counted.is_empty() {
        return Check::ok(id, "no datagram found a socket's buffer full");
    }
    let of_config = drops_at_ports(tree, wanted);
    let found = match of_config {
        0 => format!("since boot, by all sockets: {}", counted.join(", ")),
        count => format!(
            "{count} datagrams at sockets of this config's ports; since boot, by all sockets: {}",
            counted.join(", ")
        ),
    };
    let check = if of_config > 0 {
        Check::warning
    } else {
        Check::note
    };
    check(
        id,
        found,
        "the application did not poll in time for its buffer; each datagram was repaired, or lost",
        "if `nstat -az UdpRcvbufErrors` still grows: a larger receive buffer, or a core for the \
         application",
    )
}

/// Returns the datagrams that open sockets of the config's ports have dropped (`/proc/net/udp`).
fn drops_at_ports(tree: &Tree, wanted: &Wanted) -> u64 {
    let lines = wanted.sent.iter().chain(&wanted.received);
    let ports: Vec<u16> = lines.map(|line| line.group.port()).collect();
    let text = tree.text("/proc/net/udp").unwrap_or_default();
    let dropped = text.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let (_, port) = columns.nth(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let dropped: u64 = columns.last()?.parse().ok()?;
        (port > 0 && ports.contains(&port)).then_some(dropped)
    });
    dropped.fold(0, u64::saturating_add)
}

fn busy_poll(tree: &Tree, wanted: &Wanted) -> Check {
    let id = Subject::BusyPoll;
    const NAME: &str = "net.core.busy_read";
    let Some(us) = tree.number("/proc/sys/net/core/busy_read") else {
        return Check::unknown(id, format!("this system does not report {NAME}"));
    };
    if !wanted.busy_polled.is_empty() {
        return Check::ok(
            id,
            format!("{NAME} is {us} us, and inputs have busy_poll_us"),
        );
    }
    if us > 0 || !wanted.spins || wanted.networks().next().is_none() {
        return Check::ok(id, format!("{NAME} is {us} us"));
    }
    Check::note(
        id,
        format!("{NAME} is 0, and the threads of this config spin"),
        "a spinning thread then waits for an interrupt before the kernel hands it a datagram; with \
         busy polling it asks the device itself",
        "or set it for some sockets only: busy_poll_us of an input, --busy-poll-us of tickcast listen, \
         busy_poll of a subscriber's builder",
    )
    .fixed_by([Fix::sysctl(NAME, BUSY_POLL_US, us)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::wanted;
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    fn runs(check: &Check) -> Vec<&str> {
        check.commands().iter().map(Fix::run).collect()
    }

    #[test]
    fn socket_buffer_limit_below_the_request_is_reported() {
        let faked = FakedTree::of(&[("/proc/sys/net/core/rmem_max", "4194304\n")]);
        let verdicts = |asked, wanted: &Wanted| {
            let check = buffer(&faked.tree(), "rmem_max", asked, wanted);
            (check.verdict(), runs(&check).concat())
        };
        let none = Wanted::default();
        let set = |bytes: u64| format!("sysctl -w net.core.rmem_max={bytes}");
        assert_eq!(verdicts(None, &none), (Verdict::Note, set(8 << 20)));
        let asked = verdicts(Some(16 << 20), &none);
        assert_eq!(asked, (Verdict::Warning, set(16 << 20)));
        let ok = (Verdict::Ok, String::new());
        assert_eq!(verdicts(Some(4 << 20), &none), ok);
        let unknown = buffer(&faked.tree(), "wmem_max", None, &none);
        assert_eq!(unknown.verdict(), Verdict::Unknown);
        faked.put("/proc/sys/net/core/wmem_max", "212992\n");
        let check = |wanted: &Wanted| buffer(&faked.tree(), "wmem_max", None, wanted).verdict();
        assert_eq!(check(&none), Verdict::Note);
        assert_eq!(check(&wanted(json!({}))), Verdict::Ok);
        let subscriber = Wanted {
            is_subscriber: true,
            ..Wanted::default()
        };
        assert_eq!(check(&subscriber), Verdict::Ok);
    }

    #[test]
    fn drops_of_sockets_are_reported() {
        let snmp = |count: u64| format!("Udp: InDatagrams RcvbufErrors\nUdp: 5 {count}\n");
        let faked = FakedTree::of(&[(SNMP, &snmp(0))]);
        let wanted = wanted(json!({}));
        assert_eq!(drops(&faked.tree(), &wanted).verdict(), Verdict::Ok);
        faked.put(SNMP, snmp(9));
        let check = drops(&faked.tree(), &wanted);
        assert_eq!(check.verdict(), Verdict::Note);
        assert!(check.found().contains("RcvbufErrors 9"), "{check}");
        // Port 7590, that of the config, is 1DA6.
        let udp = "  sl  local_address rem_address drops\n\
                   1: 015AFFEF:1DA6 00000000:0000 07 0:0 00:0 0 0 0 5 2 0 7\n\
                   2: 015AFFEF:1DA7 00000000:0000 07 0:0 00:0 0 0 0 5 2 0 100\n\
                   odd\n3: 0:XXXX 1\n";
        faked.put("/proc/net/udp", udp);
        let check = drops(&faked.tree(), &wanted);
        assert_eq!(check.verdict(), Verdict::Warning);
        assert!(check.found().starts_with("7 datagrams at"), "{check}");
    }

    #[test]
    fn interrupts_in_place_of_busy_polling_are_reported() {
        let faked = FakedTree::of(&[("/proc/sys/net/core/busy_read", "0\n")]);
        let spins = json!({ "threads": { "idle": "spin" } });
        let check = busy_poll(&faked.tree(), &wanted(spins.clone()));
        assert_eq!(check.verdict(), Verdict::Note);
        assert_eq!(runs(&check), ["sysctl -w net.core.busy_read=50"]);
        let verdict = |wanted| busy_poll(&faked.tree(), &wanted).verdict();
        assert_eq!(verdict(Wanted::default()), Verdict::Ok);
        assert_eq!(verdict(wanted(json!({}))), Verdict::Ok, "it sleeps");
        let input = json!([{
            "source": 1, "kind": "udp", "busy_poll_us": 50, "lines": [{ "listen": "239.1.1.1:100" }],
        }]);
        let polls = json!({ "threads": { "idle": "spin" }, "inputs": input });
        assert_eq!(verdict(wanted(polls)), Verdict::Ok, "its input polls");
        faked.put("/proc/sys/net/core/busy_read", "50\n");
        let check = busy_poll(&faked.tree(), &wanted(spins));
        assert_eq!(check.verdict(), Verdict::Ok);
    }
}
