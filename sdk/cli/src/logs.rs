//! Logs of runs and deployments.

use anyhow::Result;
use training_gym::backend::{JobId, LogOptions};
use training_gym::external::serde_json::json;
use training_gym::gym::Gym;
use training_gym::run::TrainRun;

use crate::args::Logs;
use crate::{output, unknown};

pub(crate) async fn of_run(gym: &Gym, run: &TrainRun, asked: &Logs, json: bool) -> Result<()> {
    show(gym, &JobId::train(run.training_run_id()), asked, json).await
}

pub(crate) async fn of_deployment(gym: &Gym, asked: &Logs, json: bool) -> Result<()> {
    show(gym, &JobId::serve(&asked.name.parse()?), asked, json).await
}

/// Of the run of this id, else of the deployment of this name.
pub(crate) async fn of_either(gym: &Gym, asked: &Logs, json: bool) -> Result<()> {
    match gym.run(&asked.name).await {
        Ok(run) => return of_run(gym, &run, asked, json).await,
        Err(training_gym::run::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match gym.deployment(&asked.name).await {
        Ok(_) => return of_deployment(gym, asked, json).await,
        Err(training_gym::deploy::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let runs = gym.runs().await?.into_iter().map(|run| run.run_id.to_string());
    let deployments = gym.deployments().await?.into_iter().map(|one| one.app_name.to_string());
    Err(unknown("run or deployment", &asked.name, &runs.chain(deployments).collect::<Vec<_>>()))
}

async fn show(gym: &Gym, id: &JobId, asked: &Logs, json: bool) -> Result<()> {
    let options = LogOptions { tail: asked.tail, follow: asked.follow };
    let mut lines = gym.backend().logs(id, options).await?;
    while let Some(line) = lines.next_line().await? {
        match json {
            true => output::line(&json!({"line": line}).to_string())?,
            false => output::line(&line)?,
        }
    }
    Ok(())
}
