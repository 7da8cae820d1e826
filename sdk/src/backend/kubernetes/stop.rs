//! Ending a job.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::KubernetesBackend;
use super::look::{Owner, is_over, state};
use crate::backend::{Error, JobId};
use crate::manifest::CANCELLED;

/// How long a kubelet may take to notice, beyond the grace; and a pod that is killed.
const MARGIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

impl KubernetesBackend {
    /// A deployment is removed with all it owns. A training job's record stays for a while: it is told
    /// to end by a deadline of now, which gives its trainer the time to save.
    pub(super) async fn stop(&self, id: &JobId, grace: Duration) -> Result<(), Error> {
        let owner = match self.owner(id).await? {
            Some(owner) => owner,
            // A deployment that was stopped left nothing.
            None if Self::serves(id) => return Ok(()),
            None => return Err(self.unknown(id)),
        };
        match &owner {
            Owner::Serve(_) => {
                let (name, uid) = (owner.name(), owner.meta().uid.clone());
                self.cluster().delete::<Deployment>(name, uid, None).await?;
                self.inner.forwards.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(id);
            }
            Owner::Train(_) => {
                let pods = self.pods(&owner).await?;
                if !state(&owner, &pods, None, f64::INFINITY).state.is_live() {
                    return Ok(());
                }
                let change = json!({
                    "metadata": {"annotations": {CANCELLED: "true"}},
                    "spec": {"activeDeadlineSeconds": 1},
                });
                if self.cluster().merge::<ClusterJob>(owner.name(), &change).await?.is_none() {
                    return Ok(());
                }
            }
        }
        self.until_gone(&owner, grace).await?;
        if matches!(owner, Owner::Train(_)) {
            self.end_reward_pod(&owner).await?;
        }
        Ok(())
    }

    /// Waits for the pods to end; those that do not are killed.
    async fn until_gone(&self, owner: &Owner, grace: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        let mut killed = false;
        loop {
            let pods = self.pods(owner).await?;
            let live: Vec<&Pod> = pods.iter().filter(|pod| !is_over(pod)).collect();
            if live.is_empty() {
                return Ok(());
            }
            if !killed && begun.elapsed() > grace {
                killed = true;
                for pod in live {
                    let (name, uid) = (pod.metadata.name.as_deref().unwrap_or_default(), pod.metadata.uid.clone());
                    // A second to end; zero would take the record and leave the process.
                    self.cluster().delete::<Pod>(name, uid, Some(1)).await?;
                }
            } else if begun.elapsed() > grace + MARGIN {
                return Err(Error::Unstoppable { id: owner.id(), pids: Vec::new() });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
