//! Steps of the devices alone: accesses to memory, and datagrams of exact lengths.

use super::super::order::{Arrived, Line, NotDone, Volley};
use super::super::row::Row;
use super::{Acceptance, Bound};

/// Lengths around the limits of requests. Shorter datagrams travel within one: 188 bytes in the fastest
/// request of a ConnectX card, which the sender uses, and 252 in a longer one.
const LENGTHS: [u32; 6] = [64, 188, 189, 252, 253, 1_024];
/// Datagrams of each length.
const COUNT: u32 = 500;

impl Acceptance {
    pub(super) fn probe(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let mut wrong = Vec::new();
        let lines = self.hosts.lines();
        for line in &lines {
            for (is_here, site) in [(true, &mut self.hosts.here), (false, &mut self.hosts.there)] {
                let [read, cursors] = site.prove(*line)?;
                let place = if is_here { "here" } else { "there" };
                // Steps about READ use line A of the publisher.
                if is_here && line == &Line::A && read.is_some() {
                    self.read_defect.clone_from(&read);
                }
                for (what, defect) in [("READ", read), ("cursors", cursors)] {
                    let at = format!("line {} {place}", line.letter());
                    wrong.extend(defect.map(|it| format!("{at}: {what} not offered: {it}")));
                }
            }
        }
        let number = format!("{} devices probed", 2 * lines.len());
        Ok(vec![bound.judged(number, &wrong)])
    }

    pub(super) fn datagrams(&mut self, bound: Bound) -> Result<Vec<Row>, NotDone> {
        let mut rows = Vec::new();
        for line in self.hosts.lines() {
            for is_there in [true, false] {
                let (lens, wrong) = self.volleys(line, is_there)?;
                let way = if is_there { "there" } else { "back" };
                let lens: Vec<_> = lens.iter().map(u32::to_string).collect();
                let number = format!(
                    "line {} {way}: {COUNT} each of {} bytes",
                    line.letter(),
                    lens.join(", ")
                );
                rows.push(bound.judged(number, &wrong));
            }
        }
        Ok(rows)
    }

    /// Sends datagrams of all lengths one way. Returns the lengths, and the differences.
    fn volleys(&mut self, line: Line, is_there: bool) -> Result<(Vec<u32>, Vec<String>), NotDone> {
        let mtu = [&self.hosts.facts_here, &self.hosts.facts_there]
            .iter()
            .filter_map(|facts| Some(facts.line(line)?.mtu))
            .min();
        let mut lens: Vec<_> = LENGTHS.into_iter().chain(mtu).collect();
        lens.retain(|len| mtu.is_none_or(|mtu| *len <= mtu));
        lens.dedup();
        let hosts = &mut self.hosts;
        let (from, to, sender) = match is_there {
            true => (&mut hosts.here, &mut hosts.there, &hosts.facts_here),
            false => (&mut hosts.there, &mut hosts.here, &hosts.facts_there),
        };
        let mut wrong = Vec::new();
        for len in &lens {
            let volley = Volley {
                line,
                len: *len,
                count: COUNT,
            };
            to.receive(volley, sender)?;
            let sent = from.send(volley)?;
            wrong.extend(difference(*len, sent, to.count()?));
        }
        Ok((lens, wrong))
    }
}

/// Returns how the datagrams of one length differ from what was asked for.
fn difference(len: u32, sent: u32, arrived: Arrived) -> Option<String> {
    let complete = Arrived {
        whole: COUNT.into(),
        ..Arrived::default()
    };
    (sent != COUNT || arrived != complete).then(|| {
        format!(
            "{len} bytes: {sent} sent, {} whole, {} damaged, {} out of order",
            arrived.whole, arrived.damaged, arrived.out_of_order
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volley_differs_if_one_datagram_is_not_as_sent() {
        let arrived = |change: fn(&mut Arrived)| {
            let mut it = Arrived {
                whole: COUNT.into(),
                ..Arrived::default()
            };
            change(&mut it);
            it
        };
        assert_eq!(difference(64, COUNT, arrived(|_| ())), None);
        assert!(difference(64, COUNT - 1, arrived(|_| ())).is_some());
        assert!(difference(64, COUNT, arrived(|it| it.whole -= 1)).is_some());
        assert!(difference(64, COUNT, arrived(|it| it.damaged = 1)).is_some());
        assert!(difference(64, COUNT, arrived(|it| it.out_of_order = 1)).is_some());
    }
}
