//! Models in a bucket: one that somebody copied there, and the checkpoint of a run, taken by another program.

use anyhow::{Context, Result, ensure};
use aws_sdk_s3::primitives::ByteStream;
use training_gym::config::Model;
use training_gym::deploy::Endpoint;
use training_gym::gym::Gym;
use training_gym_tests::fixture::s3_server::{BUCKET, Kind, S3Server, environment};
use training_gym_tests::house::{House, succeed};
use training_gym_tests::programs::program;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_on_a_bucket_trains_a_model_of_it_and_another_program_its_checkpoint() -> Result<()> {
    let house = House::new(&["fine"; 6])?;
    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let client = server.client();
    // As `aws s3 cp` would: without a manifest, and with nothing of ours about the objects.
    for entry in std::fs::read_dir(house.path("student"))? {
        let path = entry?.path();
        let key = format!("a person's/models/tiny é/{}", path.file_name().context("a name")?.to_string_lossy());
        client.put_object().bucket(BUCKET).key(key).body(ByteStream::from_path(&path).await?).send().await?;
    }
    let model = server.store_url("a%20person's/models/tiny%20%C3%A9");
    let person = |home: &str, student: &str, run: &str| {
        let mut person = house.person_of(home, student.as_ref());
        person.envs(environment()).env("TRAINING_GYM_STORE", server.store_url("gym"));
        person.args(["--steps", "2", "--run-id", run]);
        person
    };
    let printed = succeed(&mut person("home", &model, "first"))?;
    let url = printed.lines().find_map(|line| line.strip_prefix("checkpoint ")).context("a checkpoint")?;
    ensure!(url.starts_with(&format!("s3://{BUCKET}/gym/runs/first/checkpoints/step-2?")), "{url}");
    ensure!(!house.path("home/cache/runs").exists(), "the checkpoint was downloaded, and nobody asked for it");

    // Another program, with a home and a store of its own in the same bucket.
    let printed = succeed(person("other", url, "second").env("TRAINING_GYM_STORE", server.store_url("other gym")))?;
    ensure!(printed.contains("gym/runs/second/checkpoints/step-2"), "{printed}");

    // And served.
    let gym = Gym::local(house.path("third"))?.with_runtime(program("gym-runtime"));
    let endpoint = Endpoint::launch(Model::hub(url)).on(&gym).await?;
    endpoint.wait_until_ready(std::time::Duration::from_secs(120)).await?;
    endpoint.stop().await?;

    for (place, words) in [
        (url.replace("runs/first", "runs/none"), "nothing lies there"),
        (url.replace("/checkpoints/step-2", ""), "folders in it have: `checkpoints/step-"),
        (url.replace(BUCKET, "no-such-bucket"), "no bucket `no-such-bucket`"),
    ] {
        let error = Endpoint::launch(Model::hub(&place)).on(&gym).await.err().context("it is no model")?;
        let said = format!("{:#}", anyhow::Error::from(error));
        ensure!(said.contains(words), "{said}");
    }
    Ok(())
}
