//! `gym eval`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use training_gym::config::Model;
use training_gym::dataset::HuggingFaceDataset;
use training_gym::deploy::{ChatOptions, ChatReply, Deployment, Endpoint};
use training_gym::eval::{Benchmark, ChatServer, ChatTarget, Grader, Instruction, Report, Summary, evaluate};
use training_gym::external::serde_json::{Value, json};
use training_gym::gym::Gym;
use training_gym::sample::Row;

use crate::args::Eval;
use crate::{deployments, output};

/// A large model on a small machine takes its time.
const READY_WITHIN: Duration = Duration::from_secs(30 * 60);

pub(crate) async fn run(gym: impl Fn() -> Result<Gym>, asked: &Eval, json: bool) -> Result<()> {
    let grader: Grader = asked.grader.parse()?;
    let sets = questions(asked).await?;
    if asked.out.is_some() && sets.len() > 1 {
        bail!("--out takes one benchmark: a report is one evaluation's");
    }
    let mut started = None;
    let evaluated = tokio::select! {
        evaluated = all(&gym, asked, (grader, &sets), &mut started) => evaluated,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    // What was deployed for this is stopped, also when something failed.
    if let Some(deployment) = started {
        deployment.stop().await?;
    }
    let reports = evaluated?;
    if let (Some(out), [(_, report, _)]) = (&asked.out, reports.as_slice()) {
        report.write_json(out)?;
    }
    if json {
        let documents: Vec<Value> = reports
            .iter()
            .map(|(name, _, summary)| json!({"data": name, "grader": grader.to_string(), "summary": summary}))
            .collect();
        return output::json(&documents.into());
    }
    for (name, _, summary) in &reports {
        output::line(&format!("{name}, {}, grader {grader}", summary.target))?;
        summary.to_string().lines().try_for_each(output::line)?;
    }
    Ok(())
}

/// Each set of questions with its name.
async fn questions(asked: &Eval) -> Result<Vec<(String, Vec<Row>)>> {
    let chosen = asked.instruction.as_deref().map(str::parse::<Instruction>).transpose()?;
    let first = |mut rows: Vec<Row>| {
        rows.truncate(asked.limit.unwrap_or(usize::MAX));
        rows
    };
    if let Some(file) = &asked.data {
        let dataset = HuggingFaceDataset::file(file).input_key(&asked.input_key).label_key(&asked.label_key);
        let rows = dataset.load().await?;
        let frame = chosen.unwrap_or(Instruction::None);
        return Ok(vec![(file.display().to_string(), first(rows.into_iter().map(|row| frame.apply(row)).collect()))]);
    }
    let mut sets = Vec::new();
    for name in &asked.benchmark {
        let benchmark: Benchmark = name.parse()?;
        let dataset = match &asked.data_dir {
            None => benchmark.dataset()?,
            Some(folder) => benchmark.dataset_in(file_of(benchmark, folder)?),
        };
        let rows = benchmark.load(&dataset, chosen.unwrap_or_default()).await?;
        sets.push((name.clone(), first(rows)));
    }
    Ok(sets)
}

fn file_of(benchmark: Benchmark, folder: &Path) -> Result<std::path::PathBuf> {
    benchmark.find_in(folder).with_context(|| {
        format!("`{}` has no file of {benchmark}; looked for {}", folder.display(), benchmark.files().join(", "))
    })
}

type Evaluated = Vec<(String, Report, Summary)>;

async fn all(
    gym: &impl Fn() -> Result<Gym>,
    asked: &Eval,
    (grader, sets): (Grader, &[(String, Vec<Row>)]),
    started: &mut Option<Deployment>,
) -> Result<Evaluated> {
    let target = target(gym, asked, started).await?;
    let grade = |row: &Row, reply: &ChatReply| grader.score(reply.said(), &row.label);
    let mut reports = Vec::new();
    for (name, rows) in sets {
        let mut report = evaluate(&*target, rows, grade)
            .options(options(asked))
            .samples(asked.val_n)
            .max_concurrency(asked.concurrency)
            .await
            .with_context(|| format!("cannot evaluate on {name}"))?;
        // A deployment of this process alone is better told by its model.
        if let Some(model) = &asked.model {
            report.target.clone_from(model);
        }
        let summary = report.summary(grader)?;
        reports.push((name.clone(), report, summary));
    }
    Ok(reports)
}

fn options(asked: &Eval) -> ChatOptions {
    let options = ChatOptions {
        temperature: asked.temperature,
        top_p: asked.top_p,
        top_k: asked.top_k,
        max_tokens: asked.max_tokens,
        seed: asked.seed,
        ..ChatOptions::default()
    };
    match asked.enable_thinking {
        Some(on) => options.chat_template_kwarg("enable_thinking", on),
        None => options,
    }
}

async fn target(
    gym: &impl Fn() -> Result<Gym>,
    asked: &Eval,
    started: &mut Option<Deployment>,
) -> Result<Box<dyn ChatTarget>> {
    if let Some(url) = &asked.url {
        let mut server = ChatServer::new(url)?;
        if let Some(variable) = &asked.token_env {
            server = server.token_from(variable)?;
        }
        if let Some(model) = &asked.served_model {
            server = server.model(model);
        }
        return Ok(Box::new(server.find_model().await?));
    }
    if let Some(name) = &asked.deployment {
        return Ok(Box::new(deployments::find(&gym()?, name).await?));
    }
    let model = model(asked.model.as_deref().unwrap_or_default());
    // Of this process, so that two evaluations of one model do not share or stop each other's.
    let name = format!("eval-{}", std::process::id());
    let endpoint = Endpoint::launch(model).app_name(name).on(&gym()?).await?;
    *started = Some((*endpoint).clone());
    endpoint.wait_until_ready(READY_WITHIN).await?;
    Ok(Box::new(endpoint))
}

/// A folder where there is one, else a hub id.
pub(crate) fn model(name: &str) -> Model {
    if Path::new(name).is_dir() { Model::folder(name) } else { Model::hub(name) }
}
