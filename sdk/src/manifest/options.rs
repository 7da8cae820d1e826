//! What is the same for every job of a client on a cluster.

use std::time::Duration;

use crate::backend::is_object_name;

/// How a client uses a cluster. What is unset has its default; kubeconfig by the rules of `kubectl`.
///
/// ```
/// use training_gym::backend::kubernetes::KubernetesOptions;
/// let _ = KubernetesOptions {
///     namespace: Some("training-gym".to_owned()),
///     image: Some("registry.example.com/gym-runtime:0.1.0".to_owned()),
///     ..KubernetesOptions::default()
/// };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesOptions {
    /// Where objects are made. Unset: the kubeconfig context's namespace, else `default`.
    pub namespace: Option<String>,
    /// The image with `gym-runtime`: `images/` says how to build one. There is no default.
    pub image: Option<String>,
    /// When the image is pulled. Unset: as the cluster does (`Always` for the tag `latest`, else
    /// `IfNotPresent`).
    pub image_pull_policy: Option<PullPolicy>,
    /// Names of Secrets with a registry's credentials.
    pub image_pull_secrets: Vec<String>,
    /// The pods' service account, such as one that a cloud maps to a role with access to the store.
    /// No pod is given its token.
    pub service_account: Option<String>,
    /// The store's URL as pods reach it. Unset: as this program does.
    pub store_in_cluster: Option<String>,
    /// Name of a Secret with `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Unset: one is made for
    /// each job, if this program has such keys.
    pub store_secret: Option<String>,
    /// Name of a PersistentVolumeClaim for models of the hub: pods then fetch them from the hub
    /// themselves, once. Unset: this program puts them into the store.
    pub hub_cache_claim: Option<String>,
    /// How long a job may wait for its first start (a node, its image, its volumes) before it counts
    /// as failed. Time in a Kueue queue does not count. Unset: 15 minutes.
    pub start_timeout: Option<Duration>,
    /// How long the objects of a finished training job stay, for their log. Unset: one day.
    pub keep_finished: Option<Duration>,
}

/// When a node pulls the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Never: it was put onto the nodes by hand.
    Never,
}

impl PullPolicy {
    /// As a manifest writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// An option that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = `{given}`: {rule}")]
pub struct InvalidOption {
    name: &'static str,
    given: String,
    rule: String,
}

const NAMESPACE: &str = "TRAINING_GYM_NAMESPACE";
const IMAGE: &str = "TRAINING_GYM_IMAGE";
const PULL_POLICY: &str = "TRAINING_GYM_IMAGE_PULL_POLICY";
const PULL_SECRETS: &str = "TRAINING_GYM_IMAGE_PULL_SECRETS";
const SERVICE_ACCOUNT: &str = "TRAINING_GYM_SERVICE_ACCOUNT";
const STORE_IN_CLUSTER: &str = "TRAINING_GYM_STORE_IN_CLUSTER";
const STORE_SECRET: &str = "TRAINING_GYM_STORE_SECRET";
const HUB_CACHE_CLAIM: &str = "TRAINING_GYM_HUB_CACHE_CLAIM";
const START_TIMEOUT: &str = "TRAINING_GYM_START_TIMEOUT";

impl KubernetesOptions {
    /// What the variables `TRAINING_GYM_*` say; `docs/guides/kubernetes.md` lists them.
    ///
    /// # Errors
    /// The first variable that cannot be used.
    pub fn from_env() -> Result<Self, InvalidOption> {
        Self::read(|name| std::env::var(name).ok())
    }

    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidOption> {
        let variable =
            |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let image_pull_policy = variable(PULL_POLICY).map(|given| match given.as_str() {
            "Always" => Ok(PullPolicy::Always),
            "IfNotPresent" => Ok(PullPolicy::IfNotPresent),
            "Never" => Ok(PullPolicy::Never),
            _ => refuse(PULL_POLICY, &given, "write `Always`, `IfNotPresent` or `Never`"),
        });
        let start_timeout = variable(START_TIMEOUT).map(|given| match given.parse::<u64>() {
            Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
            _ => refuse(START_TIMEOUT, &given, "write a whole number of seconds above 0"),
        });
        let secrets = variable(PULL_SECRETS).unwrap_or_default();
        let secrets = secrets.split(',').map(str::trim).filter(|name| !name.is_empty());
        let options = Self {
            namespace: variable(NAMESPACE),
            image: variable(IMAGE),
            image_pull_policy: image_pull_policy.transpose()?,
            image_pull_secrets: secrets.map(str::to_owned).collect(),
            service_account: variable(SERVICE_ACCOUNT),
            store_in_cluster: variable(STORE_IN_CLUSTER),
            store_secret: variable(STORE_SECRET),
            hub_cache_claim: variable(HUB_CACHE_CLAIM),
            start_timeout: start_timeout.transpose()?,
            keep_finished: None,
        };
        options.check()?;
        Ok(options)
    }

    /// Refuses what no cluster takes.
    ///
    /// # Errors
    /// The first option that cannot be, by its variable's name.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let names = [
            (NAMESPACE, self.namespace.as_ref()),
            (SERVICE_ACCOUNT, self.service_account.as_ref()),
            (STORE_SECRET, self.store_secret.as_ref()),
            (HUB_CACHE_CLAIM, self.hub_cache_claim.as_ref()),
        ];
        let names = names.into_iter().chain(self.image_pull_secrets.iter().map(|name| (PULL_SECRETS, Some(name))));
        for (variable, name) in names {
            if let Some(name) = name
                && !is_object_name(name)
            {
                return refuse(
                    variable,
                    name,
                    "it is no name in a cluster: use lower-case letters, digits, `-` and `.`",
                );
            }
        }
        if let Some(image) = &self.image
            && (image.contains(char::is_whitespace) || image.contains("://"))
        {
            return refuse(IMAGE, image, "write `registry/name:tag` or `registry/name@sha256:…`, without a scheme");
        }
        if let Some(store) = &self.store_in_cluster
            && !store.starts_with("s3://")
        {
            return refuse(STORE_IN_CLUSTER, store, "pods reach an `s3://` store and no other");
        }
        Ok(())
    }

    /// The image, which must be named.
    ///
    /// # Errors
    /// [`InvalidOption`] where it is not.
    pub(crate) fn image(&self) -> Result<&str, InvalidOption> {
        let missing =
            "name the image with `gym-runtime` that the nodes can pull; `images/README.md` says how to build one";
        self.image.as_deref().map_or_else(|| refuse(IMAGE, "", missing), Ok)
    }

    pub(crate) fn start_timeout(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(15 * 60))
    }

    pub(crate) fn keep_finished(&self) -> Duration {
        self.keep_finished.unwrap_or(Duration::from_secs(24 * 3600))
    }
}

fn refuse<T>(name: &'static str, given: &str, rule: &str) -> Result<T, InvalidOption> {
    Err(InvalidOption { name, given: given.to_owned(), rule: rule.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<KubernetesOptions, InvalidOption> {
        KubernetesOptions::read(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_become_options() {
        let options = read(&[
            ("TRAINING_GYM_NAMESPACE", "team"),
            ("TRAINING_GYM_IMAGE", "r.example.com/gym:1"),
            ("TRAINING_GYM_IMAGE_PULL_POLICY", "Never"),
            ("TRAINING_GYM_IMAGE_PULL_SECRETS", "a, b,"),
            ("TRAINING_GYM_STORE_IN_CLUSTER", "s3://b/p?endpoint=http://s3:8333"),
            ("TRAINING_GYM_START_TIMEOUT", "60"),
            ("TRAINING_GYM_SERVICE_ACCOUNT", " "),
        ])
        .unwrap();
        assert_eq!(options.namespace.as_deref(), Some("team"));
        assert_eq!(options.image_pull_policy, Some(PullPolicy::Never));
        assert_eq!(options.image_pull_secrets, ["a", "b"]);
        assert_eq!(options.start_timeout(), Duration::from_secs(60));
        assert_eq!(options.service_account, None);
        assert_eq!(options.image().unwrap(), "r.example.com/gym:1");
        let error = KubernetesOptions::default().image().unwrap_err().to_string();
        assert!(error.contains("TRAINING_GYM_IMAGE") && error.contains("images/README.md"), "{error}");
    }

    #[test]
    fn what_no_cluster_takes_is_named_by_its_variable() {
        for (name, value) in [
            ("TRAINING_GYM_NAMESPACE", "My Team"),
            ("TRAINING_GYM_IMAGE", "https://r.example.com/gym"),
            ("TRAINING_GYM_IMAGE_PULL_POLICY", "always"),
            ("TRAINING_GYM_IMAGE_PULL_SECRETS", "ok,No"),
            ("TRAINING_GYM_STORE_IN_CLUSTER", "file:///srv"),
            ("TRAINING_GYM_START_TIMEOUT", "soon"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
