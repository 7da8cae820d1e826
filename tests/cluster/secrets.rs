//! Nothing that is secret is to be read anywhere but in Secrets, and no pod has more rights than it needs.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::kubectl::{admin, get, given, situation};
use crate::person::{follow, house, launch};

#[test]
fn a_runs_objects_logs_and_processes_hold_no_secret_and_no_rights() -> Result<()> {
    let secret = given("AWS_SECRET_ACCESS_KEY")?;
    let house = house()?;
    let id = launch(&house, 40)?;
    crate::person::await_step(&id, 2)?;
    let selector = format!("training-gym/run={id}");
    let pods = get(&["pods", "--selector", &selector])?;
    let pods = pods["items"].as_array().context("a list")?.clone();
    ensure!(!pods.is_empty(), "the run has a pod: {}", situation());
    for pod in &pods {
        inspect(pod)?;
    }
    let hidden = |what: &str, text: &str| -> Result<()> {
        ensure!(!text.contains(&secret), "{what} holds the store's secret key");
        Ok(())
    };
    for process in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        hidden("a command line", &String::from_utf8_lossy(&line))?;
    }
    follow(&house, &id, 40).with_context(situation)?;
    for kind in ["jobs", "pods", "configmaps", "deployments", "services", "events"] {
        hidden(kind, &get(&[kind])?.to_string())?;
    }
    hidden("describe", &admin(&["describe", "pods,jobs", "--selector", &selector])?)?;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        hidden("a log", &admin(&["logs", name, "--all-containers"])?)?;
    }
    for log in fs::read_dir(given("GYM_CLUSTER_LOGS")?)?.flatten().filter(|entry| entry.path().is_file()) {
        hidden(&log.path().display().to_string(), &String::from_utf8_lossy(&fs::read(log.path())?))?;
    }
    Ok(())
}

/// A pod as the API server has it, against `restricted` and against what each container is to see.
fn inspect(pod: &Value) -> Result<()> {
    let spec = &pod["spec"];
    ensure!(spec["automountServiceAccountToken"] == false, "a token would be mounted");
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        ensure!(spec[key].is_null() || spec[key] == false, "{key}");
    }
    let security = &spec["securityContext"];
    ensure!(security["runAsNonRoot"] == true && security["seccompProfile"]["type"] == "RuntimeDefault", "{security}");
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        ensure!(volume["hostPath"].is_null() && volume["projected"].is_null(), "{volume}");
    }
    let containers =
        ["initContainers", "containers"].iter().flat_map(|key| spec[*key].as_array().into_iter().flatten());
    let mut names = Vec::new();
    for container in containers {
        let name = container["name"].as_str().unwrap_or_default();
        names.push(name);
        let own = &container["securityContext"];
        ensure!(own["allowPrivilegeEscalation"] == false && own["readOnlyRootFilesystem"] == true, "{name}: {own}");
        ensure!(own["capabilities"]["drop"][0] == "ALL" && own["capabilities"]["add"].is_null(), "{name}: {own}");
        if name == "reward" {
            ensure!(container["envFrom"].is_null(), "the reward worker is given variables");
            let environment = container["env"].to_string();
            ensure!(!environment.contains("secretKeyRef") && !environment.contains("AWS_"), "{environment}");
            let mounts = container["volumeMounts"].as_array().context("mounts")?;
            for mount in mounts {
                let path = mount["mountPath"].as_str().unwrap_or_default();
                ensure!(["/program", "/worker", "/tmp"].contains(&path), "the reward worker sees {path}");
            }
        }
    }
    ensure!(names.contains(&"reward") && names.contains(&"trainer") && names.contains(&"fetch"), "{names:?}");
    Ok(())
}
