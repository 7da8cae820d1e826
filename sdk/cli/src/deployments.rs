//! `gym deployments`.

use anyhow::Result;
use training_gym::deploy::{self, Deployment, DeploymentInfo};
use training_gym::external::serde_json::{Value, json};
use training_gym::gym::Gym;

use crate::args::Deployments;
use crate::{logs, output, unknown};

pub(crate) async fn run(gym: &Gym, action: Deployments, json: bool) -> Result<()> {
    match action {
        Deployments::List => list(gym, json).await,
        Deployments::Logs(asked) => {
            find(gym, &asked.name).await?;
            logs::of_deployment(gym, &asked, json).await
        }
        Deployments::Stop { name } => {
            let deployment = find(gym, &name).await?;
            deployment.stop().await?;
            let state = deployment.state().await?.to_string();
            match json {
                true => output::json(&json!({"app_name": name, "state": state})),
                false => output::line(&format!("deployment {name}: {state}")),
            }
        }
    }
}

/// A deployment by its name; else which there are.
pub(crate) async fn find(gym: &Gym, name: &str) -> Result<Deployment> {
    match gym.deployment(name).await {
        Err(deploy::Error::NotFound { .. }) => {
            let there: Vec<String> = gym.deployments().await?.into_iter().map(|one| one.app_name.to_string()).collect();
            Err(unknown("deployment", name, &there))
        }
        other => Ok(other?),
    }
}

fn document(one: &DeploymentInfo) -> Value {
    json!({
        "app_name": one.app_name,
        "model": one.model,
        "promises_logprobs": one.promises_logprobs,
        "state": one.state.to_string(),
        "live": one.state.is_live(),
        "url": one.url,
        "launched_at": one.launched_at,
    })
}

async fn list(gym: &Gym, json: bool) -> Result<()> {
    let all = gym.deployments().await?;
    if json {
        return output::json(&all.iter().map(document).collect());
    }
    if all.is_empty() {
        return output::line(&format!("no deployments in {}", gym.backend().name()));
    }
    let row = |one: &DeploymentInfo| {
        vec![
            one.app_name.to_string(),
            one.model.clone(),
            if one.promises_logprobs { "log-probs".to_owned() } else { "chat".to_owned() },
            one.state.to_string(),
            output::ago(one.launched_at),
            one.url.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    output::table(&["NAME", "MODEL", "PROMISES", "STATE", "LAUNCHED", "URL"], &all.iter().map(row).collect::<Vec<_>>())
}
