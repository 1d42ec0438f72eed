//! Rules on the packages: systemd accepts the unit, and the unit confines its process.

use std::path::PathBuf;
use std::process::Command;

use crate::source::root;

/// Exposure that `systemd-analyze security` may report, in tenths: 100 is the worst.
const EXPOSURE_MAX: u32 = 30;

fn unit() -> PathBuf {
    root().join("configs/package/tickcast-publisher.service")
}

/// Runs `systemd-analyze`. Returns whether it succeeded, and its output; `None` where it is absent.
fn analyze(arguments: &[&str], unit: &str) -> Option<(bool, String)> {
    let command = Command::new("systemd-analyze")
        .args(arguments)
        .arg(unit)
        .output();
    let Ok(output) = command else {
        println!("skipped: systemd-analyze is not installed");
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Some((output.status.success(), text))
}

/// Writes a variant of the unit under a name of its own. Returns its path.
fn variant(name: &str, from: &str, to: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let text = std::fs::read_to_string(unit()).unwrap();
    assert!(text.contains(from), "the unit has no {from}");
    let path = folder.join("tickcast-publisher.service");
    std::fs::write(&path, text.replace(from, to)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn unit_is_accepted_by_systemd() {
    let verify = |unit: &str| analyze(&["--man=no", "verify"], unit);
    let program = "ExecStart=/usr/bin/tickcast-publisher";
    let installed = variant("installed", program, "ExecStart=/bin/true");
    if let Some((accepted, text)) = verify(&installed) {
        assert!(accepted && text.is_empty(), "{text}");
    }
    // `verify` only warns of an unknown key, so it is the text that counts.
    let unknown = variant("unknown", "WatchdogSec=", "WatchdogSecs=");
    if let Some((_, text)) = verify(&unknown) {
        assert!(text.contains("WatchdogSecs"), "{text}");
    }
}

#[test]
fn unit_exposure_is_limited() {
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let security = |unit: &str| analyze(&["security", "--offline=true", &threshold], unit);
    if let Some((limited, text)) = security(unit().to_str().unwrap()) {
        assert!(limited, "{text}");
    }
    let open = variant("open", "CapabilityBoundingSet=\n", "");
    let open = open.as_str();
    let text = std::fs::read_to_string(open).unwrap();
    let kept = text.lines().filter(|line| !line.starts_with("Protect"));
    let kept = kept.filter(|line| !line.starts_with("Restrict") && !line.starts_with("SystemCall"));
    std::fs::write(open, kept.collect::<Vec<_>>().join("\n")).unwrap();
    if let Some((limited, _)) = security(open) {
        assert!(!limited, "the rule finds nothing");
    }
}
