//! The real program: its ready file, its port, and how it ends.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::held::Held;
use crate::server::{Certainty, TOKEN, write_model};

fn spec(folder: &Path, port: u16) -> Value {
    json!({
        "version": "1", "app_name": "tiny", "model": {"name": "org/tiny", "folder": folder}, "host": "127.0.0.1",
        "port": port, "token": {"file": folder.join("token")},
        "engine": {"max_running_requests": 4, "max_queued_requests": 4, "context_length": null, "max_prefill_tokens": 512},
        "node": {"device": "cpu", "dtype": "float32", "threads": 1},
    })
}

fn start(folder: &Path, spec: &Value) -> Child {
    std::fs::write(folder.join("spec.json"), spec.to_string()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_gym-runtime"))
        .arg("serve")
        .arg("--spec")
        .arg(folder.join("spec.json"))
        .arg("--ready")
        .arg(folder.join("ready.json"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The exit code and what was logged; fails where it does not end within seconds.
async fn end(mut child: Child) -> (Option<i32>, String) {
    let until = Instant::now() + Duration::from_secs(30);
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("the server does not end");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut log = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut log).unwrap();
    (code, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_when_it_answers_and_ends_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), Certainty::Strong);
    std::fs::write(folder.path().join("token"), format!("{TOKEN}\n")).unwrap();
    let mut child = start(folder.path(), &spec(folder.path(), 0));
    let until = Instant::now() + Duration::from_secs(60);
    let ready: Value = loop {
        if let Ok(text) = std::fs::read(folder.path().join("ready.json")) {
            break serde_json::from_slice(&text).unwrap();
        }
        assert!(child.try_wait().unwrap().is_none(), "it died: {}", end(child).await.1);
        assert!(Instant::now() < until, "it never was ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(ready["pid"], child.id());
    let port = ready["port"].as_u64().unwrap();
    let (url, client) = (format!("http://127.0.0.1:{port}"), reqwest::Client::new());
    assert_eq!(client.get(format!("{url}/health")).send().await.unwrap().status(), 200);
    assert_eq!(client.get(format!("{url}/v1/models")).send().await.unwrap().status(), 401);

    // A second one on the same port fails at once, and names it.
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("token"), "x").unwrap();
    let (code, log) = end(start(other.path(), &spec(other.path(), port as u16))).await;
    assert_eq!(code, Some(1));
    assert!(log.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{log}");

    // A stream in flight does not hold it up.
    let body = json!({"prompt": [10], "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let request = client.post(format!("{url}/v1/completions")).bearer_auth(TOKEN).json(&body);
    let mut stream = request.send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", pid.as_str()]).status().unwrap().success());
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains(TOKEN), "the token is in the log: {log}");
    drop(stream);
}

/// Returns once somebody waits for the file.
async fn waited_for(child: &mut Child, file: &Held) {
    let until = Instant::now() + Duration::from_secs(60);
    while !file.is_waited_for() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < until, "nobody reads {file:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_while_the_model_loads_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), Certainty::Strong);
    std::fs::write(folder.path().join("token"), format!("{TOKEN}\n")).unwrap();
    // Whoever reads it waits, as for a disk that does not answer.
    let tokenizer = Held::new(&folder.path().join("tokenizer.json")).unwrap();
    let mut child = start(folder.path(), &spec(folder.path(), 0));
    waited_for(&mut child, &tokenizer).await;
    let asked = Instant::now();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", pid.as_str()]).status().unwrap().success());
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(!folder.path().join("ready.json").exists());
    drop(tokenizer);
}
