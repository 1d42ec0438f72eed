//! The commands of all checks as a script for a POSIX shell. The doctor itself runs none of them.

use std::fmt;

use super::check::Check;

/// Prints the script of these checks. Each command appears once, below its finding, its reason, and the
/// command that takes it back. Remedies without a command appear as comments.
pub(super) struct FixScript<'a>(pub(super) &'a [Check]);

impl fmt::Display for FixScript<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "#!/bin/sh")?;
        writeln!(
            f,
            "# Commands that `tickcast doctor` proposes for this host. Read them, then run them as root."
        )?;
        writeln!(
            f,
            "# Each lasts until the next boot; the line `undo` above it takes it back."
        )?;
        write!(f, "set -eu")?;
        let mut printed = Vec::new();
        for check in self.0 {
            if check.remedy().is_empty() && check.commands().is_empty() {
                continue;
            }
            write!(f, "\n\n# {}: {}", check.id(), check.found())?;
            write!(f, "\n# why: {}", check.why())?;
            if !check.remedy().is_empty() {
                write!(f, "\n# by hand: {}", check.remedy())?;
            }
            for fix in check.commands() {
                if printed.contains(&fix.run()) {
                    write!(f, "\n# as above: {}", fix.run())?;
                    continue;
                }
                printed.push(fix.run());
                write!(f, "\n# undo: {}\n{}", fix.undo(), fix.run())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::super::check::{Fix, Subject};
    use super::*;

    /// Runs a shell over a script. Returns whether it succeeds, and its output.
    fn shell(options: &[&str], script: &str) -> (bool, String) {
        let mut shell = Command::new("sh")
            .args(options)
            .arg("-s")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(script.as_bytes()).unwrap();
        drop(input);
        let output = shell.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    /// Hostile text of a finding ends neither its comment nor its quotes.
    #[test]
    fn fix_script_is_posix_shell_whatever_was_found() {
        let nasty = "a\nexit 7 #'\"`$(exit 8)\u{1b}";
        let echo = Fix::command(&["echo", nasty], &["echo", nasty]);
        let fails = Fix::command(&["false"], &["true"]).or_else_print("it stays");
        let checks = [
            Check::ok(Subject::Cores, "well"),
            Check::note(Subject::Governor, nasty, nasty, nasty).fixed_by([echo.clone()]),
            Check::error(Subject::Smt, "b", "c", "").fixed_by([echo, fails]),
        ];
        let script = FixScript(&checks).to_string();
        assert!(script.starts_with("#!/bin/sh\n"), "{script}");
        assert!(!script.contains("well"), "{script}");
        assert_eq!(script.matches("\necho 'a exit 7").count(), 1, "{script}");
        assert!(script.contains("\n# as above: echo"), "{script}");
        assert!(shell(&["-n"], &script).0, "{script}");
        let (succeeds, said) = shell(&[], &script);
        assert!(succeeds, "{script}");
        assert_eq!(said, "a exit 7 #'\"`$(exit 8) \n", "{script}");
    }

    #[test]
    fn fix_script_ends_with_the_first_failure() {
        let fails = Check::note(Subject::Smt, "a", "b", "").fixed_by([
            Fix::command(&["false"], &["true"]),
            Fix::command(&["echo", "later"], &["true"]),
        ]);
        let (succeeds, said) = shell(&[], &FixScript(&[fails]).to_string());
        assert_eq!((succeeds, said.as_str()), (false, ""));
    }
}
