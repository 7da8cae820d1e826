//! `gym doctor`: the store, the backend and the hub.

use std::time::Duration;

use training_gym_core::chain;
use training_gym_core::store::{self, Store};

use super::{Finding, Report};
use crate::backend::Resources;
use crate::gym::Gym;
use crate::hub::Who;

/// How long the hub may take.
const HUB_PATIENCE: Duration = Duration::from_secs(15);

impl Gym {
    /// Looks at everything a job of this client needs, without starting one: whether the store keeps
    /// its promises (by writing to it and removing that again), what the backend says of itself and of
    /// room for `resources`, and whether the hub answers and knows the token. One finding each, in
    /// order; nothing that is wrong ends it.
    pub async fn doctor(&self, resources: &Resources) -> Report {
        let mut report = Report::default();
        report.push(Finding::ok("backend", self.backend().name()));
        report.findings.extend(store_findings(self.store().as_ref()).await);
        report.findings.extend(self.backend().doctor(resources).await);
        report.push(hub(self).await);
        report
    }
}

/// Whether the store at `url` keeps its promises; the reason as a finding where it cannot be opened.
pub async fn store_at(url: &str) -> Report {
    let findings = match store::open(url) {
        Ok(store) => store_findings(store.as_ref()).await,
        Err(error) => {
            vec![Finding::failed("store", chain(&error), "correct the URL: see `docs/reference/environment.md`")]
        }
    };
    Report { findings }
}

/// A finding for each promise that a run relies on.
async fn store_findings(store: &dyn Store) -> Vec<Finding> {
    let steps = store::probe(store).await;
    let finding = |step: store::ProbeStep| {
        let check = format!("store: {}", step.name);
        match step.outcome {
            store::ProbeOutcome::Failed { sentence, meaning } => Finding::failed(check, sentence, meaning),
            store::ProbeOutcome::Passed => Finding::ok(check, format!("{} ms", step.took.as_millis())),
            _ => Finding::skipped(check, "an earlier step failed"),
        }
    };
    std::iter::once(Finding::ok("store", store.url())).chain(steps.into_iter().map(finding)).collect()
}

async fn hub(gym: &Gym) -> Finding {
    let options = gym.hub().options();
    if options.offline {
        return Finding::skipped("hub", format!("HF_HUB_OFFLINE is set: only {} is used", options.cache.display()));
    }
    let endpoint = &options.endpoint;
    match tokio::time::timeout(HUB_PATIENCE, gym.hub().who()).await {
        Ok(Ok(Who::Account(name))) => Finding::ok("hub", format!("{endpoint}, as `{name}`")),
        Ok(Ok(Who::Unknown)) => Finding::failed(
            "hub",
            format!("{endpoint} does not know the token"),
            "set HF_TOKEN to a valid token, or unset it for what is public",
        ),
        Ok(Ok(_)) => Finding::ok("hub", format!("{endpoint}, without a token: only public models and datasets")),
        Ok(Err(error)) => Finding::failed(
            "hub",
            chain(&error),
            "models and datasets of the hub cannot be fetched; folders and files can be used",
        ),
        Err(_) => Finding::failed(
            "hub",
            format!("{endpoint} did not answer within {} s", HUB_PATIENCE.as_secs()),
            "check the network and HTTPS_PROXY, or set HF_ENDPOINT to a mirror",
        ),
    }
}
