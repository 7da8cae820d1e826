//! `gym data prepare`.

use anyhow::Result;
use training_gym::eval::Instruction;
use training_gym::external::serde_json::{Map, json};
use training_gym::gym::Gym;
use training_gym::prepare::{Preparation, Source};

use crate::args::Prepare;
use crate::{eval, output};

pub(crate) async fn prepare(gym: impl Fn() -> Result<Gym>, asked: &Prepare, json: bool) -> Result<()> {
    let instruction = match asked.instruction.as_str() {
        "keep" => None,
        name => Some(name.parse::<Instruction>()?),
    };
    let mut preparation = Preparation::new(&asked.out)
        .instruction(instruction)
        .max_prompt_len(asked.max_prompt_len)
        .validation(asked.validation)
        .seed(asked.seed)
        .keep_duplicates(asked.keep_duplicates)
        .replace(asked.replace);
    if let Some(folder) = &asked.data_dir {
        preparation = preparation.data_folder(folder)?;
    }
    if let Some(file) = &asked.train {
        let source = Source::file("train", file);
        preparation = preparation.train(match asked.columns.as_deref() {
            Some([question, answer]) => source.columns(question, answer),
            _ => source,
        });
    }
    for (name, file) in &asked.eval {
        preparation = preparation.eval(Source::file(name, file));
    }
    if let Some(model) = &asked.model {
        preparation = preparation.tokenizer(eval::model(model)).on(&gym()?);
    }
    if let Some(on) = asked.enable_thinking {
        let kwargs: Map<_, _> = [("enable_thinking".to_owned(), on.into())].into_iter().collect();
        preparation = preparation.chat_template_kwargs(kwargs);
    }
    let report = preparation.await?;
    match json {
        true => output::json(&json!(report)),
        false => report.to_string().lines().try_for_each(output::line),
    }
}
