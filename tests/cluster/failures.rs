//! Failures as a cluster really gives them, each with the sentence a person reads.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use training_gym_core::ids::ContentHash;
use training_gym_tests::house::{House, fail};
use training_gym_tests::programs::program;

use crate::kubectl::{As, admin, feed, kubectl, said, situation};
use crate::person::{house, person};

/// What a run says that cannot start, or does not end well.
fn refusal(house: &House, change: impl FnOnce(&mut Command)) -> Result<String> {
    let mut command = person(house);
    command.args(["--steps", "400"]).env("TRAINING_GYM_START_TIMEOUT", "25");
    change(&mut command);
    let text = fail(&mut command).with_context(situation);
    // A run that did not start in time still waits on the cluster, and would hold the next one's place.
    admin(&["delete", "jobs", "--selector", "app.kubernetes.io/managed-by=training-gym", "--cascade=foreground"])?;
    text
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
        command.args(["--memory", "48Mi", "--max-retries", "0"]);
    })?;
    says(&text, &["ran out of memory", "48 MiB"])
}

#[test]
fn a_pod_that_outgrows_its_disk() -> Result<()> {
    // The person's program alone is larger.
    let text = refusal(&house()?, |command| {
        command.args(["--disk", "4Mi", "--max-retries", "0"]).env("TRAINING_GYM_START_TIMEOUT", "120");
    })?;
    says(&text, &["evicted", "4 MiB"])
}

/// An image whose program is no program.
fn broken_image(name: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let tar = |archive: &str, from: &str, names: &[&str]| {
        said(
            Command::new("tar")
                .arg("--create")
                .arg("--file")
                .arg(path(archive))
                .arg("--directory")
                .arg(path(from))
                .args(names),
        )
    };
    let programs = path("root/usr/local/bin");
    std::fs::create_dir_all(&programs)?;
    std::fs::write(programs.join("gym-runtime"), "made for another machine\n")?;
    std::fs::set_permissions(programs.join("gym-runtime"), Permissions::from_mode(0o755))?;
    tar("layer.tar", "root", &["usr"])?;
    let layer = ContentHash::of_file(&path("layer.tar"))?;
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"User": "65532:65532", "Entrypoint": ["/usr/local/bin/gym-runtime"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    std::fs::write(path("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    std::fs::write(path("manifest.json"), manifest.to_string())?;
    tar("image.tar", "", &["manifest.json", "config.json", "layer.tar"])?;
    let import =
        ["cluster", "run", "ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import"];
    said(Command::new(program("xtask")).args(import).arg(path("image.tar"))).map(|_| ())
}

#[test]
fn an_image_for_another_machine() -> Result<()> {
    let image = "localhost/training-gym-suite:broken";
    broken_image(image)?;
    let text = refusal(&house()?, |command| {
        command.args(["--max-retries", "0"]).env("TRAINING_GYM_IMAGE", image);
    })?;
    says(&text, &["gym-runtime", "another kind of processor"])
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
    says(&text, &["deadline of 12 s"])
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
