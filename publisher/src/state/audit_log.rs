//! The audit trail's own file. A line that can't be written is counted and reported on standard
//! error, once per failure. Audit lines can be lost, but never silently.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tickcast_log::PlainJson;
use tickcast_transport::host::files::{Access, FileError, OutputTarget, Readers};

/// Characters of each value of an entry that are kept.
const VALUE_CHARS_MAX: usize = 256;

/// Per process: there is one audit trail.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of audit lines that could not be written to the file.
#[must_use]
pub fn lines_lost() -> u64 {
    LOST.load(Relaxed)
}

/// A file that audit lines are appended to, each with one call of [`Write::write`].
pub struct AuditFile {
    path: PathBuf,
    file: File,
    /// Requests a reopening, after the file was moved away.
    reopen: Arc<AtomicBool>,
    /// Lines lost since the last success.
    lost: u64,
    /// Whether the last line is incomplete.
    is_torn: bool,
    report: fn(&str),
}

impl AuditFile {
    /// Appends to this file. Reopens it before the next line once `reopen` is set. `tell` is called
    /// when writing fails, and when it works again.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file can't be opened, or others can write or replace it.
    pub fn append_to(
        path: PathBuf,
        reopen: Arc<AtomicBool>,
        report: fn(&str),
    ) -> Result<Self, FileError> {
        Ok(Self {
            file: open(&path)?,
            path,
            reopen,
            lost: 0,
            is_torn: false,
            report,
        })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.reopen.load(Relaxed) {
            self.file = open(&self.path)?;
            self.reopen.store(false, Relaxed);
            self.is_torn = false;
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let written = self.file.write(line)?;
        self.is_torn = written < line.len();
        self.file.write_all(&line[written..])?;
        self.is_torn = false;
        Ok(())
    }
}

impl Write for AuditFile {
    /// Writes a line of JSON. Each value keeps 256 characters, and its control characters become escapes.
    /// Never fails: unwritten lines are counted.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let plain = PlainJson(cut_values(&String::from_utf8_lossy(line))).to_string();
        let appended = self.append(plain.as_bytes());
        let path = self.path.display();
        match appended {
            Ok(()) if self.lost > 0 => {
                let lost = std::mem::take(&mut self.lost);
                (self.report)(&format!(
                    "{path} can be written again; {lost} audit lines are missing in it"
                ));
            }
            Ok(()) => {}
            Err(error) => {
                if self.lost == 0 {
                    (self.report)(&format!(
                        "audit lines are lost: {path} can't be written: {error}; free space, or \
                         fix the path and send SIGHUP"
                    ));
                }
                self.lost += 1;
                LOST.fetch_add(1, Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a line of JSON whose strings have at most 256 characters; `…` marks what was cut. Peers choose
/// some of them, and may fill the disk otherwise.
fn cut_values(line: &str) -> String {
    let mut cut = String::with_capacity(line.len().min(4 * VALUE_CHARS_MAX));
    let mut chars = line.chars();
    // Characters of the string so far; `None` outside of strings.
    let mut len = None;
    while let Some(c) = chars.next() {
        let Some(count) = len else {
            len = (c == '"').then_some(0);
            cut.push(c);
            continue;
        };
        if c == '"' {
            len = None;
            cut.push(c);
            continue;
        }
        let is_kept = count < VALUE_CHARS_MAX;
        let mut take = |c: char| {
            if is_kept {
                cut.push(c);
            }
        };
        take(c);
        // An escape is one character: the backslash, a letter, and four digits behind a `u`.
        if c == '\\'
            && let Some(escaped) = chars.next()
        {
            take(escaped);
            let digits = if escaped == 'u' { 4 } else { 0 };
            chars.by_ref().take(digits).for_each(&mut take);
        }
        if count == VALUE_CHARS_MAX {
            cut.push('…');
        }
        len = Some(count + 1);
    }
    cut
}

fn open(path: &Path) -> Result<File, FileError> {
    match OutputTarget::find(path)? {
        OutputTarget::File(entry) => entry.open_or_create(Access::Append, Readers::Group),
        OutputTarget::Stream(entry) => entry.open_in_place(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn report(text: &str) {
        TOLD.lock().unwrap().push(text.into());
    }

    #[test]
    fn name_with_control_characters_is_escaped_in_audit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::append_to(path.clone(), Arc::default(), |_| ()).unwrap();
        let entry = serde_json::json!({ "name": "a\n\u{1b}[2J\u{9b}2J\u{202e}" });
        file.write_all(format!("{entry}\n").as_bytes()).unwrap();
        let line = std::fs::read_to_string(&path).unwrap();
        let line = line.strip_suffix('\n').unwrap();
        assert!(!line.contains(tickcast_log::is_control), "{line}");
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(read, entry);
    }

    #[test]
    fn long_value_is_cut_and_marked_in_audit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::append_to(path.clone(), Arc::default(), |_| ()).unwrap();
        for long in ["x", "é", "\\", "\"", "\n", "\u{1b}", "\u{202e}", "𝄞"] {
            let kept = long.repeat(VALUE_CHARS_MAX);
            let entry = serde_json::json!({
                "why": long.repeat(60_000), "kept": kept, "deep": { "list": [long.repeat(300), 7] },
            });
            std::fs::write(&path, "").unwrap();
            file.write_all(format!("{entry}\n").as_bytes()).unwrap();
            let line = std::fs::read_to_string(&path).unwrap();
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            let cut = format!("{kept}…");
            let expected = serde_json::json!({
                "why": cut, "kept": kept, "deep": { "list": [cut, 7] },
            });
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn unwritable_line_is_counted_and_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let [path, whole] = ["audit", "whole"].map(|name| folder.path().join(name));
        symlink("/dev/full", &path).unwrap();
        let reopen = Arc::new(AtomicBool::new(false));
        let mut file = AuditFile::append_to(path.clone(), reopen.clone(), report).unwrap();
        for _ in 0..3 {
            assert_eq!(file.write(b"lost\n").unwrap(), 5, "whoever audits goes on");
        }
        assert_eq!((file.lost, lines_lost()), (3, 3));
        assert_eq!(TOLD.lock().unwrap().len(), 1);
        // The repaired file is opened on request only, not before.
        std::fs::remove_file(&path).unwrap();
        symlink(&whole, &path).unwrap();
        file.write_all(b"lost\n").unwrap();
        reopen.store(true, Relaxed);
        file.write_all(b"one\n").unwrap();
        assert_eq!(lines_lost(), 4);
        {
            let reported = TOLD.lock().unwrap();
            let [first, again] = &reported[..] else {
                panic!("{reported:?}");
            };
            assert!(first.contains("audit lines are lost"), "{first}");
            assert!(again.contains("4 audit lines are missing in it"), "{again}");
        }
        // The file is moved away, so later lines go to a new one.
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"two\n").unwrap();
        reopen.store(true, Relaxed);
        file.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(&whole).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(lines_lost(), 4);
    }

    #[test]
    fn audit_file_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let open = || AuditFile::append_to(path.clone(), Arc::default(), |_| {});
        drop(open().unwrap());
        // The umask may deny the group.
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert!([0o640, 0o600].contains(&mode), "{mode:o}");
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, all).unwrap();
        let error = open().err().unwrap();
        assert!(matches!(error, FileError::Mode { .. }), "{error}");
    }
}
