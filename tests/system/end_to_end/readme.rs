//! Runs the commands of README and of the first day's document, if docs contains it, unchanged and in the
//! terminals that the text names.
//!
//! Each `sh` block is one bash process. The paragraph before a block may say that it runs "in a
//! first terminal", "in a second terminal", and so on. A first terminal begins a session, and the
//! previous session ends as with Ctrl-C. A block without a terminal is a session of its own. HTML
//! comments between text and block state the expected result:
//!
//! - `<!-- shows: PATTERN -->`: the block runs until Ctrl-C, and counts as ready once its output matches
//!   this;
//! - `<!-- exit: 1 -->`: the block ends with this code instead of 0;
//! - `<!-- not run: REASON -->`: the block needs something that a test machine lacks.
//!
//! (The subscriber's doc tests compile the README's code.)

use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use regex::Regex;
use tempfile::TempDir;
use tickcast_test_support::network::{OwnNetwork, own_network};
use tickcast_test_support::{PATIENCE, binary, machine, test_name};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
}

/// A block of commands, with the text's statements about it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    script: String,
    terminal: Option<usize>,
    shows: Option<String>,
    exit: i32,
    not_run: bool,
}

const ORDINALS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

fn terminal_of(text: &str) -> Option<usize> {
    let text = text.to_lowercase();
    let names = |ordinal: &str| text.contains(&format!("{ordinal} terminal"));
    ORDINALS.iter().position(|ordinal| names(ordinal))
}

/// Returns the `sh` blocks of a document.
fn blocks(document: &str) -> Vec<Block> {
    let (mut blocks, mut next) = (Vec::new(), Block::default());
    let mut paragraph = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let comment = line.strip_prefix("<!-- ");
        let comment = comment.and_then(|line| line.strip_suffix(" -->"));
        match comment.map(|comment| comment.split_once(": ").unwrap_or((comment, ""))) {
            Some(("shows", words)) => next.shows = Some(words.to_owned()),
            Some(("exit", code)) => next.exit = code.parse().expect("an exit code"),
            Some(("not run", reason)) => next.not_run = !reason.is_empty(),
            Some(_) => {}
            None if line.starts_with("```") => {
                let is_script = line == "```sh";
                for line in lines.by_ref().take_while(|line| *line != "```") {
                    next.script.push_str(line);
                    next.script.push('\n');
                }
                let block = std::mem::take(&mut next);
                blocks.extend(is_script.then_some(block));
            }
            None if line.is_empty() => paragraph.clear(),
            None => {
                paragraph.push_str(line);
                paragraph.push(' ');
                next = Block {
                    terminal: terminal_of(&paragraph),
                    ..Block::default()
                };
            }
        }
    }
    blocks
}

/// A bash that runs a block, in a process group of its own.
struct Terminal {
    shell: Child,
    script: String,
    output: PathBuf,
}

impl Terminal {
    fn open(block: &Block, folder: &Path, number: usize) -> Self {
        let output = folder.join(format!("terminal-{number}"));
        let file = File::create(&output).expect("a file for the output");
        // `make` becomes a dry run, which fails for a target that the Makefile lacks.
        let make = format!(
            "make() {{ command make --no-print-directory -C '{}' --dry-run \"$@\" >/dev/null; }}",
            root().display()
        );
        let shell = Command::new("bash")
            .args(["-e", "-u", "-o", "pipefail", "-c"])
            .arg(format!("{make}\n{}", block.script))
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("bash runs");
        Self {
            shell,
            script: block.script.clone(),
            output,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().expect("the shell can be asked")
    }

    fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            if began.elapsed() > PATIENCE {
                panic!("not within {PATIENCE:?}:\n{}\n{}", self.script, self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_to_show(&mut self, pattern: &str) {
        let shown = Regex::new(pattern).expect("a pattern");
        self.until(|terminal| {
            let ended = terminal.status();
            let said = terminal.said();
            let script = &terminal.script;
            match ended {
                _ if shown.is_match(&said) => Some(()),
                None => None,
                Some(status) => panic!("{status} before {pattern:?}:\n{script}\n{said}"),
            }
        });
    }

    fn wait_to_end(&mut self) -> i32 {
        self.until(Self::status).code().unwrap_or(-1)
    }

    /// Signals all processes of the terminal.
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.shell.id());
        let sent = Command::new("kill")
            .args(["-s", signal, "--", &group])
            .status();
        // The group may have ended meanwhile.
        let _ = sent.expect("kill runs");
    }

    /// Ends the block as with Ctrl-C. Exit code 1 is accepted, because a slow machine may lose datagrams.
    fn interrupt(mut self) {
        if self.status().is_none() {
            self.signal("INT");
        }
        let code = self.wait_to_end();
        assert!(
            [0, 1].contains(&code),
            "{code}:\n{}\n{}",
            self.script,
            self.said()
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.shell.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal("KILL");
            let _ = self.shell.wait();
        }
    }
}

fn end_session(session: &mut Vec<Terminal>) {
    while let Some(terminal) = session.pop() {
        terminal.interrupt();
    }
}

/// Creates a folder that looks like the repository after `make build`.
fn fresh_clone() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let built = binary("tickcast-publisher");
    std::fs::create_dir(folder.path().join("target")).expect("a folder");
    let built = built.parent().expect("a binary is in a folder");
    symlink(built, folder.path().join("target/release")).expect("a link");
    for part in ["configs", "subscriber", "docs", "Makefile"] {
        symlink(root().join(part), folder.path().join(part)).expect("a link");
    }
    folder
}

#[test]
fn readme_and_first_day_commands_all_work() {
    let name = test_name(module_path!(), "readme_and_first_day_commands_all_work");
    // The fixed addresses of the examples are free in a network of its own.
    if own_network(&name) == OwnNetwork::Ran {
        return;
    }
    // The process in the namespace takes the machine lock too, so this one takes it only now.
    let _turn = machine::exclusive();
    let first_day = root().join("docs").join("FIRST_DAY.md");
    let documents = [root().join("README.md"), first_day];
    assert!(documents[0].exists());
    for path in documents.iter().filter(|path| path.exists()) {
        let document = path.display();
        let text = std::fs::read_to_string(path).expect("a document");
        let folder = fresh_clone();
        let mut session = Vec::new();
        let blocks = blocks(&text);
        assert!(blocks.len() > 1, "{document} has commands");
        for (number, block) in blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| !block.not_run)
        {
            if block.terminal.is_none_or(|terminal| terminal == 0) {
                end_session(&mut session);
            }
            println!(
                "{document}, terminal {:?}:\n{}",
                block.terminal, block.script
            );
            let mut terminal = Terminal::open(block, folder.path(), number);
            if let Some(pattern) = &block.shows {
                terminal.wait_to_show(pattern);
                session.push(terminal);
            } else {
                let code = terminal.wait_to_end();
                assert_eq!(code, block.exit, "{}\n{}", block.script, terminal.said());
            }
        }
        end_session(&mut session);
    }
    let _ = std::fs::remove_file("/dev/shm/one.journal");
}

#[test]
fn block_takes_its_terminal_from_the_text_before() {
    let text = "# A\n\nIn a second terminal,\nthis:\n\n<!-- shows: x: y -->\n```sh\na\nb\n```\n\
                ```text\nc\n```\n<!-- exit: 3 -->\n```sh\nd\n```\nOther.\n\
                <!-- not run: it needs a card -->\n```sh\ne\n```\n";
    let expected = [
        Block {
            script: "a\nb\n".into(),
            terminal: Some(1),
            shows: Some("x: y".into()),
            ..Block::default()
        },
        Block {
            script: "d\n".into(),
            exit: 3,
            ..Block::default()
        },
        Block {
            script: "e\n".into(),
            not_run: true,
            ..Block::default()
        },
    ];
    assert_eq!(blocks(text), expected);
}
