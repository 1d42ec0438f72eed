//! The entries of journals as text: the inputs of the cores, and the events around them.

use tickcast_journal::{Note, Published, Served};
use tickcast_reliability::delivery::Event;
use tickcast_reliability::publish::PublisherEvent;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::wire::Kind;

use tickcast_tools::support::table::span;

/// Returns the name of a path's connection.
pub(super) const fn connection(path: Path) -> &'static str {
    match path {
        Path::Repair => "repair connection",
        Path::Replay => "replay connection",
        Path::Nack => "NACK connection",
        Path::Read => "READ connection",
    }
}

/// Returns the name of a datagram's kind.
pub(super) const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Data => "data",
        Kind::Event => "event",
        Kind::Heartbeat => "heartbeat",
        Kind::End => "end",
    }
}

/// Returns the text of an input of a subscriber's core. Returns `None` for the inputs that every poll or
/// datagram causes.
pub(super) fn input(input: &SubscriberInput<'_>) -> Option<String> {
    Some(match input {
        SubscriberInput::UseNackPath(_)
        | SubscriberInput::UseReadPath(_)
        | SubscriberInput::UseInboxes(_) => "the paths for repair were chosen".into(),
        SubscriberInput::Connected(path) => format!("{}: established", connection(*path)),
        SubscriberInput::Disconnected(path, reason) => {
            format!("{}: down ({reason})", connection(*path))
        }
        SubscriberInput::NackUnusable => "this host can't make a NACK connection".into(),
        SubscriberInput::ReadUnusable => "this host can't READ".into(),
        SubscriberInput::Limits(_) => "READ connection: its limits are known".into(),
        SubscriberInput::Malformed { channel, line, len } => {
            format!("channel {channel}, line {line}: {len} bytes that are not a datagram")
        }
        SubscriberInput::UnknownSender(channel) => {
            format!("channel {channel}: a datagram of an unknown sender")
        }
        SubscriberInput::Overrun {
            channel,
            epoch,
            range,
        } => {
            format!("channel {channel}: overrun in the publisher's ring, epoch {epoch}, {range}")
        }
        SubscriberInput::Listening { channel, lines } => {
            format!("channel {channel}: listening on {lines} lines")
        }
        SubscriberInput::Leave(cause) => format!("the application leaves ({cause})"),
        SubscriberInput::Rejoin { channel, .. } => {
            format!("channel {channel}: the application rejoins it")
        }
        SubscriberInput::Read { bytes, .. } => format!("READ brought {} bytes", bytes.len()),
        _ => return None,
    })
}

/// Returns the text of an input of a publisher's core that has no entry type of its own.
pub(super) fn published(it: &Published) -> String {
    match it {
        Published::Event(event, _) => format!("published: {}", Event::Stream(event.clone())),
        Published::TooLarge {
            source,
            position,
            records,
            bytes,
            ..
        } => format!(
            "source {source}: the message at {position} has {records} records of {bytes} bytes, too large for a datagram"
        ),
        Published::End(_) => "the session ended".into(),
        Published::Stop => "no heartbeats from here on".into(),
        Published::Group(subscribers, hold_off_us) => {
            format!("{subscribers} subscribers, which wait {hold_off_us} us before a first NACK")
        }
        _ => "another input".into(),
    }
}

/// Returns the text of an event of a publisher's core.
pub(super) fn happened(it: &PublisherEvent) -> String {
    match it {
        PublisherEvent::FanOutReset { fan_out, skipped } => match skipped {
            Some(range) => format!("fan-out {fan_out}: reset, {range} never sent"),
            None => format!("fan-out {fan_out}: reset"),
        },
        PublisherEvent::SourceLost { source, position } => {
            format!("source {source}: the message at {position} was too large for a datagram")
        }
        _ => "another event of the publisher".into(),
    }
}

/// Returns the text of an event of a repair service.
pub(super) fn served(it: &Served) -> String {
    match it {
        Served::Connected(peer) => format!("peer {}: connected", peer.0),
        Served::Disconnected(peer) => format!("peer {}: disconnected", peer.0),
        Served::Broken(peer, what) => format!(
            "peer {}: sent bytes that are not a message ({what})",
            peer.0
        ),
        Served::Joined(peer, name, channels) => {
            let channels: Vec<_> = channels.iter().map(ToString::to_string).collect();
            let channels = channels.join(", ");
            format!("peer {}: {name} joined channels {channels}", peer.0)
        }
        Served::Left(peer, name, true) => format!("peer {}: {name} left", peer.0),
        Served::Left(peer, name, false) => format!("peer {}: {name} disappeared", peer.0),
        Served::TurnedAway(peer, text) => format!("peer {}: rejected, {text}", peer.0),
        Served::Closed(peer, text) => format!("peer {}: closed, {text}", peer.0),
        Served::Slow(peer, name, channel, behind) => format!(
            "peer {}: {name} is {behind} datagrams behind on channel {channel}",
            peer.0
        ),
        _ => "another event of a connection".into(),
    }
}

/// Returns the text of a note about the recording process itself.
pub(super) fn note(it: &Note) -> String {
    match it {
        Note::Overrun(channel, items) => format!(
            "channel {channel}: {items} items of the local ring were overwritten before the \
             application read them"
        ),
        Note::Unread(source, it) => format!(
            "source {source}: the kernel dropped {} packets before they were read, after a pause of {}",
            it.packets,
            span(it.paused.0)
        ),
        _ => "another note".into(),
    }
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::delivery::LinkDownReason;
    use tickcast_reliability::serve::PeerId;
    use tickcast_reliability::types::ChannelId;

    use super::*;

    #[test]
    fn entries_are_words_without_names_of_types() {
        let down = SubscriberInput::Disconnected(Path::Nack, LinkDownReason::Closed);
        let words = input(&down);
        assert_eq!(words.as_deref(), Some("NACK connection: down (closed)"));
        let joined = Served::Joined(PeerId(3), "risk".into(), vec![ChannelId(1), ChannelId(2)]);
        assert_eq!(served(&joined), "peer 3: risk joined channels 1, 2");
        assert_eq!(published(&Published::Stop), "no heartbeats from here on");
    }
}
