//! Endpoints and files that are hostile: no text of theirs controls a terminal or forges a line, and none of
//! them takes unbounded memory.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::Path;
use std::process::Output;
use std::thread;

use serde_json::{Value, json};

use super::common::{run, text, tickcast};

/// Moves the cursor, begins a line, and reverses the direction of text.
const HOSTILE: &str = "a\nforged: line\r\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b";

/// Starts an endpoint that answers each request with this status and body. Returns its address.
fn endpoint(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head: Vec<u8> = Vec::new();
            while !head.windows(4).any(|it| it == b"\r\n\r\n") {
                let mut bytes = [0; 1_024];
                match stream.read(&mut bytes) {
                    Ok(count) if count > 0 => head.extend(&bytes[..count]),
                    _ => break,
                }
            }
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}"
            );
            // A close with unread input would reset the connection.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    address
}

/// Checks that an output has `lines` lines, and no character that a terminal obeys.
fn is_plain(output: &Output, stdout_lines: usize, stderr_lines: usize) {
    for (bytes, lines) in [
        (&output.stdout, stdout_lines),
        (&output.stderr, stderr_lines),
    ] {
        let text = text(bytes);
        let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(obeyed), "{text:?}");
        assert_eq!(text.lines().count(), lines, "{text:?}");
    }
}

#[test]
fn answers_to_commands_control_no_terminal() {
    let reloaded = json!({ "state": "reloaded", "changed": [HOSTILE, HOSTILE] });
    let promoted = json!({ "state": "promoted", "epoch": HOSTILE, "continues": 1, "channels": [
        { "channel": HOSTILE, "last": HOSTILE },
    ] });
    let refused = json!({ "state": "refused", "why": HOSTILE });
    let (promote, reload) = (["promote", "--standby"], ["reload", "--publisher"]);
    for (verb, body, lines) in [
        (promote, promoted.to_string(), 2),
        (promote, refused.to_string(), 1),
        (promote, HOSTILE.to_owned(), 0),
        (reload, reloaded.to_string(), 2),
        (reload, refused.to_string(), 1),
        (reload, HOSTILE.to_owned(), 0),
    ] {
        let address = endpoint("200 OK", body.clone());
        let output = run(&[verb[0], verb[1], &address]);
        is_plain(&output, lines, usize::from(lines == 0));
        let output = run(&[verb[0], verb[1], &address, "--json"]);
        is_plain(&output, lines.min(1), usize::from(lines == 0));
        if lines > 0 {
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(said.to_string(), body, "the answer is unchanged");
        }
    }
}

#[test]
fn pages_of_publishers_control_no_terminal() {
    let loss = json!({
        "subscriber": HOSTILE, "channel": 1, "epoch": 5, "first": 1, "last": 2, "at_utc_ns": 3,
        "requested": HOSTILE, "requests": 1, "answered": 1, "refused": HOSTILE, "outcome": HOSTILE,
        "took_us": null, "lost_records": null,
    });
    let losses = json!({ "losses": [loss] }).to_string();
    let wrong = json!({ "losses": HOSTILE, "name": { HOSTILE: 1 } }).to_string();
    for (body, lines) in [(losses, 1), (wrong, 0), (HOSTILE.to_owned(), 0)] {
        let address = endpoint("200 OK", body);
        for args in [&["loss", &address][..], &["loss", &address, "--json"]] {
            is_plain(&run(args), lines, usize::from(lines == 0));
        }
        let output = run(&["top", &address, "--once", "--json", "--every", "0"]);
        is_plain(&output, 1, 1);
    }
}

#[test]
fn file_names_control_no_terminal() {
    let name = format!("/no/such/{HOSTILE}");
    for args in [
        &["explain", &name][..],
        &["report", &name, "--out", "/dev/null"],
    ] {
        let output = run(args);
        let obeyed = |c: char| c != '\n' && c.is_control();
        assert!(!text(&output.stderr).contains(obeyed), "{output:?}");
    }
}

#[test]
fn pipe_or_device_in_place_of_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for path in [&*pipe, Path::new("/dev/zero")] {
        let path = path.to_str().unwrap();
        for args in [
            &["report", path, "--out", "/dev/null"][..],
            &["top", "127.0.0.1:9", "--once", "--json", "--hlog", path],
            &["explain", path],
            &["loss", "--journals", path],
        ] {
            let output = tickcast(args).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("not a regular file"), "{said}");
        }
    }
}
