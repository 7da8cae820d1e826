//! What was left behind: objects of ours that nobody needs any more.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use training_gym_core::record::keys;
use training_gym_core::store;

use super::KubernetesBackend;
use super::client::Kind;
use super::error::ClusterError;
use super::look::{Owner, now, seconds};
use crate::backend::{Error, Orphan, Workload};
use crate::manifest::{APP, CANCELLED, COMPONENT, MANAGED_BY, REWARD, RUN, US};

/// A submission that was cut short is finished by the next, or is nobody's after this.
const CUT_SHORT: f64 = 600.0;

impl KubernetesBackend {
    pub(super) async fn find_orphans(&self) -> Result<Vec<Orphan>, Error> {
        let ours = format!("{MANAGED_BY}={US}");
        let jobs = self.cluster().list::<ClusterJob>(&format!("{ours},{COMPONENT}!={REWARD}")).await?;
        let deployments = self.cluster().list::<Deployment>(&ours).await?;
        let owners = jobs.iter().map(|job| &job.metadata).chain(deployments.iter().map(|one| &one.metadata));
        let live: BTreeSet<String> = owners.filter_map(|meta| meta.uid.clone()).collect();
        let mut orphans = Vec::new();
        for job in jobs {
            let labelled = |label: &str| job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
            let (is_run, is_question) = (labelled(RUN), labelled(APP));
            let owner = Owner::Train(Box::new(job));
            let why = match self.of_job(&owner, is_question) {
                None if is_run => self.without_run(&owner).await?,
                found => found.map(str::to_owned),
            };
            orphans.extend(why.map(|why| orphan::<ClusterJob>(owner.name(), why)));
        }
        for deployment in deployments {
            let owner = Owner::Serve(Box::new(deployment));
            if is_cut_short(&owner, now()) {
                orphans.push(orphan::<Deployment>(owner.name(), "its launch was cut short".to_owned()));
            }
        }
        self.ownerless::<ClusterJob>(&format!("{ours},{COMPONENT}={REWARD}"), &live, &mut orphans).await?;
        self.ownerless::<NetworkPolicy>(&ours, &live, &mut orphans).await?;
        self.ownerless::<Secret>(&ours, &live, &mut orphans).await?;
        self.ownerless::<ConfigMap>(&ours, &live, &mut orphans).await?;
        self.ownerless::<Service>(&ours, &live, &mut orphans).await?;
        Ok(orphans)
    }

    fn of_job(&self, owner: &Owner, is_question: bool) -> Option<&'static str> {
        let keep = self.inner.options.keep_finished().as_secs_f64();
        let age = now() - owner.submitted_at();
        match owner.end() {
            Some(end) if is_question || now() - end.at > keep => Some("it is over, and its time to be kept too"),
            Some(_) => None,
            None if is_cut_short(owner, now()) => Some("its launch was cut short"),
            None if owner.annotation(CANCELLED).is_some() && age > CUT_SHORT => {
                Some("it was cancelled before it started")
            }
            None => None,
        }
    }

    /// A run whose spec is gone from the store was removed by somebody.
    async fn without_run(&self, owner: &Owner) -> Result<Option<String>, Error> {
        let Ok(Workload::Train { run_id, .. }) = owner.asked() else {
            return Ok(Some("it does not say what it is for".to_owned()));
        };
        match self.inner.store.get(&keys::spec(&run_id)).await {
            Ok(_) => Ok(None),
            Err(store::Error::NotFound { .. }) => Ok(Some(format!("run `{run_id}` is not in the store"))),
            Err(error) => Err(ClusterError::from(error).into()),
        }
    }

    async fn ownerless<K: Kind>(
        &self,
        ours: &str,
        live: &BTreeSet<String>,
        orphans: &mut Vec<Orphan>,
    ) -> Result<(), ClusterError> {
        for object in self.cluster().list::<K>(ours).await? {
            let meta = object.meta();
            let owned = meta.owner_references.iter().flatten().any(|owner| live.contains(&owner.uid));
            // Just made: the list of owners may be older.
            let young = seconds(meta.creation_timestamp.as_ref()).is_some_and(|made| now() - made < CUT_SHORT);
            if !owned && !young {
                let name = meta.name.as_deref().unwrap_or_default();
                orphans.push(orphan::<K>(name, "what it belonged to is gone".to_owned()));
            }
        }
        Ok(())
    }

    pub(super) async fn remove_orphan(&self, orphan: &Orphan) -> Result<(), Error> {
        let (cluster, name) = (self.cluster(), orphan.name.as_str());
        match orphan.kind.as_str() {
            "job" => cluster.delete::<ClusterJob>(name, None, None).await?,
            "deployment" => cluster.delete::<Deployment>(name, None, None).await?,
            "secret" => cluster.delete::<Secret>(name, None, None).await?,
            "networkpolicy" => cluster.delete::<NetworkPolicy>(name, None, None).await?,
            "ConfigMap" => cluster.delete::<ConfigMap>(name, None, None).await?,
            _ => cluster.delete::<Service>(name, None, None).await?,
        };
        Ok(())
    }
}

fn is_cut_short(owner: &Owner, now: f64) -> bool {
    !owner.is_complete() && now - owner.submitted_at() > CUT_SHORT
}

fn orphan<K: Kind>(name: &str, why: String) -> Orphan {
    Orphan { kind: K::called(), name: name.to_owned(), why }
}
