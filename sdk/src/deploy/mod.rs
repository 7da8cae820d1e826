//! Models behind HTTP: launch one, wait for it, talk to it, stop it.
//!
//! [`Endpoint`] promises chat. [`CustomDeployment`] also promises log-probabilities, which a teacher
//! needs: its start-up probe fails rather than train on numbers that are none. Both are a
//! [`Deployment`], which has all the verbs.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use training_gym::{config::models, deploy::{ChatOptions, Endpoint}};
//! # use training_gym_core::sample::Message;
//! # async fn example() -> Result<(), training_gym::deploy::Error> {
//! let base = Endpoint::launch(models::QWEN3_0_6B).await?;
//! base.wait_until_ready(Duration::from_secs(15 * 60)).await?;
//! let reply = base.chat(&[Message::user("2 + 2 = ?")], &ChatOptions::default()).await?;
//! println!("{}", reply.content);
//! base.stop().await
//! # }
//! ```
//!
//! A deployment outlives the program that launched it. Another program finds it with
//! [`Gym::deployment`](crate::gym::Gym::deployment) or launches the same again and *adopts* it.

pub(crate) mod chat;
mod engine;
mod error;
mod handle;
mod launch;
mod logprobs;
mod requests;
mod served;

use std::ops::Deref;

pub use chat::{ChatOptions, ChatReply, Usage};
pub use engine::EngineArguments;
pub use error::Error;
pub use handle::{Deployment, DeploymentInfo};
pub use launch::{Kind, Launch};
pub use served::ServedModel;

use crate::config::{Opd, Teacher, TeacherDialect};
use crate::gym::Gym;

/// A deployment that promises chat.
#[derive(Clone, Debug)]
pub struct Endpoint(Deployment);

/// A deployment that promises chat and log-probabilities of given tokens.
#[derive(Clone, Debug)]
pub struct CustomDeployment(Deployment);

impl Endpoint {
    /// Launches a model, a checkpoint, or a model with a checkpoint. See [`Launch`] for the options.
    pub fn launch(served: impl Into<ServedModel>) -> Launch<Self> {
        Launch::new(served.into())
    }

    /// All deployments of [`Gym::from_env`] that were not stopped: see [`Gym::deployments`].
    ///
    /// # Errors
    /// When their records cannot be read.
    pub async fn list() -> Result<Vec<DeploymentInfo>, Error> {
        Gym::from_env()?.deployments().await
    }
}

impl CustomDeployment {
    /// Launches a model, a checkpoint, or a model with a checkpoint. See [`Launch`] for the options.
    pub fn launch(served: impl Into<ServedModel>) -> Launch<Self> {
        Launch::new(served.into())
    }

    /// All deployments of [`Gym::from_env`] that were not stopped: see [`Gym::deployments`].
    ///
    /// # Errors
    /// When their records cannot be read.
    pub async fn list() -> Result<Vec<DeploymentInfo>, Error> {
        Endpoint::list().await
    }
}

impl From<Deployment> for Endpoint {
    /// Takes the deployment by its promise of chat alone.
    fn from(deployment: Deployment) -> Self {
        Self(Deployment { probed: false, ..deployment })
    }
}

impl From<Deployment> for CustomDeployment {
    /// Takes the deployment by its promise of log-probabilities: waiting for it probes them.
    fn from(deployment: Deployment) -> Self {
        Self(Deployment { probed: true, ..deployment })
    }
}

impl Deref for Endpoint {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.0
    }
}

impl Deref for CustomDeployment {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.0
    }
}

/// How a teacher's URL names a deployment that has no address yet.
pub(crate) const BY_NAME: &str = "deployment://";

impl From<&CustomDeployment> for Teacher {
    /// The deployment as a teacher. One that is still starting is named instead of addressed, and
    /// the launch of the run waits for it.
    fn from(deployment: &CustomDeployment) -> Self {
        let by_name = || format!("{BY_NAME}{}", deployment.app_name());
        Self {
            url: deployment.generate_url().unwrap_or_else(|_| by_name()),
            token: deployment.token_ref().cloned(),
            dialect: TeacherDialect::Sglang,
        }
    }
}

impl From<&CustomDeployment> for Opd {
    fn from(deployment: &CustomDeployment) -> Self {
        Teacher::from(deployment).into()
    }
}
