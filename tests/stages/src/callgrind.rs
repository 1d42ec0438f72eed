//! Counts the instructions of one stage. A process of this same program runs the stage under callgrind,
//! which collects within [`measured`](crate::measured) alone.
//!
//! The count covers instructions in user space, without system calls. Callgrind's processor is the same on
//! every host with AVX2. Code that chooses by processor at run time (CRC, copies) thus takes the same path.
//!
//! Counts are kept apart by owner of the code. This program's count depends on its sources and the
//! compiler alone; the C library's also depends on the host. (The crates for this purpose compare with
//! the previous run or with a bound, not with a table, and do not separate libraries.)

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Valgrind's names of the function whose instructions are collected, here and in the peers' program.
const MEASURED: [&str; 2] = [
    "tickcast_stages::measured*",
    "tickcast_bench_peers::count::measured*",
];
/// Time limit of a stage, which takes about a second.
const PATIENCE: Duration = Duration::from_secs(900);
/// Prefix of the output of a process whose host can't run the stage.
pub const LACKING: &str = "lacking: ";

/// Instructions per operation of a stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Count {
    /// Instructions of this program: our code, its dependencies, and the standard library.
    pub ours: f64,
    /// Instructions of the C library and the loader.
    pub libc: f64,
    /// The most expensive functions by their own instructions, including functions inlined into them.
    pub functions: Vec<(String, f64)>,
}

impl Count {
    /// Returns the sum of both.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.ours + self.libc
    }
}

/// The reason for a missing count.
#[derive(Debug)]
pub enum NoCount {
    /// This host can't run the stage.
    Lacking(String),
    /// The run failed.
    Failed(String),
}

/// Returns valgrind's version; `None` if it is not installed.
#[must_use]
pub fn version() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Counts a stage by running `program --stage STAGE`.
///
/// # Errors
/// [`NoCount::Lacking`] if this host can't run the stage, [`NoCount::Failed`] if the run failed.
pub fn count(program: &Path, stage: &str) -> Result<Count, NoCount> {
    let failed = |what: String| NoCount::Failed(what);
    let folder = tempfile::tempdir().map_err(|e| failed(e.to_string()))?;
    let out = folder.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(MEASURED.map(|name| format!("--toggle-collect={name}")))
        .arg(program)
        .args(["--stage", stage])
        // Other variables might change the C library's behaviour, or move the stack.
        .env_clear()
        .envs(
            ["PATH", "VALGRIND_LIB"]
                .map(|name| (name, std::env::var_os(name).unwrap_or_default()))
                .into_iter()
                .filter(|(_, value)| !value.is_empty()),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let said = run(command).map_err(failed)?;
    if let Some(what) = said.strip_prefix(LACKING) {
        return Err(NoCount::Lacking(what.trim().to_owned()));
    }
    let operations = said.trim().parse::<u64>().ok().filter(|n| *n > 0);
    let operations = operations.ok_or_else(|| failed(format!("it said {said:?}")))?;
    let text = std::fs::read_to_string(&out).map_err(|e| failed(e.to_string()))?;
    let own = program.to_string_lossy();
    let count = Costs::read(&text).per(operations, &own);
    if count.ours <= 0.0 {
        return Err(failed("valgrind did not find what to measure".to_owned()));
    }
    Ok(count)
}

/// Returns the output of a process that ended successfully.
fn run(mut command: Command) -> Result<String, String> {
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took more than {} s", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let (mut said, mut reported) = (String::new(), String::new());
    if let Some(mut stdout) = child.stdout.take() {
        let _ = stdout.read_to_string(&mut said);
    }
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut reported);
    }
    match status.success() {
        true => Ok(said),
        false => Err(format!("{status}: {}", reported.trim())),
    }
}

/// Callgrind's output: instructions by object and function.
#[derive(Debug, Default)]
struct Costs {
    objects: HashMap<String, u64>,
    functions: HashMap<String, u64>,
}

impl Costs {
    /// Reads a profile of one event, by lines.
    fn read(text: &str) -> Self {
        let (mut objects, mut functions) = (Names::default(), Names::default());
        let (mut object, mut function) = (String::new(), String::new());
        let mut costs = Self::default();
        // The line after `calls=` is the callee's cost, which is counted there.
        let mut is_of_callee = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = objects.name(name);
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = functions.name(name);
            } else if let Some(name) = line.strip_prefix("cob=") {
                objects.name(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                functions.name(name);
            } else if line.starts_with("calls=") {
                is_of_callee = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
                let cost = if is_of_callee { 0 } else { cost.unwrap_or(0) };
                is_of_callee = false;
                *costs.objects.entry(object.clone()).or_default() += cost;
                *costs.functions.entry(function.clone()).or_default() += cost;
            }
        }
        costs
    }

    /// Returns the count per operation. `own` is this program's object.
    fn per(&self, operations: u64, own: &str) -> Count {
        let each = |cost: u64| cost as f64 / operations as f64;
        let ours = self.objects.get(own).copied().unwrap_or(0);
        let all: u64 = self.objects.values().sum();
        let functions = self.functions.iter().filter(|(_, cost)| **cost > 0);
        let mut functions: Vec<_> = functions
            .map(|(name, c)| (name.clone(), each(*c)))
            .collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Count {
            ours: each(ours),
            libc: each(all - ours),
            functions,
        }
    }
}

/// Callgrind's compressed names: a name is written once with a number, and later as the number alone.
#[derive(Debug, Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// Returns the name for `text`, which is "(7) name" or "(7)".
    fn name(&mut self, text: &str) -> String {
        match text.split_once(' ') {
            Some((number, name)) if number.starts_with('(') => {
                self.0.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
            _ => self.0.get(text).cloned().unwrap_or_else(|| text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callee_cost_is_counted_once_by_owning_object() {
        let text = "events: Ir\n\nob=(7) /x/counts\nfl=(1) ???\nfn=(2) a::work\n10 300\n+3 100\n\
            cob=(3) /lib/libc.so.6\ncfn=(4) memcpy\ncalls=5 0 \n* 4000\nfn=(9) b\n1 200\n\n\
            ob=(3)\nfn=(4)\n0 40\n\ntotals: 640\n";
        let count = Costs::read(text).per(10, "/x/counts");
        assert_eq!((count.ours, count.libc, count.sum()), (60.0, 4.0, 64.0));
        let named = [("a::work", 40.0), ("b", 20.0), ("memcpy", 4.0)];
        assert_eq!(count.functions, named.map(|(n, c)| (n.to_owned(), c)));
    }
}
