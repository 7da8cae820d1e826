//! Secrets and ConfigMaps.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use training_gym_core::spec::VersionedServeSpec;

use super::{Plan, store_secret_name};
use crate::backend::Workload;

/// The job's own secrets, each a file in the pod; `None` where it has none.
pub(crate) fn secret(plan: &Plan<'_>, owner: &OwnerReference) -> Option<Secret> {
    let secrets = &plan.request.secrets;
    let text = |secret: &crate::backend::Secret| ByteString(format!("{}\n", secret.expose()).into_bytes());
    (!secrets.is_empty()).then(|| Secret {
        metadata: plan.owned_meta(plan.name(), owner),
        data: Some(secrets.iter().map(|(name, secret)| (name.clone(), text(secret))).collect()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    })
}

/// The store's credentials, as variables of the containers that may have them.
pub(crate) fn store_secret(
    plan: &Plan<'_>,
    owner: &OwnerReference,
    keys: &BTreeMap<String, crate::backend::Secret>,
) -> Secret {
    let text = |secret: &crate::backend::Secret| ByteString(secret.expose().as_bytes().to_vec());
    Secret {
        metadata: plan.owned_meta(store_secret_name(&plan.name()), owner),
        data: Some(keys.iter().map(|(name, secret)| (name.clone(), text(secret))).collect()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// A deployment's spec, as the server reads it; `None` for another workload, whose spec is in the store.
pub(crate) fn config_map(plan: &Plan<'_>, owner: &OwnerReference) -> Option<ConfigMap> {
    let Workload::Serve { spec } = &plan.request.workload else { return None };
    let spec = serde_json::to_string_pretty(&VersionedServeSpec::V1((**spec).clone())).unwrap_or_default();
    Some(ConfigMap {
        metadata: plan.owned_meta(plan.name(), owner),
        data: Some(BTreeMap::from([("spec.json".to_owned(), spec)])),
        ..ConfigMap::default()
    })
}
