//! The command as a person uses it: the real program on a state folder, with the SDK's stand-in for the
//! runtime.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use training_gym::config::Model;
use training_gym::deploy::Endpoint;
use training_gym::external::serde_json::{self, Value};
use training_gym::gym::Gym;

fn runtime() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/fake_runtime.py")
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gym"));
    command.args(arguments).arg("--home").arg(home).env("TRAINING_GYM_RUNTIME", runtime()).env("HF_HUB_OFFLINE", "1");
    command.env("HF_HOME", home.join("hf")).env_remove("TRAINING_GYM_BACKEND").env_remove("TRAINING_GYM_STORE");
    command
}

fn gym(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn document(home: &Path, arguments: &[&str]) -> Value {
    let output = gym(home, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn an_empty_state_is_said_to_be_empty_and_a_name_that_is_not_there_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    assert!(text(&gym(home.path(), &["runs"])).starts_with("no runs in file://"));
    assert!(text(&gym(home.path(), &["deployments", "list"])).starts_with("no deployments"));
    assert_eq!(text(&gym(home.path(), &["gc"])), "nothing is left behind\n");
    assert_eq!(document(home.path(), &["runs"]), serde_json::json!([]));
    for arguments in [&["runs", "show", "nobody"][..], &["logs", "nobody"], &["deployments", "stop", "nobody"]] {
        let output = gym(home.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("`nobody`") && said.contains("there is none"), "{said}");
    }
    assert_eq!(gym(home.path(), &["runs", "dance"]).status.code(), Some(2));
}

#[test]
fn doctor_reports_each_promise_and_ends_with_three_when_one_is_broken() {
    let home = tempfile::tempdir().unwrap();
    let report = document(home.path(), &["doctor"]);
    let findings = report["findings"].as_array().unwrap();
    let of =
        |name: &str| findings.iter().find(|finding| finding["check"] == name).unwrap_or_else(|| panic!("{report:#}"));
    for check in ["store: write", "store: conditional put", "store: list", "store: delete", "gym-runtime", "disk"] {
        assert!(matches!(of(check)["outcome"].as_str(), Some("ok" | "warning")), "{check}: {report:#}");
    }
    assert_eq!(of("hub")["outcome"], "skipped");
    assert_eq!(gym(home.path(), &["doctor"]).status.code(), Some(0));
    // Nothing of the trying is left in the store.
    assert!(document(home.path(), &["gc", "--older-than", "0"])["leftovers"].as_array().unwrap().is_empty());

    let mut broken = command(home.path(), &["doctor"]);
    let output = broken.env("TRAINING_GYM_RUNTIME", "/nowhere/gym-runtime").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/nowhere/gym-runtime") && said.contains("1 failed"), "{said}");
    let output = gym(home.path(), &["doctor", "--store", "ftp://nowhere/x"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("ftp://nowhere/x"), "{said}");
    let output = gym(Path::new("/proc/nobody"), &["doctor"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_listed_read_stopped_and_its_record_removed() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("models/steady");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::write(model.join("config.json"), r#"{"max_position_embeddings": 8192}"#).unwrap();
    let client = Gym::local(home.path()).unwrap().with_runtime(runtime());
    let launched = Endpoint::launch(Model::folder(&model)).app_name("teacher").on(&client).await.unwrap();
    launched.wait_until_ready(std::time::Duration::from_secs(30)).await.unwrap();

    let home = home.path();
    let listed = text(&gym(home, &["deployments"]));
    assert!(listed.starts_with("NAME") && listed.contains("teacher") && listed.contains("running"), "{listed}");
    assert_eq!(document(home, &["deployments"])[0]["url"].as_str(), Some(launched.url().unwrap()));
    assert!(text(&gym(home, &["logs", "teacher"])).contains("serving steady"));
    assert!(document(home, &["gc", "--older-than", "0"])["leftovers"].as_array().unwrap().is_empty());

    // A reader that goes away in mid-line is no error and no panic.
    let mut follow =
        command(home, &["logs", "teacher", "--follow"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    follow.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = gym(home, &["logs", "nobody"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("there are: teacher"), "{output:?}");

    assert!(text(&gym(home, &["deployments", "stop", "teacher"])).contains("stopped on request"));
    assert!(follow.wait().unwrap().success());
    let shown = text(&gym(home, &["gc"]));
    assert!(shown.contains("serve-teacher") && shown.contains("nothing was removed"), "{shown}");
    assert!(home.join("jobs/serve-teacher").exists());
    assert!(text(&gym(home, &["gc", "--yes"])).contains("removed 1"));
    assert!(!home.join("jobs/serve-teacher").exists());
}

#[tokio::test]
async fn a_run_is_shown_with_its_failure() {
    let home = tempfile::tempdir().unwrap();
    let client = Gym::local(home.path()).unwrap();
    // Damaged: listed as failed, with its file, and never hides others.
    client.store().put("runs/r1/spec.json", "{}".into()).await.unwrap();
    let listed = text(&gym(home.path(), &["runs"]));
    assert!(listed.contains("r1") && listed.contains("failed") && listed.contains("store"), "{listed}");
    let shown = document(home.path(), &["runs"]);
    assert!(shown[0]["status"]["failure"]["sentence"].as_str().unwrap().contains("spec.json"), "{shown}");
}

#[test]
fn objects_of_a_cluster_are_explained() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/failures/oom-trainer.json");
    let fixture: Value = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("objects.json");
    let objects: String = fixture["objects"].as_array().unwrap().iter().map(Value::to_string).collect();
    std::fs::write(&file, objects).unwrap();
    let said = text(&gym(home.path(), &["explain", file.to_str().unwrap()]));
    assert!(said.contains("out-of-memory") && said.contains("limit 8 GiB"), "{said}");
    assert_eq!(document(home.path(), &["explain", file.to_str().unwrap()])["cause"], "out-of-memory");
}
