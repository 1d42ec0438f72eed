//! The README's commands, run as they stand there, block by block: what serves runs until the rest
//! of its block has ended. (Its code is compiled by the subscriber's doc tests.)

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tickcast_test_support::{PATIENCE, binary};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
}

/// The lines of each `sh` block.
fn blocks(readme: &str) -> Vec<Vec<&str>> {
    let mut blocks = Vec::new();
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        if line == "```sh" {
            blocks.push(lines.by_ref().take_while(|line| *line != "```").collect());
        }
    }
    blocks
}

/// The command of a README line: binaries of this build, captures where the data are.
fn command(line: &str) -> Option<Command> {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let name = program
        .strip_prefix("target/release/")
        .expect("a binary of the workspace");
    let mut command = Command::new(binary(name));
    command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    for word in words {
        if word.ends_with(".pcapng.gz") {
            let folder = std::env::var_os("TICKCAST_DATA")
                .map_or_else(|| root().join("../shared/data"), Into::into);
            let capture = folder.join("iex-tops").join(word);
            if !capture.exists() {
                eprintln!(
                    "SKIPPED: {} is not there, not run: {line}",
                    capture.display()
                );
                return None;
            }
            command.arg(capture);
        } else {
            command.arg(word);
        }
    }
    Some(command)
}

/// A child that does not outlive its test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(child: &mut Child, line: &str) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child can be asked") {
            return status.code().unwrap_or(-1);
        }
        assert!(began.elapsed() < PATIENCE, "never ended: {line}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_command_of_the_readme_does_what_it_says() {
    let _turn = tickcast_test_support::machine::exclusive();
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let mut served: Vec<Served> = Vec::new();
    let mut ran = 0;
    for block in blocks(&readme) {
        let serves_anew = block.iter().any(|line| is_publisher(line));
        if serves_anew {
            served.clear();
        }
        for line in block {
            if let Some(verb) = line.strip_prefix("make ") {
                assert!(
                    makefile.contains(&format!("\n{verb}:")),
                    "no such verb: {line}"
                );
                continue;
            }
            println!("{line}");
            let Some(mut command) = command(line) else {
                continue;
            };
            let mut child = command.spawn().expect("it starts");
            ran += 1;
            if is_publisher(line) || line.contains(" inject ") {
                served.push(Served(child));
                // It serves from its start on; those that follow retry until it does.
                std::thread::sleep(Duration::from_millis(300));
                continue;
            }
            let code = wait(&mut child, line);
            let expected = i32::from(line.contains("--no-repair"));
            assert_eq!(code, expected, "{line}");
        }
    }
    assert!(ran > 6, "the README has commands");
    drop(served);
    let _ = std::fs::remove_dir_all(root().join("tickcast-state"));
    let _ = std::fs::remove_file(root().join("report.json"));
    let _ = std::fs::remove_file("/dev/shm/one.flight");
}

fn is_publisher(line: &str) -> bool {
    line.contains("tickcast-publisher") && !line.contains("--check")
}
