//! A host of the run, on either side of the conversation, with one typed call for each order.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use tickcast_tools::support::conversation::{Conversation, TalkError};
use tickcast_tools::support::plain::one_line;
use tickcast_tools::support::signals::Stop;

use super::order::{
    Answer, Arrived, Heard, HostFacts, Line, Listening, Message, NotDone, Order, Publication,
    Published, Repair, Volley,
};
use super::worker::Worker;

/// Most counters of a host.
const COUNTERS_MAX: usize = 4_096;
/// Longest text of the other host, in characters. The last lines of a log fit.
const TEXT_LEN_MAX: usize = 4_096;

/// A host that carries out orders.
pub(super) enum Site {
    Here(Box<Worker>),
    There(Conversation<Message>, Stop),
    /// The other host, after the conversation with it broke. A late answer would belong to another order.
    Gone(String),
}

impl Site {
    fn perform(&mut self, order: Order) -> Result<Answer, NotDone> {
        let answer = match self {
            Self::Here(worker) => return worker.perform(&order),
            Self::There(conversation, stop) => ask(conversation, stop, order),
            Self::Gone(reason) => return Err(NotDone::Gone(reason.clone())),
        };
        if let Err(NotDone::Gone(reason)) = &answer {
            *self = Self::Gone(reason.clone());
        }
        answer
    }

    fn done(&mut self, order: Order) -> Result<(), NotDone> {
        match self.perform(order)? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn facts(&mut self) -> Result<HostFacts, NotDone> {
        match self.perform(Order::Facts)? {
            Answer::Facts(facts) => Ok(facts),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn counters(&mut self) -> Result<BTreeMap<String, u64>, NotDone> {
        match self.perform(Order::Counters)? {
            Answer::Counters(all) => Ok(all),
            _ => Err(unexpected()),
        }
    }

    /// Returns the defects of READ and of cursors.
    pub(super) fn prove(&mut self, line: Line) -> Result<[Option<String>; 2], NotDone> {
        match self.perform(Order::Prove(line))? {
            Answer::Proof(read, cursors) => Ok([read, cursors]),
            _ => Err(unexpected()),
        }
    }

    /// Receives datagrams from a line of the other host until [`Self::count`].
    pub(super) fn receive(&mut self, volley: Volley, from: &HostFacts) -> Result<(), NotDone> {
        let sender = from.line(volley.line).ok_or_else(unexpected)?;
        self.done(Order::Receive(volley, sender.address, sender.gid))
    }

    pub(super) fn send(&mut self, volley: Volley) -> Result<u32, NotDone> {
        match self.perform(Order::Send(volley))? {
            Answer::Sent(count) => Ok(count),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn count(&mut self) -> Result<Arrived, NotDone> {
        match self.perform(Order::Count)? {
            Answer::Arrived(arrived) => Ok(arrived),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn publish(&mut self, publication: Publication) -> Result<(), NotDone> {
        self.done(Order::Publish(publication))
    }

    /// Waits for the end of the publisher, then ends its session.
    pub(super) fn end_publisher(&mut self, limit: Duration) -> Result<Published, NotDone> {
        match self.perform(Order::EndPublisher(limit.as_secs()))? {
            Answer::Published(published) => Ok(published),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn kill_publisher(&mut self) -> Result<(), NotDone> {
        self.done(Order::KillPublisher)
    }

    pub(super) fn promote(&mut self) -> Result<(), NotDone> {
        self.done(Order::Promote)
    }

    pub(super) fn listen(&mut self, listening: Listening) -> Result<(), NotDone> {
        self.done(Order::Listen(listening))
    }

    /// Waits until each subscriber can repair this way.
    pub(super) fn wait_for_repair(
        &mut self,
        repair: Repair,
        limit: Duration,
    ) -> Result<(), NotDone> {
        self.done(Order::AwaitRepair(repair, limit.as_secs()))
    }

    /// Waits until each subscriber has delivered so many records more.
    pub(super) fn wait_for(&mut self, records: u64, limit: Duration) -> Result<(), NotDone> {
        self.done(Order::Await(records, limit.as_secs()))
    }

    /// Stops all subscribers for a time.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), NotDone> {
        self.done(Order::Pause(ms(time)))
    }

    /// Waits for the end of all subscribers, then ends them.
    pub(super) fn heard(&mut self, limit: Duration) -> Result<Vec<Heard>, NotDone> {
        match self.perform(Order::Heard(limit.as_secs()))? {
            Answer::Heard(all) => Ok(all),
            _ => Err(unexpected()),
        }
    }

    /// Kills the publisher and all subscribers that still run.
    pub(super) fn stop(&mut self) -> Result<(), NotDone> {
        self.done(Order::Stop)
    }

    /// Takes the link of a line down for a time.
    pub(super) fn break_link(&mut self, line: Line, time: Duration) -> Result<(), NotDone> {
        self.done(Order::BreakLink(line, ms(time)))
    }

    /// Returns how often a line fell silent, for each subscriber.
    pub(super) fn lines_down(&mut self) -> Result<Vec<u64>, NotDone> {
        match self.perform(Order::LinesDown)? {
            Answer::LinesDown(all) => Ok(all),
            _ => Err(unexpected()),
        }
    }

    /// Returns the publishers so far, and the accesses beyond a grant that they noted.
    pub(super) fn violations(&mut self) -> Result<(u64, u64), NotDone> {
        match self.perform(Order::Violations)? {
            Answer::Violations(publishers, violations) => Ok((publishers, violations)),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn serve_latency(&mut self) -> Result<(), NotDone> {
        self.done(Order::ServeLatency)
    }

    /// Returns the typical one-way latency to the server at `address`, in nanoseconds.
    pub(super) fn measure_latency(&mut self, address: Ipv4Addr) -> Result<u64, NotDone> {
        match self.perform(Order::MeasureLatency(address))? {
            Answer::Latency(ns) => Ok(ns),
            _ => Err(unexpected()),
        }
    }

    /// Ends the run on the other host.
    pub(super) fn leave(&mut self) {
        if let Self::There(conversation, _) = self {
            conversation.extend(Duration::from_secs(5));
            // The report is complete without it.
            let _ = conversation.send(&Message::Bye);
        }
    }
}

fn unexpected() -> NotDone {
    NotDone::Gone("it answered another order".into())
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Sends an order to the other host. Returns its answer, checked.
fn ask(
    conversation: &mut Conversation<Message>,
    stop: &Stop,
    order: Order,
) -> Result<Answer, NotDone> {
    let gone = |error: TalkError| NotDone::Gone(error.to_string());
    let limit = order.time_max();
    conversation.extend(limit);
    conversation.send(&Message::Order(order)).map_err(gone)?;
    match conversation
        .receive_unless(limit, || stop.asked())
        .map_err(gone)?
    {
        None => Err(NotDone::Gone("the run was interrupted".into())),
        Some(Message::Answer(Ok(answer))) => checked(answer),
        Some(Message::Answer(Err(reason))) => Err(match reason {
            NotDone::Unavailable(text) => NotDone::Unavailable(plain(&text)),
            NotDone::Failed(text) => NotDone::Failed(plain(&text)),
            NotDone::Gone(text) => NotDone::Gone(plain(&text)),
        }),
        _ => Err(gone(TalkError::Unexpected("an answer"))),
    }
}

/// Checks an answer of the other host. Its texts go to terminals and pages.
///
/// # Errors
/// Returns [`NotDone::Gone`] if it can't be that of this program.
fn checked(answer: Answer) -> Result<Answer, NotDone> {
    let is_digest = |text: &str| text.len() <= 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    Ok(match answer {
        Answer::Facts(mut facts) => {
            facts.name = plain(&facts.name);
            facts.more = plain_facts(facts.more);
            facts.lines.truncate(2);
            for line in &mut facts.lines {
                line.interface = plain(&line.interface);
                line.device = plain(&line.device);
                line.more = plain_facts(std::mem::take(&mut line.more));
            }
            Answer::Facts(facts)
        }
        Answer::Counters(all) => {
            let all = all.into_iter().take(COUNTERS_MAX);
            Answer::Counters(all.map(|(name, value)| (plain(&name), value)).collect())
        }
        Answer::Proof(read, cursors) => {
            let plain = |defect: Option<String>| defect.map(|it| plain(&it));
            Answer::Proof(plain(read), plain(cursors))
        }
        Answer::Published(published) if !is_digest(&published.digest) => return Err(unexpected()),
        Answer::Heard(all) if !all.iter().all(|it| is_digest(&it.digest)) => {
            return Err(unexpected());
        }
        answer => answer,
    })
}

fn plain_facts(facts: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let facts = facts.into_iter().take(64);
    facts
        .map(|(name, fact)| (plain(&name), plain(&fact)))
        .collect()
}

/// Returns the end of a text of the other host, without control characters. The cause stands at the end of a
/// log.
fn plain(text: &str) -> String {
    let left_out = text.chars().count().saturating_sub(TEXT_LEN_MAX);
    one_line(text).chars().skip(left_out).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_hostile_host_control_no_terminal() {
        let hostile = "\u{1b}[2J\n".repeat(10_000);
        let proof = checked(Answer::Proof(Some(hostile.clone()), None)).unwrap();
        let Answer::Proof(Some(defect), None) = proof else {
            panic!("{proof:?}");
        };
        assert!(!defect.contains(['\u{1b}', '\n']) && defect.len() == TEXT_LEN_MAX);
        let named = |digest: &str| Heard {
            digest: digest.into(),
            ..Heard::default()
        };
        assert!(checked(Answer::Heard(vec![named("0a"), named("")])).is_ok());
        assert!(checked(Answer::Heard(vec![named("0a"), named(&hostile)])).is_err());
        let published = Published {
            records: 1,
            digest: "<b>".into(),
        };
        assert!(checked(Answer::Published(published)).is_err());
        let many = (0..100_000).map(|it| (format!("{it}\n"), 1)).collect();
        let Answer::Counters(counters) = checked(Answer::Counters(many)).unwrap() else {
            panic!("other counters");
        };
        assert_eq!(counters.len(), COUNTERS_MAX);
        assert!(counters.keys().all(|it| !it.contains('\n')));
    }
}
