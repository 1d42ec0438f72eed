//! The journals of a publisher: a file on tmpfs for each deciding core. Each has one writer,
//! so no thread waits for another (docs/decisions/0012-a-publisher-has-a-record-for-each-core.md).

use tickcast_journal::{JournalOrigin, JournalSide, JournalWriter, Sending};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::ChannelId;
use tickcast_transport::SendStats;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::files::create_directory;
use tickcast_transport::journal_file::JournalFile;
use tickcast_transport::shm::{boot_id, boot_id_text};

use crate::config::Config;
use crate::config::journal::REPAIR;
use crate::error::PublisherError;

/// Returns the journal of a channel, if configured and available.
pub(crate) fn of_channel(config: &Config, channel: ChannelId) -> Option<JournalWriter> {
    open_or_none(config, &channel.to_string(), JournalSide::Publisher)
}

/// Returns the journal of repair, if configured and available.
pub(crate) fn of_repair(config: &Config) -> Option<JournalWriter> {
    open_or_none(config, REPAIR, JournalSide::Repair)
}

/// Returns a journal, or `None` after logging a failure: a full tmpfs must not prevent the publisher
/// from running.
fn open_or_none(config: &Config, of: &str, side: JournalSide) -> Option<JournalWriter> {
    let made = open(config, of, side);
    made.unwrap_or_else(|error| {
        tracing::error!("{error}; the publisher continues without a journal");
        None
    })
}

fn open(
    config: &Config,
    of: &str,
    side: JournalSide,
) -> Result<Option<JournalWriter>, PublisherError> {
    let Some(settings) = &config.journal else {
        return Ok(None);
    };
    let path = settings.path(config, of);
    let failed = |reason: String| PublisherError::Journal {
        path: path.clone(),
        reason,
    };
    let made = create_directory(&settings.directory);
    made.map_err(|error| failed(error.to_string()))?;
    let clock = SystemClock;
    let origin = JournalOrigin {
        name: format!("{}.{of}", config.name),
        process: std::process::id(),
        boot_id: boot_id_text(boot_id().unwrap_or_default()),
        began: clock.now(),
        began_utc: clock.utc(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        side,
    };
    let file = JournalFile::create(&path, settings.bytes() as usize);
    let file = file.map_err(|error| failed(error.to_string()))?;
    let writer = JournalWriter::new(Box::new(file), &origin);
    let writer = writer.map_err(|error| failed(error.to_string()))?;
    Ok(Some(writer))
}

/// The line counts at the last note.
#[derive(Debug, Default)]
pub(crate) struct Noted(Vec<[Sending; LineId::MAX]>);

impl Noted {
    /// Returns a line's counts, if they are to be noted.
    pub(crate) fn changed(
        &mut self,
        fan_out: usize,
        line: usize,
        stats: &SendStats,
    ) -> Option<Sending> {
        let now = Sending {
            stalls: stats.stalls,
            refused: stats.refused,
            unpinned_sends_dropped: stats.unpinned_sends_dropped,
            flushed: stats.flushed,
            errno: stats.last_errno,
        };
        if self.0.len() <= fan_out {
            self.0.resize(fan_out + 1, Default::default());
        }
        let before = self.0[fan_out].get_mut(line)?;
        (std::mem::replace(before, now) != now).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publisher_runs_without_unwritable_journal() {
        let config = Config::parse(
            r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [],
                "journal": { "directory": "/dev/null/records" },
                "channels": [{ "id": 1, "name": "all", "slots": 1024,
                "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.2:7592" }] }] }] }"#,
        );
        let config = config.unwrap();
        let refused = open(&config, "repair", JournalSide::Repair).err().unwrap();
        assert!(
            refused
                .to_string()
                .contains("/dev/null/records/mine.repair.journal"),
            "{refused}"
        );
        assert!(of_repair(&config).is_none());
        assert!(of_channel(&config, ChannelId(1)).is_none());
    }
}
