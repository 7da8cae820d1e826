//! Making a job's objects, or finding that they are there.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use super::KubernetesBackend;
use super::credentials::Access;
use super::error::ClusterError;
use super::look::{Owner, now, state};
use crate::backend::difference::first_difference;
use crate::backend::{Error, HUB_TOKEN, IfExisting, JobId, Request, Submitted};
use crate::manifest::{self, COMPLETE, Plan};

/// How long objects that are removed may take to go, beyond their own grace.
pub(super) const GONE: Duration = Duration::from_secs(180);
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// Others may submit and remove the same meanwhile; this often they may be faster.
const ROUNDS: usize = 8;

impl KubernetesBackend {
    pub(super) async fn start(&self, mut request: Request) -> Result<Submitted, Error> {
        self.allowed().await?;
        if let Some(token) = self.inner.hub_token.clone().filter(|_| self.inner.options.hub_cache_claim.is_some()) {
            request.secrets.insert(HUB_TOKEN.to_owned(), token);
        }
        let access = self.store_access().await?;
        let image = self.inner.options.image().map_err(ClusterError::from)?;
        let plan = Plan {
            request: &request,
            options: &self.inner.options,
            image,
            store: &self.inner.store_url,
            store_access: access.0.clone(),
            submitted_at: now(),
        };
        let id = plan.id();
        let mut replace = request.if_existing == IfExisting::Replace;
        for _ in 0..ROUNDS {
            match self.owner(&id).await? {
                None => {
                    // Another submission may be faster: then it is looked at.
                    if let Some(owner) = self.make(&plan).await? {
                        self.finish(&plan, &owner, &access).await?;
                        return Ok(Submitted::Started);
                    }
                }
                Some(there) if replace => {
                    self.put_away(&there).await?;
                    replace = false;
                }
                Some(there) => {
                    let pods = self.pods(&there).await?;
                    if !state(&there, &pods, None, f64::INFINITY).state.is_live() {
                        self.put_away(&there).await?;
                        continue;
                    }
                    same(&id, &there, &request)?;
                    if there.is_complete() {
                        return Ok(Submitted::Adopted);
                    }
                    // Whoever made it was cut short, or is at it: writing the same twice does no harm.
                    self.finish(&plan, &there, &access).await?;
                    return Ok(Submitted::Started);
                }
            }
        }
        let said = "others keep submitting and removing it".to_owned();
        Err(ClusterError::Conflict { action: format!("start `{id}`"), said }.into())
    }

    /// Makes the object that owns the others; `None` where one is there.
    async fn make(&self, plan: &Plan<'_>) -> Result<Option<Owner>, ClusterError> {
        let name = plan.name();
        if let Some(job) = manifest::job(plan) {
            let made = self.cluster().create::<ClusterJob>(&name, &job).await?;
            return Ok(made.map(|job| Owner::Train(Box::new(job))));
        }
        let Some(deployment) = manifest::deployment(plan) else { return Ok(None) };
        let made = self.cluster().create::<Deployment>(&name, &manifest::unstarted(deployment)).await?;
        Ok(made.map(|deployment| Owner::Serve(Box::new(deployment))))
    }

    /// Makes what it owns, then lets it go.
    async fn finish(&self, plan: &Plan<'_>, owner: &Owner, access: &Access) -> Result<(), ClusterError> {
        let reference = owner.reference()?;
        let name = plan.name();
        if let Some(secret) = manifest::secret(plan, &reference) {
            self.cluster().apply::<core::Secret>(&name, &secret).await?;
        }
        if !access.1.is_empty() {
            let secret = manifest::store_secret(plan, &reference, &access.1);
            self.cluster().apply::<core::Secret>(&manifest::store_secret_name(&name), &secret).await?;
        }
        if let Some(map) = manifest::config_map(plan, &reference) {
            self.cluster().apply::<core::ConfigMap>(&name, &map).await?;
        }
        if plan.has_reward_pod() {
            self.make_reward_pod(plan, &reference).await?;
        }
        let complete = json!({ COMPLETE: "true" });
        let gone =
            || ClusterError::Conflict { action: format!("start `{}`", plan.id()), said: "it was removed".to_owned() };
        match owner {
            Owner::Train(_) => {
                let mut change = json!({"metadata": {"annotations": complete}});
                // A queue lets its jobs go by itself.
                if plan.request.resources.queue.is_none() {
                    change["spec"] = json!({"suspend": false});
                }
                self.cluster().merge::<ClusterJob>(&name, &change).await?.ok_or_else(gone)?;
            }
            Owner::Serve(_) => {
                self.cluster().apply::<core::Service>(&name, &manifest::service(plan, &reference)).await?;
                let change = json!({"metadata": {"annotations": complete}, "spec": {"replicas": 1}});
                self.cluster().merge::<Deployment>(&name, &change).await?.ok_or_else(gone)?;
            }
        }
        Ok(())
    }

    /// Removes a job with all it owns, and waits until its pods are gone too: two of one name never
    /// compute side by side.
    pub(super) async fn put_away(&self, owner: &Owner) -> Result<(), ClusterError> {
        let (name, uid) = (owner.name(), owner.meta().uid.clone());
        match owner {
            Owner::Train(_) => self.cluster().delete::<ClusterJob>(name, uid.clone(), None).await?,
            Owner::Serve(_) => self.cluster().delete::<Deployment>(name, uid.clone(), None).await?,
        };
        let begun = Instant::now();
        loop {
            let still = self.owner(&owner.id()).await?.is_some_and(|there| there.meta().uid == uid);
            if !still && self.pods(owner).await?.iter().all(super::look::is_over) {
                return Ok(());
            }
            if begun.elapsed() > GONE {
                let action = format!("remove `{}`", owner.id());
                return Err(ClusterError::Timeout { action, waited: begun.elapsed() });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Refuses a live job that is something else.
fn same(id: &JobId, there: &Owner, request: &Request) -> Result<(), Error> {
    if there.spec_hash() == Some(manifest::spec_hash(request).as_str()) {
        return Ok(());
    }
    let (running, asked) = (there.asked_json()?, manifest::asked(request));
    let (field, running, asked) = match first_difference(&running, &asked) {
        Some(found) => (found.field, found.first, found.second),
        // The same documents under another hash: a damaged annotation.
        None => return Ok(()),
    };
    let field = field.strip_prefix("workload.").map(str::to_owned).unwrap_or(field);
    Err(Error::Different { id: id.clone(), field, running, asked })
}

impl KubernetesBackend {
    /// Whether a request is for a service.
    pub(super) fn serves(id: &JobId) -> bool {
        !matches!(id.as_str().split_once('-'), Some(("train", _)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Resources, Workload};

    #[test]
    fn another_request_under_the_same_name_is_named_by_its_first_difference() {
        let workload = Workload::Train { run_id: "r".parse().unwrap(), store: "s3://b".to_owned(), threads: 2 };
        let request = Request::new(workload);
        let (hash, asked) = (manifest::spec_hash(&request), manifest::asked(&request).to_string());
        let annotations = json!({manifest::SPEC_HASH: hash, manifest::ASKED: asked});
        let job = json!({"metadata": {"name": "train-r", "uid": "u", "annotations": annotations}});
        let there = Owner::Train(Box::new(serde_json::from_value(job).unwrap()));
        let id = request.workload.job_id();
        same(&id, &there, &request).unwrap();
        let larger = Resources { memory: Some("2Gi".to_owned()), ..Resources::default() };
        let error = same(&id, &there, &Request { resources: larger, ..request.clone() }).unwrap_err().to_string();
        assert!(error.contains("resources.memory") && error.contains("2Gi"), "{error}");
        let workload = Workload::Train { run_id: "r".parse().unwrap(), store: "s3://b".to_owned(), threads: 3 };
        let error = same(&id, &there, &Request { workload, ..request }).unwrap_err().to_string();
        assert!(error.contains("another threads: 2, asked for 3"), "{error}");
        assert_eq!(there.asked().unwrap().job_id(), id);
    }
}
