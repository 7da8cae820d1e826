//! What `images/manifests` ships, on the API server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::kubectl::{As, NAMESPACE, admin, feed, kubectl, said};

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/manifests")
}

#[test]
fn the_api_server_accepts_every_shipped_manifest() -> Result<()> {
    for name in ["base", "eks", "gke", "k3s"] {
        let rendered = said(kubectl(As::Admin)?.arg("kustomize").arg(manifests().join(name)))?;
        // The base is there already; its claim could not be changed: each is tried in a namespace of its own.
        let namespace = format!("manifests-{name}");
        admin(&["create", "namespace", &namespace])?;
        let own = rendered.replace(&format!("namespace: {NAMESPACE}\n"), &format!("namespace: {namespace}\n"));
        let mut apply = kubectl(As::Admin)?;
        apply.args(["--namespace", &namespace, "apply", "--dry-run=server", "--filename", "-"]);
        let outcome = feed(&mut apply, &own).with_context(|| format!("images/manifests/{name}"));
        admin(&["delete", "namespace", &namespace, "--wait=false"])?;
        let accepted = outcome?;
        for kind in [
            "namespace",
            "serviceaccount",
            "role",
            "rolebinding",
            "resourcequota",
            "limitrange",
            "networkpolicy",
            "persistentvolumeclaim",
        ] {
            ensure!(accepted.lines().any(|line| line.starts_with(kind)), "{name} has no {kind}:\n{accepted}");
        }
    }
    Ok(())
}

#[test]
fn the_namespace_refuses_a_pod_that_is_not_restricted() -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "loose", "image": "localhost/pause:1"}]},
    });
    let mut create = kubectl(As::Admin)?;
    let refusal = feed(create.args(["create", "--dry-run=server", "--filename", "-"]), &pod.to_string());
    let refusal = refusal.err().context("a pod without a security context was accepted")?.to_string();
    ensure!(refusal.contains(r#"violates PodSecurity "restricted:latest""#), "{refusal}");
    Ok(())
}

/// Asks whether a service account of the namespace may do something.
fn may(account: &str, question: &[&str]) -> Result<bool> {
    let user = format!("--as=system:serviceaccount:{NAMESPACE}:{account}");
    let answer = kubectl(As::Admin)?.args(["auth", "can-i", &user]).args(question).output()?;
    let word = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    ensure!(matches!(word.as_str(), "yes" | "no"), "{}", String::from_utf8_lossy(&answer.stderr));
    Ok(word == "yes")
}

#[test]
fn a_driver_may_do_what_runs_need_and_nothing_else() -> Result<()> {
    for question in [
        &["create", "jobs.batch"][..],
        &["delete", "deployments.apps"],
        &["create", "services"],
        &["create", "secrets"],
        &["watch", "pods"],
        &["get", "pods", "--subresource=log"],
        &["create", "pods", "--subresource=portforward"],
        &["list", "events"],
        &["list", "nodes", "--namespace="],
    ] {
        ensure!(may("training-gym-driver", question)?, "{question:?} is refused");
    }
    for question in [
        &["create", "pods"][..],
        &["create", "pods", "--subresource=exec"],
        &["create", "pods", "--subresource=attach"],
        &["watch", "secrets"],
        &["create", "serviceaccounts", "--subresource=token"],
        &["create", "rolebindings.rbac.authorization.k8s.io"],
        &["update", "namespaces"],
        &["delete", "nodes"],
        &["list", "secrets", "--all-namespaces"],
        &["get", "secrets", "--namespace=kube-system"],
        &["*", "*"],
    ] {
        ensure!(!may("training-gym-driver", question)?, "{question:?} is allowed");
    }
    Ok(())
}

#[test]
fn the_runtime_may_do_nothing() -> Result<()> {
    for verb in ["get", "list", "create", "delete"] {
        for resource in ["pods", "secrets", "configmaps", "jobs.batch", "deployments.apps", "services"] {
            ensure!(!may("training-gym-runtime", &[verb, resource])?, "{verb} {resource} is allowed");
        }
    }
    Ok(())
}

#[test]
fn the_drivers_kubeconfig_is_the_drivers() -> Result<()> {
    let who = said(kubectl(As::Driver)?.args(["auth", "whoami", "--output", "jsonpath={.status.userInfo.username}"]))?;
    ensure!(who == format!("system:serviceaccount:{NAMESPACE}:training-gym-driver"), "{who}");
    Ok(())
}
