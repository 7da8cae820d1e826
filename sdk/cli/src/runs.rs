//! `gym runs`.

use anyhow::Result;
use training_gym::external::serde_json::{Value, json};
use training_gym::gym::Gym;
use training_gym::run::{RunInfo, TrainRun};

use crate::args::Runs;
use crate::{logs, output, unknown};

pub(crate) async fn run(gym: &Gym, action: Runs, json: bool) -> Result<()> {
    match action {
        Runs::List => list(gym, json).await,
        Runs::Show { id } => show(gym, &id, json).await,
        Runs::Logs(asked) => {
            let run = find(gym, &asked.name).await?;
            logs::of_run(gym, &run, &asked, json).await
        }
        Runs::Stop { id } => {
            let run = find(gym, &id).await?;
            run.cancel().await?;
            let state = run.status().await?.state;
            match json {
                true => output::json(&json!({"run_id": id, "state": state})),
                false => output::line(&format!("run {id}: {}", word(&json!(state)))),
            }
        }
    }
}

/// A run by its id; else which there are.
pub(crate) async fn find(gym: &Gym, id: &str) -> Result<TrainRun> {
    match gym.run(id).await {
        Err(training_gym::run::Error::NotFound { .. }) => {
            let there: Vec<String> = gym.runs().await?.into_iter().map(|run| run.run_id.to_string()).collect();
            Err(unknown("run", id, &there))
        }
        other => Ok(other?),
    }
}

fn document(run: &RunInfo) -> Value {
    json!({"run_id": run.run_id, "model": run.model, "status": run.status})
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn list(gym: &Gym, json: bool) -> Result<()> {
    let mut runs = gym.runs().await?;
    if json {
        return output::json(&runs.iter().map(document).collect());
    }
    runs.sort_by(|a, b| b.status.updated_at.total_cmp(&a.status.updated_at));
    if runs.is_empty() {
        return output::line(&format!("no runs in {}", gym.store().url()));
    }
    let row = |run: &RunInfo| {
        let status = &run.status;
        vec![
            run.run_id.to_string(),
            run.model.clone(),
            word(&json!(status.state)),
            format!("{}/{}", status.step, status.num_rollout),
            output::ago(status.updated_at),
            status.failure.as_ref().map_or_else(String::new, |failure| word(&json!(failure.cause))),
        ]
    };
    output::table(&["RUN", "MODEL", "STATE", "STEP", "UPDATED", "CAUSE"], &runs.iter().map(row).collect::<Vec<_>>())
}

async fn show(gym: &Gym, id: &str, json: bool) -> Result<()> {
    let run = find(gym, id).await?;
    let (status, metrics) = (run.status().await?, run.metrics().await?);
    let checkpoints = run.checkpoints().await?;
    let last = metrics.last();
    let places: Vec<String> = checkpoints.iter().map(|checkpoint| format!("step {}", checkpoint.step)).collect();
    if json {
        let steps: Vec<u64> = checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
        return output::json(&json!({
            "run_id": id,
            "model": run.spec().model.name,
            "status": status,
            "last_metrics": last,
            "checkpoints": steps,
            "last_checkpoint": checkpoints.last().map(|checkpoint| checkpoint.url()),
            "store": gym.store().url(),
        }));
    }
    let mut rows = vec![
        ("run", id.to_owned()),
        ("model", run.spec().model.name.clone()),
        ("state", word(&json!(status.state))),
        ("step", format!("{} of {}", status.step, status.num_rollout)),
        ("attempt", status.attempt.to_string()),
        ("updated", output::ago(status.updated_at)),
        ("store", gym.store().url()),
    ];
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    if let Some(last) = last {
        rows.push(("reward", number(last.reward)));
        rows.push(("reverse KL", number(last.reverse_kl)));
        rows.push(("step takes", format!("{:.1} s", last.step_seconds)));
    }
    rows.extend(checkpoints.last().map(|checkpoint| ("last checkpoint", checkpoint.url())));
    rows.push(("checkpoints", if places.is_empty() { "none yet".to_owned() } else { places.join(", ") }));
    if let Some(failure) = &status.failure {
        rows.push(("failed", failure.sentence.clone()));
        rows.push(("cause", word(&json!(failure.cause))));
        rows.push(("next step", failure.next_step.clone()));
    }
    rows.extend(status.notes.iter().map(|note| ("note", note.clone())));
    for (name, value) in rows {
        output::line(&format!("{name:12}{value}"))?;
    }
    Ok(())
}
