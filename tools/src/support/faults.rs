//! Fault options that several verbs share, and the plan built from them.

use std::path::PathBuf;

use clap::Args;
use tickcast_reliability::types::Nanos;
use tickcast_transport::faults::{Burst, Delay, FaultConfig, FaultConfigError, Reorder};

use crate::exit::ToolError;
use crate::support::args::probability;
use crate::support::files::read_json;

/// Random faults, and their seed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultArgs {
    /// Seed of all random faults: the same seed gives the same faults [default: 1].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Share of datagrams to drop.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub drop: Option<f64>,
    /// Drop in bursts of this mean length, instead of single datagrams.
    #[arg(long, value_name = "L")]
    pub burst: Option<f64>,
    /// Share of datagrams that arrive twice.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub duplicate: Option<f64>,
    /// Share of datagrams that later ones overtake.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub reorder: Option<f64>,
    /// Maximum number of later datagrams that overtake one.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub reorder_depth: u32,
    /// Share of datagrams that are held back.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub delay: Option<f64>,
    /// Maximum time that a datagram is held back, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1_000)]
    pub delay_us: u64,
    /// Share of datagrams in which bits are flipped.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub corrupt: Option<f64>,
    /// Share of datagrams that are truncated.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub truncate: Option<f64>,
    /// Fault plan as a JSON file: seed, probabilities, and a script of fixed faults. The other options
    /// override it.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
}

impl FaultArgs {
    /// Returns the validated plan.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the plan can't be read or is invalid.
    pub fn config(&self) -> Result<FaultConfig, ToolError> {
        let mut config = match &self.plan {
            Some(path) => read_json(path, "a fault plan")?,
            None => FaultConfig {
                seed: 1,
                ..FaultConfig::default()
            },
        };
        config.seed = self.seed.unwrap_or(config.seed);
        if let Some(drop) = self.drop {
            config.drop = drop;
        }
        if let Some(mean_len) = self.burst {
            let loss = std::mem::take(&mut config.drop);
            if loss == 0.0 {
                let text = "--burst sets the length of bursts; add --drop to set the share of \
                            losses";
                return Err(ToolError::Usage(text.into()));
            }
            config.burst = Some(Burst { loss, mean_len });
        }
        config.duplicate = self.duplicate.unwrap_or(config.duplicate);
        config.corrupt = self.corrupt.unwrap_or(config.corrupt);
        config.truncate = self.truncate.unwrap_or(config.truncate);
        if let Some(probability) = self.reorder {
            config.reorder = Some(Reorder {
                probability,
                depth: self.reorder_depth,
                hold: Nanos::from_ms(1),
            });
        }
        if let Some(probability) = self.delay {
            config.delay = Some(Delay {
                probability,
                min: Nanos::ZERO,
                max: Nanos::from_us(self.delay_us),
            });
        }
        match config.check() {
            // Name the flags as typed, instead of the plan's fields.
            Err(FaultConfigError::Burst { loss, mean_len, .. }) if self.drop.is_some() => {
                Err(ToolError::Usage(format!(
                    "--drop {loss} is impossible in bursts of {mean_len} (--burst): a burst has \
                     at least one datagram, and at least one arrives between bursts; drop less, \
                     or make the bursts longer"
                )))
            }
            checked => Ok(checked.map(|()| config)?),
        }
    }

    /// Returns whether the plan injects any fault.
    pub fn asked(config: &FaultConfig) -> bool {
        let quiet = FaultConfig {
            seed: config.seed,
            ..FaultConfig::default()
        };
        *config != quiet
    }
}
