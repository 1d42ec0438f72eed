//! The command line of `tickcast-publisher`. It is here, so that its man page and shell completions can be
//! written from it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use tickcast_log::program::LogFormat;

/// Publishes market data by multicast, and repairs the gaps of subscribers.
#[derive(Debug, Parser)]
#[command(name = "tickcast-publisher", version)]
pub struct CommandLine {
    /// Path of the JSON config. Its schema describes the fields.
    #[arg(long, value_name = "FILE", required_unless_present = "schema")]
    pub config: Option<PathBuf>,
    /// Print the JSON schema of configs, then exit.
    #[arg(long, conflicts_with_all = ["check", "print_effective", "diff"])]
    pub schema: bool,
    /// Explain the config and its doubtful values, then exit.
    #[arg(long, conflicts_with = "print_effective")]
    pub check: bool,
    /// Compare the config with the running publisher, then exit: 0 if all settings are the same, 1 if any
    /// differs. The config's admin port is asked, or this one.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["check", "print_effective"])]
    pub diff: Option<Option<SocketAddr>>,
    /// Start although another publisher sends to a group of this config. Subscribers of each
    /// publisher then drop the datagrams of the other.
    #[arg(long, conflicts_with_all = ["check", "print_effective", "diff"])]
    pub force: bool,
    /// Print the config with all defaults filled in, then exit.
    #[arg(long)]
    pub print_effective: bool,
    /// Write the summary of the run into this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Write the listening addresses into this file, as JSON, once the ports are open.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Format of log lines; RUST_LOG selects them.
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Append each admission, memory grant, refusal and ban, with its reason, to this file: one
    /// JSON object a line, independent of RUST_LOG. SIGHUP reopens the file.
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
}
