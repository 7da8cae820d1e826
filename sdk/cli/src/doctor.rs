//! `gym doctor`.

use anyhow::Result;
use training_gym::backend::Resources;
use training_gym::doctor::{Finding, Report, store_at};
use training_gym::external::serde_json;
use training_gym::gym::{self, Gym};

use crate::args::Doctor;
use crate::{End, output};

pub(crate) async fn run(gym: impl Fn() -> Result<Gym, gym::Error>, asked: &Doctor, json: bool) -> Result<End> {
    let report = match &asked.store {
        Some(url) => store_at(url).await,
        // That there is no client is a finding, too.
        None => match gym() {
            Ok(gym) => gym.doctor(&Resources { device: asked.device.clone(), ..Resources::default() }).await,
            Err(error) => {
                let remedy = error.hint().unwrap_or_default().to_owned();
                let detail = format!("{:#}", anyhow::Error::new(error));
                Report { findings: vec![Finding::failed("client", detail, remedy)] }
            }
        },
    };
    match json {
        true => output::json(&serde_json::to_value(&report)?)?,
        false => report.to_string().lines().try_for_each(output::line)?,
    }
    Ok(if report.has_failed() { End::NotInOrder } else { End::Well })
}
