//! What `gym explain` says of pods that somebody else made and that do not start.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use training_gym_tests::house::succeed;
use training_gym_tests::programs::program;

use crate::kubectl::{Created, get, situation};
use crate::node::pod;

/// Makes a pod and asks what is wrong with it, until the answer holds all the words.
fn explained(pod: &Value, words: &[&str]) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let _pod = Created::new(pod)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("pod.json");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        std::fs::write(&file, get(&["pod", name])?.to_string())?;
        let text = succeed(Command::new(program("gym")).arg("explain").arg(&file))?.to_lowercase();
        if words.iter().all(|word| text.contains(word)) {
            ensure!(!text.contains("unknown"), "{text}");
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("not all of {words:?} are in:\n{text}\n{}", situation());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_server_that_ends_again_and_again() -> Result<()> {
    let mut crashing = pod("crashing", &["no-such-command"], &json!({}))?;
    crashing["spec"]["restartPolicy"] = "Always".into();
    explained(&crashing, &["crash", "main"])
}

#[test]
fn a_config_map_that_is_not_there() -> Result<()> {
    let mut lacking = pod("lacking", &["--version"], &json!({}))?;
    lacking["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "no-such-map"}}]);
    explained(&lacking, &["no-such-map"])
}
