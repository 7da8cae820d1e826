//! Deployments on the local backend, with a stand-in for `gym-runtime` (`fixtures/fake_runtime.py`).

mod support;

use std::time::{Duration, Instant};

use support::{Home, alive};
use training_gym::backend::{JobState, Resources};
use training_gym::config::{Opd, Teacher};
use training_gym::deploy::{ChatOptions, CustomDeployment, Endpoint, Error};
use training_gym::run::Checkpoint;
use training_gym_core::sample::{FinishReason, Message};
use training_gym_core::spec::SecretRef;
use training_gym_core::wire::{GenerateRequest, OneOrMany, SamplingParams};

const PATIENCE: Duration = Duration::from_secs(20);

fn one_thread() -> Resources {
    Resources { threads: Some(1), ..Resources::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn launch_wait_chat_stop() {
    let home = Home::new();
    let gym = home.gym();
    let base = Endpoint::launch(home.model("fine")).on(&gym).resources(one_thread()).await.unwrap();
    assert_eq!(base.app_name().as_str(), "fine");
    // Not ready, not even started: a request waits for it.
    assert_eq!(base.chat(&[Message::user("4")], &ChatOptions::default()).await.unwrap().content, "4");
    base.wait_until_ready(PATIENCE).await.unwrap();
    assert!(base.generate_url().unwrap().ends_with("/generate"));

    let reply = base.chat(&[Message::user("<think>hm</think>4")], &ChatOptions::default()).await.unwrap();
    assert_eq!((reply.content.as_str(), reply.reasoning_content.as_deref()), ("4", Some("hm")));
    assert_eq!(reply.finish_reason, FinishReason::Stop);
    assert_eq!((reply.usage.prompt_tokens, reply.usage.completion_tokens), (3, 2));

    let options = ChatOptions {
        temperature: Some(0.5),
        top_k: Some(3),
        max_tokens: Some(9),
        stop: vec!["x".to_owned()],
        seed: Some(7),
        ..ChatOptions::default()
    };
    let options = options.chat_template_kwarg("enable_thinking", true);
    let sent = base.chat(&[Message::system("s"), Message::user("echo")], &options).await.unwrap().content;
    let sent: serde_json::Value = serde_json::from_str(&sent).unwrap();
    let expected = serde_json::json!({
        "model": "fine", "temperature": 0.5, "top_k": 3, "max_tokens": 9, "stop": ["x"], "seed": 7,
        "chat_template_kwargs": {"enable_thinking": true},
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "echo"}],
    });
    assert_eq!(sent, expected);

    let error = base.chat(&[Message::user("overload")], &ChatOptions::default()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("the queue is full"), "{error}");

    base.stop().await.unwrap();
    assert_eq!(alive(&home.path().join("jobs")), Vec::<String>::new());
    assert!(gym.deployments().await.unwrap().is_empty());
    let error = base.chat(&[Message::user("4")], &ChatOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Died { .. }) && error.to_string().contains("stopped on request"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_reported_early_with_the_last_log_lines() {
    let home = Home::new();
    let gym = home.gym();
    let begun = Instant::now();
    for (scene, how) in [("dies", "exited with code 3"), ("killed", "ran out of memory")] {
        let deployment = Endpoint::launch(home.model(scene)).on(&gym).await.unwrap();
        let error = deployment.wait_until_ready(Duration::from_secs(600)).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Died { .. }), "{text}");
        assert!(text.contains(how), "{text}");
        assert!(scene != "dies" || text.contains("no tensor `lm_head.weight`"), "{text}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "it must not wait for the timeout");
    let listed = gym.deployments().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|deployment| matches!(deployment.state, JobState::Ended(_)) && deployment.url.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_not_come_up_is_given_up_after_the_timeout() {
    let home = Home::new();
    let gym = home.gym();
    let silent = Endpoint::launch(home.model("never-ready")).on(&gym).await.unwrap();
    assert!(matches!(silent.url(), Err(Error::NoAddress { .. })));
    let error = silent.wait_until_ready(Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, Error::NotReady { .. }), "{error}");
    let sick = Endpoint::launch(home.model("unhealthy")).on(&gym).await.unwrap();
    let error = sick.wait_until_ready(Duration::from_millis(800)).await.unwrap_err();
    assert!(matches!(error, Error::NotReady { .. }), "{error}");
    silent.stop().await.unwrap();
    sick.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_is_adopted_and_another_refused_with_both_remedies() {
    let home = Home::new();
    let gym = home.gym();
    let launch = |model| Endpoint::launch(model).app_name("app").on(&gym);
    let first = launch(home.model("fine")).await.unwrap();
    first.wait_until_ready(PATIENCE).await.unwrap();
    let second = launch(home.model("fine")).await.unwrap();
    assert_eq!(second.url().unwrap(), first.url().unwrap(), "adopted, so its address is known at once");
    second.chat(&[Message::user("4")], &ChatOptions::default()).await.unwrap();

    let error = launch(home.model("other")).await.unwrap_err().to_string();
    for part in ["model.name", "\"fine\"", "\"other\"", "recreate_if_existing", "app_name"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let error = launch(home.model("fine")).unauthenticated(true).await.unwrap_err().to_string();
    assert!(error.contains("another token"), "{error}");

    let third = launch(home.model("other")).recreate_if_existing(true).await.unwrap();
    third.wait_until_ready(PATIENCE).await.unwrap();
    assert_eq!(third.served_model_name(), "other");
    assert_eq!(alive(&home.path().join("jobs")).len(), 2);
    // An old handle's credential is not that of the new deployment.
    let found = gym.deployment("app").await.unwrap();
    found.chat(&[Message::user("4")], &ChatOptions::default()).await.unwrap();
    assert_ne!(found.token(), first.token());
    found.stop().await.unwrap();
    assert!(matches!(gym.deployment("nobody").await, Err(Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_needed_and_not_shown() {
    let home = Home::new();
    let gym = home.gym();
    let deployment = Endpoint::launch(home.model("fine")).on(&gym).await.unwrap();
    deployment.wait_until_ready(PATIENCE).await.unwrap();
    let token = deployment.token().unwrap().expose().to_owned();
    let url = format!("{}/get_model_info", deployment.url().unwrap());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    assert_eq!(client.get(&url).bearer_auth(&token).send().await.unwrap().status(), 200);
    assert!(!format!("{deployment:?}").contains(&token));
    deployment.stop().await.unwrap();
    let error = deployment.chat(&[Message::user("4")], &ChatOptions::default()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(&token));

    let open = Endpoint::launch(home.model("fine")).unauthenticated(true).on(&gym).await.unwrap();
    open.wait_until_ready(PATIENCE).await.unwrap();
    assert_eq!(open.token(), None);
    let url = format!("{}/get_model_info", open.url().unwrap());
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    open.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_deployment_scores_generates_and_teaches() {
    let home = Home::new();
    let gym = home.gym();
    let teacher = CustomDeployment::launch(home.model("fine"))
        .app_name("teacher")
        .engine_argument("--max-running-requests", 8)
        .on(&gym)
        .await
        .unwrap();
    // Named, since it has no address yet.
    let early = Teacher::from(&teacher);
    assert!(early.url == "deployment://teacher" || early.url.ends_with("/generate"), "{}", early.url);
    teacher.wait_until_ready(PATIENCE).await.unwrap();

    let opd = Opd { opd_kl_coef: 0.5, ..Opd::from(&teacher) };
    assert_eq!(opd.teacher.url, teacher.generate_url().unwrap());
    let Some(SecretRef::File(path)) = &opd.teacher.token else { panic!("a token file") };
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), teacher.token().unwrap().expose());

    assert_eq!(teacher.logprobs(&[4, 5, 6, 7], 2..4).await.unwrap(), [-0.5, -0.75]);
    assert_eq!(teacher.logprobs(&[4, 5, 6, 7], 1..2).await.unwrap(), [-0.25]);
    assert!(teacher.logprobs(&[4, 5], 2..2).await.unwrap().is_empty());
    for span in [0..2, 1..3, 3..4] {
        let error = teacher.logprobs(&[4, 5], span).await.unwrap_err();
        assert!(matches!(error, Error::Span { .. }), "{error}");
    }

    let sampling_params = SamplingParams { max_new_tokens: 2, ..SamplingParams::default() };
    let input_ids = Some(OneOrMany::Many(vec![vec![1, 2], vec![3]]));
    let request = GenerateRequest { input_ids, sampling_params, ..GenerateRequest::default() };
    let replies = teacher.generate(&request).await.unwrap();
    assert_eq!(replies.iter().map(|reply| reply.meta_info.prompt_tokens).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(replies[0].output_ids, [7, 7]);

    let listed = gym.deployments().await.unwrap();
    assert!(listed[0].promises_logprobs && listed[0].state == JobState::Running);
    teacher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_teacher_without_logprobs_fails_its_probe() {
    let home = Home::new();
    let gym = home.gym();
    let teacher = CustomDeployment::launch(home.model("no-logprobs")).on(&gym).await.unwrap();
    let error = teacher.wait_until_ready(PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Probe { .. }), "{error}");
    // The same service, taken as an endpoint, promises chat alone.
    let endpoint = Endpoint::launch(home.model("no-logprobs")).on(&gym).await.unwrap();
    assert_eq!(endpoint.url().unwrap(), teacher.url().unwrap());
    endpoint.wait_until_ready(PATIENCE).await.unwrap();
    let again = CustomDeployment::from(gym.deployment("no-logprobs").await.unwrap());
    assert!(matches!(again.wait_until_ready(PATIENCE).await, Err(Error::Probe { .. })));
    teacher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_served_beside_its_model() {
    let home = Home::new();
    let gym = home.gym();
    let model = home.model("fine");
    let path = home.path().join("runs/run-1/checkpoints/step-2");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("config.json"), "{}").unwrap();
    let checkpoint = Checkpoint::in_folder(&path, 2, model, "run-1".parse().unwrap());
    let base = Endpoint::launch(model).on(&gym).await.unwrap();
    let trained = Endpoint::launch(&checkpoint).on(&gym).await.unwrap();
    let both = Endpoint::launch((model, &checkpoint)).on(&gym).await.unwrap();
    assert_eq!(trained.app_name().as_str(), "run-1-step-2");
    assert_eq!(trained.served_model_name(), "fine/run-1/step-2");
    assert_eq!(both.app_name(), trained.app_name(), "adopted");
    assert_eq!(gym.deployment("run-1-step-2").await.unwrap().model(), model, "its family is its model's");
    trained.wait_until_ready(PATIENCE).await.unwrap();
    base.stop().await.unwrap();
    trained.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_launched_is_refused_before_anything_starts() {
    let home = Home::new();
    let gym = home.gym();
    let model = home.model("fine");
    let refused = |error: Error| error.to_string();
    let error = refused(Endpoint::launch(model).app_name("My App").on(&gym).await.unwrap_err());
    assert!(error.contains("My App") && error.contains("lower-case"), "{error}");
    let custom = CustomDeployment::launch(model).on(&gym);
    let error = refused(custom.engine_argument("contextlength", 5).await.unwrap_err());
    assert!(error.contains("`context_length`"), "{error}");
    let resources = Resources { device: Some("gpu".to_owned()), ..Resources::default() };
    let error = refused(Endpoint::launch(model).resources(resources).on(&gym).await.unwrap_err());
    assert!(error.contains("cuda:N"), "{error}");
    let nowhere = training_gym::config::Model::folder("/nowhere/model");
    let error = Endpoint::launch(nowhere).on(&gym).await.unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    assert!(gym.backend().list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_promised_is_what_was_asked_for_not_what_the_record_says() {
    let home = Home::new();
    let gym = home.gym();
    let endpoint = Endpoint::launch(home.model("no-logprobs")).app_name("both").on(&gym).await.unwrap();
    endpoint.wait_until_ready(PATIENCE).await.unwrap();
    let teacher = CustomDeployment::launch(home.model("no-logprobs")).app_name("both").on(&gym).await.unwrap();
    assert_eq!(teacher.url().unwrap(), endpoint.url().unwrap(), "adopted");
    let error = teacher.wait_until_ready(PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Probe { .. }), "{error}");
    endpoint.stop().await.unwrap();
}
