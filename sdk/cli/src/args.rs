//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Runs, deployments, logs, what is wrong, and what nobody needs any more.
///
/// Exit codes: 0 done; 1 it failed, and standard error says why; 2 the command line is wrong; 3 `doctor`
/// found something that is not in order.
#[derive(Debug, Parser)]
#[command(name = "gym", version)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON instead of tables: one document, or a line a log line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The state folder, instead of TRAINING_GYM_HOME.
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Training runs: list (the default), show, logs, stop.
    Runs {
        #[command(subcommand)]
        action: Option<Runs>,
    },
    /// Deployments: list (the default), logs, stop.
    Deployments {
        #[command(subcommand)]
        action: Option<Deployments>,
    },
    /// The log of a run or a deployment.
    Logs(Logs),
    /// What nobody needs any more. Shows it; removes it with --yes.
    Gc(Gc),
    /// Whether the environment is in order: store, backend, hub.
    Doctor(Doctor),
    /// Why a job on a cluster does not run, from `kubectl get pods,events,jobs,nodes -o json`.
    Explain(Explain),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// All runs, with their state.
    List,
    /// One run: state, steps, checkpoints, why it failed.
    Show {
        /// The run's id.
        id: String,
    },
    /// A run's log.
    Logs(Logs),
    /// Stop a run; it saves what it has, and can be continued.
    Stop {
        /// The run's id.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Deployments {
    /// All deployments that were not stopped.
    List,
    /// A deployment's log.
    Logs(Logs),
    /// Stop a deployment.
    Stop {
        /// The deployment's name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The run's id or the deployment's name.
    pub(crate) name: String,
    /// Go on until the job is over.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin with this many last lines.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Remove what is shown.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only what is at least this old: 30m, 12h, 7d. With 0 also objects whose age the store does not say,
    /// as S3 stores do not; then no launch may be under way.
    #[arg(long, value_name = "AGE", default_value = "24h", value_parser = age)]
    pub(crate) older_than: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Only try this store: file:///folder or s3://bucket/prefix?….
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Also look for room for a job on this device: cpu or cuda:N.
    #[arg(long)]
    pub(crate) device: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Files of JSON: objects, lists, status.json; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

fn age(text: &str) -> Result<Duration, String> {
    let rule = || format!("`{text}`: write 0, or a number with s, m, h or d, such as 12h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let split = text.len() - text.chars().last().map_or(0, char::len_utf8);
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(rule()),
    };
    let number: u64 = number.parse().map_err(|_| rule())?;
    number.checked_mul(scale).map(Duration::from_secs).ok_or_else(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_ages_are_read() {
        Arguments::command().debug_assert();
        assert_eq!(age("0"), Ok(Duration::ZERO));
        assert_eq!(age("12h"), Ok(Duration::from_secs(43_200)));
        for bad in ["", "h", "12", "1w", "-1d", "99999999999999999999d", "9999999999999999999d", "1é"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
