//! What `images/manifests` ships, on the API server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::kubectl::{As, NAMESPACE, admin, feed, get, kubectl, said};

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

/// What the backend says it needs, from its source: `verb resource` or `verb resource.group`.
fn needed() -> BTreeSet<String> {
    let source = include_str!("../../sdk/src/backend/kubernetes/access.rs");
    let table = source.split_once("const NEEDED").and_then(|(_, rest)| rest.split_once("];")).map(|(table, _)| table);
    let lines = table.unwrap_or_default().lines().filter(|line| line.trim_start().starts_with("(\""));
    let words = lines.map(|line| line.split('"').skip(1).step_by(2).collect::<Vec<_>>());
    words.flat_map(|words| words[2..].iter().map(|verb| named(verb, words[0], words[1])).collect::<Vec<_>>()).collect()
}

fn named(verb: &str, group: &str, resource: &str) -> String {
    if group.is_empty() { format!("{verb} {resource}") } else { format!("{verb} {resource}.{group}") }
}

#[test]
fn the_role_is_what_the_backend_needs_and_nothing_else() -> Result<()> {
    let role = get(&["role", "training-gym-driver"])?;
    let words = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().context("a role has rules")? {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                granted.extend(words(rule, "verbs").iter().map(|verb| named(verb, &group, &resource)));
            }
        }
    }
    ensure!(needed().len() > 20 && needed() == granted, "needed {:?}\ngranted {granted:?}", needed());
    Ok(())
}

#[test]
fn a_driver_may_not_do_more() -> Result<()> {
    for question in [
        &["create", "pods"][..],
        &["create", "pods", "--subresource=exec"],
        &["create", "pods", "--subresource=attach"],
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
