//! The command line as a whole: help for every option, and the documented exit codes.

use serde_json::Value;

use crate::common::{run, text};

#[test]
fn help_names_every_verb_and_the_exit_codes() {
    let done = run(&["--help"]);
    let help = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0));
    for word in [
        "demo",
        "listen",
        "replay",
        "simulate",
        "inject",
        "doctor",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn help_output_describes_options_of_all_verbs() {
    for verb in [
        "demo", "listen", "replay", "simulate", "inject", "doctor", "plan", "inspect",
    ] {
        let done = run(&[verb, "--help"]);
        assert_eq!(done.status.code(), Some(0));
        let help = text(&done.stdout);
        let lines: Vec<_> = help.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.trim_start().starts_with("--") {
                continue;
            }
            // The help text is on the same line or on the next.
            let beside = line.trim_start().split("  ").nth(1).is_some();
            let below = lines
                .get(at + 1)
                .is_some_and(|l| l.starts_with("          "));
            assert!(beside || below, "{verb}: {line}");
        }
    }
}

#[test]
fn invalid_command_line_is_a_usage_error() {
    for args in [
        &[][..],
        &["dance"],
        &["inject"],
        &["listen", "--nosuch"],
        &["replay"],
        &["doctor", "--selftest"],
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(
            !done.stderr.is_empty() && done.stdout.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn version_is_printed_to_stdout() {
    let done = run(&["--version"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(
        text(&done.stdout).trim(),
        concat!("tickcast ", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn doctor_without_arguments_looks_at_the_host() {
    let done = run(&["doctor"]);
    let said = text(&done.stdout);
    assert!(matches!(done.status.code(), Some(0 | 1)), "{said}");
    for part in [
        "cores: ",
        "memory: ",
        "socket-buffers: ",
        "clock-source: ",
        "rdma: ",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(
        said.contains("ok       multicast: a datagram to a group and back on lo"),
        "{said}"
    );
    let done = run(&["doctor", "--json", "--interface", "nosuch0"]);
    assert_eq!(done.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let errors = checks.iter().filter(|it| it["verdict"] == "error");
    let ids: Vec<_> = errors.map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(report["counts"]["error"], ids.len(), "{report:#}");
    assert!(
        ids.contains(&"interface") && ids.contains(&"multicast"),
        "{report:#}"
    );
}

#[test]
fn doctor_without_rdma_names_missing_parts() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        println!("SKIPPED: this host has RDMA; the lab looks at what the doctor finds there");
        return;
    }
    let done = run(&["doctor", "--rdma", "--selftest", "--json"]);
    assert_eq!(done.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let findings: Vec<_> = checks.iter().filter(|c| c["verdict"] == "error").collect();
    assert_eq!(report["counts"]["error"], findings.len());
    for finding in &findings {
        let is_fixed = finding["do"].is_string() || finding["commands"].is_array();
        assert!(finding["why"].is_string() && is_fixed, "{finding}");
    }
    let found = |id: &str, text: &str| {
        let has = |c: &&Value| c["id"] == id && c["found"].as_str().unwrap().contains(text);
        findings.iter().any(has)
    };
    assert!(found("rdma-devices", "this host has none"), "{report:#}");
    assert!(
        found("rdma-selftest", "this host has no device"),
        "{report:#}"
    );
    let done = run(&["doctor", "--rdma"]);
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stdout);
    for part in [
        "ERROR    rdma-devices",
        "why: ",
        "do:  ",
        "modprobe rdma_rxe",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
