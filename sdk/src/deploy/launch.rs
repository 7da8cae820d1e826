//! Launching: from what a person asks for to a job of the backend.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;

use training_gym_core::ids::{AppName, InvalidName};
use training_gym_core::spec::ServeSpec;

use super::handle::{Deployment, TOKEN, labels};
use super::{CustomDeployment, Endpoint, EngineArguments, Error, ServedModel};
use crate::backend::{self, IfExisting, JobId, Request, Resources, Secret, Workload};
use crate::gym::Gym;

/// A kind of deployment: what [`Launch`] yields.
pub trait Kind: From<Deployment> + Send + 'static {
    /// What it promises, as its record says: `endpoint` or `custom`.
    const PROMISE: &'static str;
}

/// A deployment about to be launched: `.await` it.
///
/// A live deployment of the same name is *adopted* if it is the same in everything (model, engine,
/// authentication, resources), and otherwise refused, unless `recreate_if_existing`.
#[must_use = "nothing is launched until it is awaited"]
#[derive(Debug)]
pub struct Launch<D> {
    served: ServedModel,
    app_name: Option<Result<AppName, InvalidName>>,
    authentication: Authentication,
    if_existing: IfExisting,
    engine: EngineArguments,
    resources: Resources,
    gym: Option<Gym>,
    kind: PhantomData<fn() -> D>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Authentication {
    Bearer,
    None,
}

impl<D> Launch<D> {
    pub(super) fn new(served: ServedModel) -> Self {
        Self {
            served,
            app_name: None,
            authentication: Authentication::Bearer,
            if_existing: IfExisting::Adopt,
            engine: EngineArguments::default(),
            resources: Resources::default(),
            gym: None,
            kind: PhantomData,
        }
    }

    /// Names the deployment; one live deployment has the name at a time. Unset: made from the model's
    /// or the checkpoint's name.
    pub fn app_name(mut self, name: impl AsRef<str>) -> Self {
        self.app_name = Some(name.as_ref().parse());
        self
    }

    /// Serves to anyone who reaches the address. Otherwise a bearer token is made, kept in a file
    /// that only its owner reads, and sent by the handle.
    pub fn unauthenticated(mut self, yes: bool) -> Self {
        self.authentication = if yes { Authentication::None } else { Authentication::Bearer };
        self
    }

    /// Stops a live deployment of the same name and starts anew, instead of adopting it.
    pub fn recreate_if_existing(mut self, yes: bool) -> Self {
        self.if_existing = if yes { IfExisting::Replace } else { IfExisting::Adopt };
        self
    }

    /// What it computes with.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    /// Launches with this client instead of [`Gym::from_env`].
    pub fn on(mut self, gym: &Gym) -> Self {
        self.gym = Some(gym.clone());
        self
    }

    async fn start(self, promise: &'static str) -> Result<Deployment, Error> {
        let engine = self.engine.spec()?;
        let app_name = self.app_name.unwrap_or_else(|| Ok(self.served.default_app_name()))?;
        let gym = self.gym.map_or_else(Gym::from_env, Ok)?;
        let (name, model) = (self.served.name(), self.served.model());
        let placed = match self.served.checkpoint() {
            Some(checkpoint) => gym.checkpoint(model, name, checkpoint).await?,
            None => gym.model(model, name, None).await?,
        };
        let backend = gym.backend();
        let id = JobId::serve(&app_name);
        // Held until the job is submitted.
        let share = backend.share(&id).await?;
        let token = (self.authentication == Authentication::Bearer).then(Secret::generate);
        if let Some(note) = backend.not_applied(&self.resources) {
            tracing::info!("{note}");
        }
        let (host, port) = backend.listen_on();
        let spec = ServeSpec {
            app_name: app_name.clone(),
            node: self.resources.node(&share, &placed.folder, backend.fast_bfloat16())?,
            model: placed.spec,
            host: host.to_owned(),
            port,
            token: token.as_ref().map(|_| backend.secret_ref(&id, TOKEN)),
            engine,
        };
        let secrets: BTreeMap<_, _> = token.map(|token| (TOKEN.to_owned(), token)).into_iter().collect();
        let request = Request {
            labels: labels(self.served.model(), promise),
            secrets,
            resources: self.resources.placement(),
            if_existing: self.if_existing,
            ..Request::new(Workload::Serve { spec: Box::new(spec) })
        };
        backend.submit(request).await.map_err(|error| match error {
            backend::Error::Different { field, running, asked, .. } => Error::Existing {
                app_name: app_name.to_string(),
                field: field.strip_prefix("spec.").unwrap_or(&field).to_owned(),
                running,
                asked,
            },
            other => other.into(),
        })?;
        drop(share);
        Deployment::find(backend, &app_name).await
    }
}

impl Launch<CustomDeployment> {
    /// Sets limits of the engine.
    pub fn engine(mut self, arguments: EngineArguments) -> Self {
        self.engine = arguments;
        self
    }

    /// Sets one limit of the engine by its name, as SGLang's command line writes it; a name nobody
    /// reads is refused with the nearest known one.
    pub fn engine_argument(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.engine = self.engine.with(name, value);
        self
    }
}

impl<D: Kind> IntoFuture for Launch<D> {
    type Output = Result<D, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.start(D::PROMISE).await?.into()) })
    }
}

impl Kind for Endpoint {
    const PROMISE: &'static str = "endpoint";
}

impl Kind for CustomDeployment {
    const PROMISE: &'static str = "custom";
}
