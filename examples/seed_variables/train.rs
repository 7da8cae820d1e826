//! The run that the variables ask for.

use training_gym::prelude::*;

use crate::{Environment, Knobs, Program, data};

/// Reads the variables of `program`, prepares the data, trains, and says what came of it.
///
/// # Errors
/// Of the variables, all that are wrong; of the data; of the run.
pub async fn train(program: Program) -> anyhow::Result<()> {
    let knobs = Knobs::read(&Environment::of_process(), program)?;
    for note in &knobs.notes {
        println!("note: {note}");
    }
    let gym = Gym::from_env()?;
    let data = data(&knobs, &gym).await?;
    let recipe = knobs.recipe(data.rows, data.eval.is_some())?;
    let mut launch = TrainConfig { model: knobs.model, dataset: data.train, recipe }.launch().on(&gym);
    if let Some(eval) = data.eval {
        launch = launch.eval(eval);
    }
    if let Some(name) = &knobs.name {
        launch = launch.run_id(name.as_str());
    }
    let run = launch.await?;
    println!("run id: {}", run.training_run_id());
    let result = run.result().await?;
    println!("checkpoint: {}", result.checkpoints().last());
    Ok(())
}
