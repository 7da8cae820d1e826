//! A real vLLM as the teacher behind a URL: its own OpenAI server, asked for the likeliest tokens.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use training_gym_tests::house::{House, succeed};

use super::given;

const K: usize = 8;

/// vLLM's server of a folder; it ends with this.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(house: &House, folder: &str) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = std::fs::File::create(house.path("vllm.log"))?;
        let process = Command::new(given("GYM_HEAVY_VLLM")?)
            .args(["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--dtype", "float32"])
            .args(["--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "16"])
            .args(["--max-logprobs", &K.to_string(), "--port", &port.to_string(), "--model"])
            .arg(house.path(folder))
            .envs([("VLLM_CPU_KVCACHE_SPACE", "2"), ("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1")])
            .env("VLLM_CACHE_ROOT", house.path("vllm-cache"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self { process, port })
    }

    async fn ready(&mut self, house: &House) -> Result<()> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let health = format!("http://127.0.0.1:{}/health", self.port);
        let began = Instant::now();
        loop {
            if client.get(&health).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            let late = began.elapsed() > Duration::from_secs(900);
            if late || self.process.try_wait()?.is_some() {
                anyhow::bail!("vLLM does not serve:\n{}", std::fs::read_to_string(house.path("vllm.log"))?);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked first: it ends its engine's process with it.
        training_gym_tests::house::signal(self.process.id() as i32, libc::SIGTERM);
        let _ = self.process.wait();
    }
}

fn floats(value: &Value) -> Result<Vec<f64>> {
    value.as_array().context("a list")?.iter().map(|number| number.as_f64().context("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_names_the_likeliest_tokens_that_our_server_names() -> Result<()> {
    let house = House::new(&["fine"; 6])?;
    let mut server = Server::start(&house, "teacher")?;
    let run = |home: &str| {
        let mut person = house.person(home);
        person.args(["--reward", "none", "--steps", "2", "--in-order", "--run-id", "named", "--top-k", &K.to_string()]);
        person.args(["--divergence", "forward-kl"]);
        person
    };
    succeed(run("ours").arg("--teacher").arg(house.path("teacher")))?;
    server.ready(&house).await?;
    let url = format!("http://127.0.0.1:{}/v1/completions", server.port);
    succeed(run("theirs").args(["--teacher-dialect", "vllm", "--teacher-url", &url]))?;

    let (ours, theirs) =
        (house.lines("ours", "rollouts/step-1.jsonl")?, house.lines("theirs", "rollouts/step-1.jsonl")?);
    let (mut largest, mut count) = (0.0_f64, 0);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // The same student and the same noise: the first step's responses are the same.
        ensure!(ours["response_ids"] == theirs["response_ids"], "{ours} and {theirs}");
        let (ours, theirs) = (&ours["teacher_top"], &theirs["teacher_top"]);
        let (ids, other_ids) = (floats(&ours["ids"])?, floats(&theirs["ids"])?);
        let (named, other_named) = (floats(&ours["logprobs"])?, floats(&theirs["logprobs"])?);
        ensure!(ids.len() == other_ids.len() && named.len() == other_named.len() && ids.len() == named.len());
        for place in 0..ids.len() {
            let gap = (named[place] - other_named[place]).abs();
            (largest, count) = (largest.max(gap), count + 1);
            // Two that are equally likely may come in either order.
            ensure!(ids[place] == other_ids[place] || gap < 1e-5, "{place}: {} and {}", ids[place], other_ids[place]);
        }
    }
    println!("{count} named tokens, {largest:.1e} nats apart at most");
    ensure!(count > 0 && largest < 1e-4, "{largest} nats apart");
    for home in ["ours", "theirs"] {
        let metrics = house.lines(home, "metrics.jsonl")?;
        ensure!(metrics.iter().all(|line| line["divergence"].as_f64() > Some(0.0)), "{metrics:?}");
    }
    Ok(())
}
