//! A process that keeps a journal is killed at any moment. Its journal is whole up to the last entry,
//! and can be replayed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tickcast_journal::layout::JOURNAL_LEN_MIN;
use tickcast_journal::{
    EntryBody, Journal, JournalOrigin, JournalSide, JournalWriter, JournaledPublisher,
    replay_publisher,
};
use tickcast_reliability::publish::{PublisherConfig, PublisherCore};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, Now, RecordNumber, Sequence, SourceId,
    SourcePosition,
};
use tickcast_transport::journal_file::{JournalFile, read};

/// Environment variable: the file in which this program, run as a child, keeps a journal until it is killed.
const FILE: &str = "TICKCAST_KILLED_RECORDER";
/// Number of kills. About one moment in some hundreds has an entry that counts and is not whole.
const ROUNDS: u64 = 150;
const FAN_OUT: FanOutId = FanOutId(0);

fn publisher(path: &Path) -> JournaledPublisher {
    let geometry = Geometry::new(1024, 16).unwrap();
    let identity = RingIdentity {
        channel: ChannelId(1),
        epoch: Epoch(2),
        config_hash: ConfigHash(3),
        boot_id: [0; 16],
        fan_outs: 1,
        first_sequence: Sequence(1),
        first_record: RecordNumber(1),
    };
    let ring = RingWriter::create(Arc::new(HeapMemory::new(geometry)), geometry, identity).unwrap();
    let core = PublisherCore::new(PublisherConfig::default(), ring, Arc::default(), Nanos(0));
    let origin = JournalOrigin {
        side: JournalSide::Publisher,
        ..JournalOrigin::default()
    };
    let file = JournalFile::create(path, JOURNAL_LEN_MIN).unwrap();
    let mut publisher = JournaledPublisher::new(core);
    publisher.keep_journal(JournalWriter::new(Box::new(file), &origin).unwrap());
    publisher
}

/// Publishes in virtual time until it is killed, and does little besides writing its journal.
#[test]
#[ignore = "it runs until it is killed, and is started by the test below"]
fn write_until_killed() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let mut publisher = publisher(Path::new(&path));
    let mut message = RecordBatch::default();
    message.put(&MboMsg::default());
    for n in 1.. {
        let now = Now {
            monotonic: Nanos(n * 1_000),
            utc: Nanos(n),
        };
        let published = publisher.publish(&message, SourceId(1), SourcePosition(n), now);
        published.unwrap();
        publisher.flush(now, true);
        let sealed = publisher.sealed();
        // Repeated more often than necessary, which is the fastest way to the next entry.
        (0..32).for_each(|_| publisher.handle_posted(FAN_OUT, sealed));
        publisher.handle_completed(FAN_OUT, sealed);
    }
}

struct Victim {
    child: Child,
    path: PathBuf,
}

impl Victim {
    fn start(round: u64) -> Self {
        let name = format!("tickcast-killed-{}-{round}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "killed_writer::write_until_killed"])
            .env(FILE, &path)
            .stdout(Stdio::null())
            .spawn();
        let child = child.unwrap();
        Self { child, path }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn journal_of_killed_process_replays_identically() {
    for round in 0..ROUNDS {
        let mut victim = Victim::start(round);
        // Killed in the first lap of the file, or in a later one.
        let is_due = |it: Journal| round.is_multiple_of(2) || !it.is_whole();
        while !read(&victim.path).is_ok_and(|it| Journal::read(it).is_ok_and(is_due)) {
            assert_eq!(victim.child.try_wait().unwrap(), None, "it ended");
            std::thread::sleep(Duration::from_micros(100));
        }
        victim.kill();
        let journal = Journal::read(read(&victim.path).unwrap()).unwrap();
        let mut posted = Sequence::NONE;
        for entry in journal.entries() {
            let entry = entry.unwrap_or_else(|error| panic!("round {round}: {error}"));
            if let EntryBody::Posted(_, up_to) = entry.what {
                // The bytes before belong to an earlier lap.
                assert!((posted.0..=posted.0 + 1).contains(&up_to.0) || posted == Sequence::NONE);
                posted = up_to;
            }
        }
        let again = replay_publisher(&journal);
        let outcome = (again.difference, again.stopped);
        assert_eq!(outcome, (None, None), "round {round}");
        let sealed = again.core.unwrap().sealed();
        assert!((posted.0..=posted.0 + 1).contains(&sealed.0));
    }
}
