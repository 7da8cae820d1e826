//! `gym`: what a person does from a shell with runs and deployments. It knows nothing that a program with
//! the SDK could not know: each command is a few calls of `training_gym`.

mod args;
mod data;
mod deployments;
mod doctor;
mod eval;
mod explain;
mod gc;
mod grade;
mod logs;
mod output;
mod runs;

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Parser;
use training_gym::gym::Gym;

use args::{Arguments, Command};

/// `doctor` found something that is not in order.
const NOT_IN_ORDER: u8 = 3;

/// How a command that did not fail ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    NotInOrder,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(End::Well) => ExitCode::SUCCESS,
        Ok(End::NotInOrder) => ExitCode::from(NOT_IN_ORDER),
        Err(error) => {
            // A standard error that is closed leaves nobody to tell.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("error: {error:#}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<End> {
    let Arguments { command, json, home } = arguments;
    let gym = || match &home {
        Some(home) => Gym::from_env_in(home),
        None => Gym::from_env(),
    };
    match command {
        Command::Runs { action } => runs::run(&gym()?, action.unwrap_or(args::Runs::List), json).await?,
        Command::Deployments { action } => {
            deployments::run(&gym()?, action.unwrap_or(args::Deployments::List), json).await?;
        }
        Command::Logs(asked) => logs::of_either(&gym()?, &asked, json).await?,
        Command::Gc(asked) => gc::run(&gym()?, &asked, json).await?,
        Command::Doctor(asked) => return doctor::run(gym, &asked, json).await,
        Command::Eval(asked) => eval::run(|| Ok(gym()?), &asked, json).await?,
        Command::Grade(asked) => grade::run(&asked, json)?,
        Command::Data { action: args::Data::Prepare(asked) } => data::prepare(|| Ok(gym()?), &asked, json).await?,
        Command::Explain(asked) => explain::run(&asked, json)?,
    }
    Ok(End::Well)
}

/// What to say of a name that is not there: which there are.
fn unknown(kind: &str, name: &str, there: &[String]) -> anyhow::Error {
    let there = match there {
        [] => "there is none at all".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    anyhow!("there is no {kind} `{name}`; {there}")
}
