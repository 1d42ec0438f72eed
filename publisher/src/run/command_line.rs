//! The command line of `tickcast-publisher`. It is here, so that its man page and shell completions can be
//! written from it.

use std::path::PathBuf;

use clap::Parser;
use tickcast_log::program::LogFormat;

/// Publishes market data by multicast, and repairs the gaps of subscribers.
#[derive(Debug, Parser)]
#[command(name = "tickcast-publisher", version)]
pub struct CommandLine {
    /// Path of the JSON config (configs/publisher.schema.json describes its fields).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Explain the config and its doubtful values, then exit.
    #[arg(long, conflicts_with = "print_effective")]
    pub check: bool,
    /// Start although another publisher sends to a group of this config. Subscribers of each
    /// publisher then drop the datagrams of the other.
    #[arg(long, conflicts_with_all = ["check", "print_effective"])]
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
