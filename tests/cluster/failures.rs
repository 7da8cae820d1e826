//! Failures as a cluster really gives them, each with the sentence a person reads.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use training_gym_tests::house::{House, fail};

use crate::kubectl::{As, admin, feed, kubectl, situation};
use crate::person::{house, person};

/// What a run says that cannot start, or does not end well.
fn refusal(house: &House, change: impl FnOnce(&mut Command)) -> Result<String> {
    let mut command = person(house);
    command.args(["--steps", "400"]).env("TRAINING_GYM_START_TIMEOUT", "25");
    change(&mut command);
    fail(&mut command).with_context(situation)
}

fn says(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.to_lowercase().contains(&word.to_lowercase()), "`{word}` is not in:\n{text}");
    }
    Ok(())
}

#[test]
fn an_image_that_no_registry_has() -> Result<()> {
    let text = refusal(&house()?, |command| {
        command.env("TRAINING_GYM_IMAGE", "localhost:5000/nobody/nothing:1");
    })?;
    says(&text, &["localhost:5000/nobody/nothing:1", "image", "not"])
}

#[test]
fn more_gpus_than_the_quota() -> Result<()> {
    let text = refusal(&house()?, |command| {
        command.args(["--gpus", "9"]);
    })?;
    says(&text, &["quota", "nvidia.com/gpu"])
}

#[test]
fn more_gpus_than_any_node_has() -> Result<()> {
    let hard = |gpus: &str| format!(r#"{{"spec":{{"hard":{{"requests.nvidia.com/gpu":"{gpus}"}}}}}}"#);
    let quota = |gpus: &str| admin(&["patch", "resourcequota", "training-gym", "--patch", &hard(gpus)]);
    quota("64")?;
    let text = refusal(&house()?, |command| {
        command.args(["--gpus", "9"]);
    });
    quota("8")?;
    says(&text?, &["gpu", "9", "8"])
}

#[test]
fn a_trainer_without_memory() -> Result<()> {
    let text = refusal(&house()?, |command| {
        command.args(["--memory", "48Mi"]);
    })?;
    says(&text, &["memory", "48Mi"])
}

#[test]
fn a_secret_that_is_not_there() -> Result<()> {
    let text = refusal(&house()?, |command| {
        command.env("TRAINING_GYM_STORE_SECRET", "no-such-secret");
    })?;
    says(&text, &["no-such-secret"])
}

#[test]
fn a_deadline() -> Result<()> {
    let text = refusal(&house()?, |command| {
        command.args(["--deadline", "12"]);
    })?;
    says(&text, &["12 s"])
}

/// A rule of the cluster's owner, as a controller of policies would enforce it.
struct Rule;

const RULE: &str = "training-gym-suite";

impl Rule {
    fn new() -> Result<Self> {
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": RULE},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]},
                ]},
                "validations": [{
                    "expression": "has(object.metadata.labels) && 'cost-centre' in object.metadata.labels",
                    "message": "every job names its cost-centre",
                }],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": RULE}, "spec": {"policyName": RULE, "validationActions": ["Deny"]},
        });
        let rule = Self;
        for document in [policy, binding] {
            feed(kubectl(As::Admin)?.args(["create", "--filename", "-"]), &document.to_string())?;
        }
        // The API server compiles a policy a moment after it has it.
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "probe"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}},
        });
        for _ in 0..100 {
            let mut probe = kubectl(As::Admin)?;
            if feed(probe.args(["create", "--dry-run=server", "--filename", "-"]), &job.to_string()).is_err() {
                return Ok(rule);
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        anyhow::bail!("the policy is not enforced")
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let _ = admin(&["delete", kind, RULE, "--ignore-not-found"]);
        }
    }
}

#[test]
fn a_rule_of_the_cluster() -> Result<()> {
    let _rule = Rule::new()?;
    let text = refusal(&house()?, |_| {})?;
    says(&text, &["every job names its cost-centre"])
}
