//! The objects of a reward function that has a pod of its own.

use std::time::Instant;

use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::KubernetesBackend;
use super::client::Kind;
use super::error::ClusterError;
use super::look::Owner;
use super::submit::{GONE, PAUSE};
use crate::backend::Secret;
use crate::manifest::{self, Plan};

impl KubernetesBackend {
    /// Makes what the pod needs, then the Job that keeps it. The policy comes first: it holds from the
    /// pod's first moment.
    pub(super) async fn make_reward_pod(&self, plan: &Plan<'_>, owner: &OwnerReference) -> Result<(), ClusterError> {
        let name = plan.reward_name();
        self.cluster().apply::<NetworkPolicy>(&name, &manifest::reward_policy(plan, owner)).await?;
        let token = Secret::generate();
        self.make_once::<core::Secret>(&name, &manifest::reward_secret(plan, owner, &token), owner).await?;
        self.cluster().apply::<core::Service>(&name, &manifest::reward_service(plan, owner)).await?;
        self.make_once::<ClusterJob>(&name, &manifest::reward_job(plan, owner), owner).await
    }

    /// Creates an object that is never changed; one that an earlier job of this name left is removed.
    /// Whoever makes the same at the same time makes it for both.
    async fn make_once<K: Kind>(&self, name: &str, object: &K, owner: &OwnerReference) -> Result<(), ClusterError> {
        let begun = Instant::now();
        while self.cluster().create::<K>(name, object).await?.is_none() {
            if let Some(there) = self.cluster().get::<K>(name).await? {
                let meta = there.meta();
                let ours = meta.owner_references.iter().flatten().any(|of| of.uid == owner.uid);
                if ours && meta.deletion_timestamp.is_none() {
                    return Ok(());
                }
                self.cluster().delete::<K>(name, meta.uid.clone(), None).await?;
            }
            if begun.elapsed() > GONE {
                let action = format!("replace {} `{name}`", K::called());
                return Err(ClusterError::Timeout { action, waited: begun.elapsed() });
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Ends the reward pod of a job whose trainer was ended, and could not say so.
    pub(super) async fn end_reward_pod(&self, owner: &Owner) -> Result<(), ClusterError> {
        if owner.asked_json()?.get("reward_egress").is_some() {
            self.cluster().delete::<ClusterJob>(&manifest::reward_name(owner.name()), None, None).await?;
        }
        Ok(())
    }
}
