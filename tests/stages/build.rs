//! Passes the building compiler's version to `counts`. Instructions depend on that compiler, not on the
//! one in PATH when they are counted.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let text = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let version = text.unwrap_or_default();
    println!("cargo::rustc-env=TICKCAST_BUILT_BY={}", version.trim());
    println!("cargo::rerun-if-changed=build.rs");
}
