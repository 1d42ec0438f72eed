//! An interval log as it is read.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use thiserror::Error;
use tickcast_log::Escaping;

use crate::clock::ClockOffset;
use crate::encoded::{Decoder, HISTOGRAM_LEN_MAX};

/// Bytes of the longest line that is read: the longest histogram in base64, behind its tag and times.
const LINE_LEN_MAX: u64 = HISTOGRAM_LEN_MAX / 2 * 3;

/// One line of an interval log.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The tag, `channel/stage`; empty without one.
    pub tag: String,
    /// The beginning, since 1970 if the log has no base time.
    pub begin: Duration,
    /// The length of the interval.
    pub length: Duration,
    /// The samples.
    pub samples: Histogram<u64>,
}

/// Reason that an interval log can't be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IntervalLogError {
    /// Reading failed.
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    /// A line is none of an interval log.
    #[error(
        "line {line} is none of an interval log; give a file that tickcast or another HdrHistogram writer wrote"
    )]
    Line {
        /// The line, from 1.
        line: usize,
    },
    /// A line is longer than any of an interval log.
    #[error(
        "line {line} has more than {LINE_LEN_MAX} bytes, so it is none of an interval log; remove it"
    )]
    LongLine {
        /// The line, from 1.
        line: usize,
    },
    /// The histogram of a line is damaged, or larger than any that is read.
    #[error("the histogram of {} at {begin_s:.3} s can't be read: {reason}; remove its line", shown(.tag))]
    Histogram {
        /// The tag of the line.
        tag: String,
        /// The beginning of the interval, in seconds.
        begin_s: f64,
        /// The error of the decoder.
        reason: String,
    },
}

/// Returns a tag in quotes, short and without control characters.
fn shown(tag: &str) -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = Escaping::write(&mut text, format_args!("{tag:?}"));
    text
}

/// Returns all intervals of a log, as [`each_interval`] passes them. Each takes some 100 kB, and 9 MB at
/// most.
///
/// # Errors
/// [`IntervalLogError`] names the first line that can't be read.
pub fn read_intervals(log: &[u8]) -> Result<Vec<Interval>, IntervalLogError> {
    let mut all = Vec::new();
    each_interval(log, |interval| all.push(interval))?;
    Ok(all)
}

/// Passes the intervals of a log, in its order, and holds one at a time. Times with a base time become times
/// since 1970. An incomplete last line is left out. Returns the worst offset of the clocks that it notes.
///
/// # Errors
/// [`IntervalLogError`] names the first line that can't be read.
pub fn each_interval(
    mut log: impl BufRead,
    mut each: impl FnMut(Interval),
) -> Result<Option<ClockOffset>, IntervalLogError> {
    let (mut base, mut counted, mut worst) = (Duration::ZERO, 0_u64, None);
    let (mut decoder, mut bytes) = (Decoder::default(), Vec::new());
    for line in 1.. {
        bytes.clear();
        let mut limited = log.by_ref().take(LINE_LEN_MAX);
        limited.read_until(b'\n', &mut bytes)?;
        let Some(text) = bytes.strip_suffix(b"\n") else {
            if bytes.len() as u64 == LINE_LEN_MAX {
                return Err(IntervalLogError::LongLine { line });
            }
            break;
        };
        if let Some(noted) = ClockOffset::parse(text) {
            worst = Some(worst.map_or(noted, |worst| noted.worse(worst)));
        }
        // One line at a time, because the parser looks for the end of a field in all that it is given.
        let entry = match IntervalLogIterator::new(&bytes).next() {
            Some(entry) => entry.map_err(|_| IntervalLogError::Line { line })?,
            None => continue,
        };
        let interval = match entry {
            LogEntry::StartTime(_) => continue,
            LogEntry::BaseTime(time) => {
                base = time;
                continue;
            }
            LogEntry::Interval(interval) => interval,
        };
        let tag = interval.tag().map_or("", |tag| tag.as_str()).to_owned();
        let begin = base.saturating_add(interval.start_timestamp());
        let damaged = |reason: String| IntervalLogError::Histogram {
            tag: tag.clone(),
            begin_s: begin.as_secs_f64(),
            reason,
        };
        let samples = decoder.decode(interval.encoded_histogram());
        let samples = samples.map_err(|error| damaged(error.to_string()))?;
        // Sums of counts must not overflow. The decoder's own sum stays at its maximum then.
        let sum = counted.checked_add(samples.len());
        counted = sum
            .filter(|sum| *sum < u64::MAX)
            .ok_or_else(|| damaged("its counts are too large".into()))?;
        let length = interval.duration();
        each(Interval {
            tag,
            begin,
            length,
            samples,
        });
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
    use tickcast_reliability::types::{Counter, Nanos};

    use super::*;
    use crate::log::{IntervalLog, Series};

    const BEGAN: Nanos = Nanos(1_700_000_000_250_000_000);

    fn histogram(values: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        for (value, count) in values {
            histogram.record_n(*value, *count).unwrap();
        }
        histogram
    }

    fn at(seconds: u64) -> Nanos {
        BEGAN.after(Nanos::from_secs(seconds))
    }

    fn read(path: &Path) -> Vec<Interval> {
        read_intervals(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn interval_has_counts_bounds_and_percentiles_of_its_samples() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        let failed = Counter::default();
        let mut log = IntervalLog::open(&path, "test", BEGAN).unwrap();
        let first = [(0, 1), (100, 90), (2_000, 8), (7_000_000, 1)];
        let total = histogram(&first);
        log.write(
            at(1),
            vec![Series::new("all", "repair", total.clone())],
            &failed,
        );
        let second = [(5_000, 3), (3_600_000_000_000, 1)];
        let both = histogram(&[&first[..], &second[..]].concat());
        log.write(
            at(3),
            vec![Series::new("all", "repair", both.clone())],
            &failed,
        );
        let intervals = read(&path);
        let [one, two] = &intervals[..] else {
            panic!("{intervals:?}");
        };
        assert_eq!(
            (one.begin, one.length),
            (Duration::from_nanos(BEGAN.0), Duration::from_secs(1))
        );
        assert_eq!(
            (two.begin, two.length),
            (Duration::from_nanos(at(1).0), Duration::from_secs(2))
        );
        assert_eq!((one.samples.len(), one.samples.min()), (100, 0));
        for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let expected = total.value_at_quantile(quantile);
            assert_eq!(
                one.samples.value_at_quantile(quantile),
                expected,
                "{quantile}"
            );
        }
        assert_eq!(one.samples.max(), total.max());
        assert_eq!(two.samples, histogram(&second));
        let mut sum = one.samples.clone();
        sum.add(&two.samples).unwrap();
        assert_eq!(sum, both, "the intervals add up to the total");
    }

    #[test]
    fn lines_name_channel_and_stage_and_skip_silence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        let failed = Counter::default();
        let mut log = IntervalLog::open(&path, "test", BEGAN).unwrap();
        let all = |counts: [u64; 3]| {
            let names = [
                ("a-l", "repair"),
                ("a-l", "replayed"),
                ("m, z/%\u{a0}", "repair"),
            ];
            let all = names.iter().zip(counts);
            all.map(|((channel, stage), n)| Series::new(channel, stage, histogram(&[(9, n)])))
                .collect::<Vec<_>>()
        };
        log.write(at(1), all([1, 0, 2]), &failed);
        log.write(at(2), all([1, 0, 2]), &failed);
        log.write(at(3), all([1, 4, 3]), &failed);
        let found: Vec<_> = read(&path)
            .into_iter()
            .map(|it| (it.tag, it.begin.as_nanos() as u64, it.samples.len()))
            .collect();
        let z = "m%2C%20z%2F%25%C2%A0/repair".to_owned();
        assert_eq!(
            found,
            [
                ("a-l/repair".into(), at(0).0, 1),
                (z.clone(), at(0).0, 2),
                ("a-l/replayed".into(), at(2).0, 4),
                (z, at(2).0, 1),
            ]
        );
    }

    #[test]
    fn log_has_the_head_of_version_1_3_once_per_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        drop(IntervalLog::open(&path, "a \"name\"\nof two lines", BEGAN).unwrap());
        let head = "#[Logged by a \\\"name\\\"\\nof two lines, values in nanoseconds, times in UTC]\n\
             #[Histogram log format version 1.3]\n\
             #[StartTime: 1700000000.250 (seconds since epoch), 2023-11-14T22:13:20.250Z]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), head);
        let mut log = IntervalLog::open(&path, "second", at(5)).unwrap();
        let series = || vec![Series::new("all", "repair", histogram(&[(9, 1)]))];
        log.write(at(6), series(), &Counter::default());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.matches("#[Histogram log format version 1.3]").count(),
            2
        );
        assert!(
            text.contains("Tag=all/repair,1700000005.250,1.000,9.000,HISTF"),
            "{text}"
        );
        // A moved file keeps its lines, and later lines go to a new file with a head.
        fs::rename(&path, folder.path().join("a.hlog.1")).unwrap();
        let more = vec![Series::new("all", "repair", histogram(&[(9, 3)]))];
        log.write(at(7), more, &Counter::default());
        assert_eq!(read(&path)[0].samples.len(), 2);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("#[Logged by second"), "{text}");
    }

    #[test]
    fn samples_of_a_failed_write_are_in_the_next_interval() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        let failed = Counter::default();
        let mut log = IntervalLog::open(&path, "test", BEGAN).unwrap();
        let series = |n| vec![Series::new("all", "repair", histogram(&[(9, n)]))];
        log.write(at(1), series(1), &failed);
        fs::remove_file(&path).unwrap();
        symlink("/dev/full", &path).unwrap();
        log.write(at(2), series(3), &failed);
        log.write(at(3), series(4), &failed);
        assert_eq!(failed.get(), 2);
        fs::remove_file(&path).unwrap();
        log.write(at(4), series(6), &failed);
        assert_eq!(failed.get(), 2, "the path is opened again");
        let intervals = read(&path);
        let spans: Vec<_> = intervals
            .iter()
            .map(|it| (it.length, it.samples.len()))
            .collect();
        assert_eq!(spans, [(Duration::from_secs(3), 5)]);
    }

    #[test]
    fn clock_offset_is_noted_above_lines_that_stay_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        let mut log = IntervalLog::open(&path, "test", BEGAN).unwrap();
        let offset = ClockOffset {
            offset_ns: -7,
            error_ns: 9,
        };
        log.note_clock(Some(offset));
        let series = |n| vec![Series::new("all", "repair", histogram(&[(9, n)]))];
        log.write(at(1), series(1), &Counter::default());
        log.write(at(2), series(1), &Counter::default());
        let text = fs::read_to_string(&path).unwrap();
        let noted = text.matches("#[ClockOffset: -7 ns, error 9 ns]\nTag=all/repair");
        assert_eq!(noted.count(), 1, "silence has no note: {text}");
        let mut intervals = 0;
        let worst = each_interval(text.as_bytes(), |_| intervals += 1).unwrap();
        assert_eq!((worst, intervals), (Some(offset), 1));
    }

    #[test]
    fn damaged_log_is_refused_with_its_line() {
        let error = read_intervals(b"#x\nTag=a/b,1.000,1.000,1.000,AAAA\n").unwrap_err();
        assert!(
            matches!(&error, IntervalLogError::Histogram { tag, .. } if tag == "a/b"),
            "{error}"
        );
        let error = read_intervals(b"#x\n\nno line\n").unwrap_err();
        assert!(
            matches!(error, IntervalLogError::Line { line: 2 }),
            "{error}"
        );
        let most = histogram(&[(1, u64::MAX / 2)]);
        let mut coded = Vec::new();
        let coder = &mut V2DeflateSerializer::new();
        coder.serialize(&most, &mut coded).unwrap();
        let line = format!("Tag=a/b,1.0,1.0,1.0,{}\n", STANDARD.encode(&coded));
        assert_eq!(read_intervals(line.as_bytes()).unwrap().len(), 1);
        let error = read_intervals(line.repeat(3).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
        assert_eq!(read_intervals(b"#x\nTag=a/b,1.0").unwrap(), []);
        assert_eq!(read_intervals(b"").unwrap(), []);
    }

    #[test]
    fn endless_line_is_refused_in_bounded_memory() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let error = each_interval((&b"#x\n"[..]).chain(endless), |_| ()).unwrap_err();
        let is_second = matches!(error, IntervalLogError::LongLine { line: 2 });
        assert!(is_second, "{error}");
    }

    /// A field that reached beyond its line would also make each of many lines cost a look at all later ones.
    #[test]
    fn field_of_a_line_ends_with_its_line() {
        let log = b"Tag=a\nb,1.0,1.0,1.0,AAAA\n";
        let error = read_intervals(log).unwrap_err();
        assert!(
            matches!(error, IntervalLogError::Line { line: 1 }),
            "{error}"
        );
    }

    #[test]
    fn hostile_tag_stays_in_the_line_of_its_error() {
        let tag = "a\u{1b}[2J\u{9b}\u{202e}".repeat(10_000);
        let log = format!("Tag={tag},1.0,1.0,1.0,AAAA\n");
        let error = read_intervals(log.as_bytes()).unwrap_err().to_string();
        let is_hostile = error.chars().any(tickcast_log::is_control);
        assert!(!is_hostile && error.len() < 2_048, "{error}");
    }
}
