//! A killed `lab chaos`: none of its processes outlives it, and the next run removes its other leftovers.
//! The findings of a chaos run are tested in a stage of the whole test.

use std::fs;

use tickcast_test_support::{publisher_bin, text, wait_for};

use crate::{run, start};

/// Returns the live children of a process, without zombies.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|it| it.file_name().to_str()?.parse().ok());
    let is_child = |id: &u32| word(*id, "PPid:").is_some_and(|it| it == parent.to_string());
    ids.filter(is_child).filter(|id| lives(*id)).collect()
}

fn lives(id: u32) -> bool {
    word(id, "State:").is_some_and(|state| !["Z", "X"].contains(&state.as_str()))
}

/// Returns a field of a process's status in the kernel.
fn word(id: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let said = status.lines().find_map(|line| line.strip_prefix(name))?;
    said.split_whitespace().next().map(Into::into)
}

#[test]
fn killed_chaos_leaves_no_process_and_is_swept() {
    let publisher = publisher_bin();
    let chaos = |minutes: &'static str| {
        let publisher = publisher.to_str().unwrap();
        [
            "chaos",
            "--or-skip",
            "--minutes",
            minutes,
            "--publisher-bin",
            publisher,
        ]
    };
    let mut killed = start(&chaos("10"));
    let id = killed.child().id();
    // The publisher and four subscribers.
    let children = wait_for(
        "all of its processes, or word that it can have none",
        || {
            let children = children_of(id);
            let has_ended = killed.child().try_wait().unwrap().is_some();
            (children.len() >= 5 || has_ended).then_some(children)
        },
    );
    if children.is_empty() {
        let said = text(&killed.output().stderr);
        assert!(said.contains("SKIPPED"), "{said}");
        return;
    }
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    let disk = format!("tickcast-{id}-disk ");
    assert!(mounts().contains(&disk));
    killed.child().kill().unwrap();
    killed.child().wait().unwrap();
    wait_for("the end of its processes", || {
        (!children.iter().any(|child| lives(*child))).then_some(())
    });
    // A concurrent run may have removed it by now.
    let left = mounts();
    let disk = left.lines().find_map(|line| line.strip_prefix(&disk));
    let folder = disk.and_then(|at| Some(at.split_once("/disk")?.0));
    run(&chaos("0.01"));
    assert!(!mounts().contains(&format!("tickcast-{id}-")));
    assert!(folder.is_none_or(|folder| !fs::exists(folder).unwrap()));
}
