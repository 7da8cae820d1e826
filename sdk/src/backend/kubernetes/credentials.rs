//! Where pods get the store's credentials.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_s3::config::{Credentials, ProvideCredentials};

use super::KubernetesBackend;
use super::error::ClusterError;
use crate::backend::Secret;
use crate::manifest::StoreAccess;

/// The end of the chain asks a machine of a cloud, which may not be one.
const PATIENCE: Duration = Duration::from_secs(10);
/// What of this program's environment belongs to the credentials.
const BESIDE: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Where the credentials are, and the keys themselves where the job is to own them.
pub(super) type Access = (StoreAccess, BTreeMap<String, Secret>);

impl KubernetesBackend {
    /// A named Secret; else this program's own static keys; else the pods' service account.
    pub(super) async fn store_access(&self) -> Result<Access, ClusterError> {
        let options = &self.inner.options;
        if let Some(name) = &options.store_secret {
            return Ok((StoreAccess::Named(name.clone()), BTreeMap::new()));
        }
        let chain = aws_config::defaults(aws_config::BehaviorVersion::latest()).load().await;
        let found = match chain.credentials_provider() {
            Some(provider) => {
                tokio::time::timeout(PATIENCE, provider.provide_credentials()).await.ok().and_then(Result::ok)
            }
            None => None,
        };
        access(found.as_ref(), options.service_account.is_some(), |name| std::env::var(name).ok())
    }
}

fn access(
    found: Option<&Credentials>,
    service_account: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Access, ClusterError> {
    let ambient = Ok((StoreAccess::Ambient, BTreeMap::new()));
    let Some(found) = found else { return ambient };
    if found.expiry().is_some() || found.session_token().is_some() {
        let why = "this program's own are temporary and would expire in the pod".to_owned();
        return if service_account { ambient } else { Err(ClusterError::NoStoreCredentials { why }) };
    }
    let mut keys = BTreeMap::from([
        ("AWS_ACCESS_KEY_ID".to_owned(), Secret::new(found.access_key_id())),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), Secret::new(found.secret_access_key())),
    ]);
    let beside = BESIDE.iter().filter_map(|name| Some(((*name).to_owned(), Secret::new(variable(name)?))));
    keys.extend(beside);
    Ok((StoreAccess::Owned, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_keys_are_handed_on_and_temporary_ones_are_not() {
        let none = |_: &str| None;
        let keys = Credentials::new("id", "secret", None, None, "test");
        let (found, handed) = access(Some(&keys), true, |name| (name == "AWS_REGION").then(|| "r".to_owned())).unwrap();
        assert_eq!(found, StoreAccess::Owned);
        assert_eq!(handed.keys().collect::<Vec<_>>(), ["AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"]);
        assert_eq!(handed["AWS_SECRET_ACCESS_KEY"].expose(), "secret");
        let temporary = Credentials::new("id", "secret", Some("session".to_owned()), None, "test");
        let error = access(Some(&temporary), false, none).unwrap_err().to_string();
        assert!(error.contains("TRAINING_GYM_STORE_SECRET") && !error.contains("secret,"), "{error}");
        assert_eq!(access(Some(&temporary), true, none).unwrap().0, StoreAccess::Ambient);
        assert_eq!(access(None, false, none).unwrap().0, StoreAccess::Ambient);
    }
}
