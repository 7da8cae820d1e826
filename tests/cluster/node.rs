//! The node runs pods of ours: the image, its user, DNS, the fake GPUs.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::kubectl::{Created, admin, get, given};

/// A pod that satisfies `restricted` and runs `gym-runtime` with arguments.
pub(crate) fn pod(name: &str, arguments: &[&str], resources: &Value) -> Result<Value> {
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main", "image": given("TRAINING_GYM_IMAGE")?, "imagePullPolicy": "IfNotPresent",
                "args": arguments, "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    }))
}

pub(crate) fn await_phase(name: &str, phase: &str) -> Result<()> {
    let condition = format!("--for=jsonpath={{.status.phase}}={phase}");
    let waited = admin(&["wait", &format!("pod/{name}"), &condition, "--timeout=60s"]);
    waited.map(|_| ()).with_context(|| admin(&["describe", "pod", name]).unwrap_or_default())
}

#[test]
fn the_image_runs_without_rights_on_a_read_only_root() -> Result<()> {
    let _pod = Created::new(&pod("image-runs", &["--version"], &json!({}))?)?;
    await_phase("image-runs", "Succeeded")?;
    let printed = admin(&["logs", "image-runs"])?;
    ensure!(printed.starts_with("gym-runtime "), "{printed}");
    Ok(())
}

#[test]
fn the_scheduler_counts_gpus() -> Result<()> {
    let node = get(&["node", "gym-node"])?;
    ensure!(node["status"]["allocatable"]["nvidia.com/gpu"] == "8", "{}", node["status"]["allocatable"]);
    let gpus = |count: &str| json!({"limits": {"nvidia.com/gpu": count}});
    let fits = Created::new(&pod("gpu-fits", &["--version"], &gpus("8"))?)?;
    await_phase("gpu-fits", "Succeeded")?;
    drop(fits);
    let refusal = Created::new(&pod("gpu-quota", &["--version"], &gpus("9"))?).err().context("beyond the quota")?;
    ensure!(refusal.to_string().contains("exceeded quota"), "{refusal}");
    Ok(())
}
