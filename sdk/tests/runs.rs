//! Runs on the local backend, with a stand-in for `gym-runtime` (`fixtures/fake_runtime.py`).

mod support;

use std::time::Duration;

use support::{Home, alive, rows, wait_until};
use training_gym::backend::Resources;
use training_gym::config::{Environment, Model, Opd, Recipe, TrainConfig};
use training_gym::deploy::{CustomDeployment, Endpoint};
use training_gym::reward::{RewardError, Sample};
use training_gym::run::{Cause, Error, RunState, TrainRun};
use training_gym_core::spec::Dtype;

const PATIENCE: Duration = Duration::from_secs(20);

fn config(home: &Home, scene: &str) -> TrainConfig {
    TrainConfig {
        model: home.model(scene),
        dataset: rows(home, "train.jsonl", &["2 + 2 = ?", "1 + 3 = ?"]),
        recipe: Recipe {
            num_rollout: Some(3),
            rollout_batch_size: Some(2),
            n_samples_per_prompt: Some(2),
            environment: Some(Environment::from([("COLOUR", "green")])),
            opd: Some(Opd::to_url("http://127.0.0.1:9/generate")),
            ..Recipe::default()
        },
    }
}

#[training_gym::reward]
fn always_right(_sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(1.0)
}

async fn ended(run: &TrainRun) -> training_gym_core::record::RunStatus {
    wait_until(|| async {
        let status = run.status().await.unwrap();
        status.state.is_terminal().then_some(status)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_from_launch_to_checkpoints() {
    let home = Home::new();
    let gym = home.gym();
    let run = config(&home, "fine").launch().on(&gym).await.unwrap();
    let result = run.result().await.unwrap();
    assert_eq!(result.training_run_id(), run.training_run_id());
    let checkpoint = result.checkpoints().last();
    assert_eq!((checkpoint.step, result.checkpoints().len()), (3, 2));
    assert_eq!(checkpoint.model, home.model("fine"));
    let folder = checkpoint.folder().await.unwrap();
    assert!(folder.join("config.json").is_file());
    // Another program takes it by its URL.
    assert_eq!(Model::hub(&checkpoint.url()), Model::folder(folder));
    assert_eq!(result.metrics().len(), 3);
    assert_eq!(run.metrics().await.unwrap()[2].step, 3);

    let log = run.logs().await.unwrap().lines().await.unwrap();
    let threads = run.spec().node.threads;
    assert!(log.contains(&format!("OMP_NUM_THREADS={threads}")) && log.contains(&"COLOUR=green".to_owned()), "{log:?}");

    // Another program: by id, and in the list.
    let other = home.gym().run(run.training_run_id().as_str()).await.unwrap();
    assert_eq!(other.status().await.unwrap().state, RunState::Succeeded);
    assert_eq!(other.result().await.unwrap().checkpoints().last(), checkpoint);
    let listed = gym.runs().await.unwrap();
    assert_eq!((listed.len(), listed[0].status.state), (1, RunState::Succeeded));
    assert!(matches!(gym.run("run-nobody").await, Err(Error::NotFound { .. })));
    // A trainer ends soon after its last word.
    wait_until(|| async { alive(&home.path().join("jobs")).is_empty().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_dies_without_a_word_has_failed() {
    let home = Home::new();
    let gym = home.gym();
    let run = config(&home, "killed").launch().on(&gym).await.unwrap();
    let status = ended(&run).await;
    let failure = status.failure.unwrap();
    assert_eq!((status.state, failure.cause, failure.retryable), (RunState::Failed, Cause::Died, true));
    assert!(failure.sentence.contains("SIGKILL") && failure.sentence.contains("out of memory"), "{}", failure.sentence);
    assert!(failure.sentence.contains("allocating 90 GB"), "{}", failure.sentence);
    assert!(failure.next_step.contains(run.training_run_id().as_str()), "{}", failure.next_step);
    let error = run.result().await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Died));

    let run = config(&home, "exit-8").launch().on(&gym).await.unwrap();
    assert_eq!(ended(&run).await.failure.unwrap().cause, Cause::OutOfMemory);
    let run = config(&home, "fails").launch().on(&gym).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Teacher));
    assert!(error.to_string().contains("answers with null") && error.to_string().contains("restart it"), "{error}");
    let run = config(&home, "empty").launch().on(&gym).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert!(matches!(error, Error::NoCheckpoint { .. }), "a success without a checkpoint is none: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_continues_attaches_or_is_refused() {
    let home = Home::new();
    let gym = home.gym();
    let launch = |config: TrainConfig| config.launch().run_id("mine").on(&gym);
    let run = launch(config(&home, "recovers")).await.unwrap();
    assert_eq!(ended(&run).await.state, RunState::Failed);

    let mut changed = config(&home, "recovers");
    changed.recipe.lr = Some(0.5);
    let error = launch(changed.clone()).check().await.unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    let error = launch(changed).await.unwrap_err().to_string();
    for part in ["`mine`", "update.optimizer.lr", "0.5", "run_id"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }

    // The teacher moved: another address is no other run.
    let mut moved = config(&home, "recovers");
    moved.recipe.opd = Some(Opd::to_url("http://127.0.0.1:10/generate"));
    let run = launch(moved).await.unwrap();
    assert_eq!(run.result().await.unwrap().checkpoints().last().step, 3, "the old attempt's failure is not this one's");
    assert!(run.spec().teacher.as_ref().unwrap().url.contains(":10/"));
    let stored = gym.run("mine").await.unwrap();
    assert_eq!(stored.spec(), run.spec());

    // Done is done: nothing is started again.
    let again = launch(config(&home, "recovers")).await.unwrap();
    again.result().await.unwrap();
    assert_eq!(again.metrics().await.unwrap().len(), run.metrics().await.unwrap().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_run_is_attached_to_and_cancelled() {
    let home = Home::new();
    let gym = home.gym();
    let launch = || config(&home, "waits").launch().run_id("long").on(&gym);
    let (first, second) = tokio::join!(launch(), launch());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.spec(), second.spec());
    wait_until(|| async { (first.status().await.unwrap().state == RunState::Running).then_some(()) }).await;
    assert_eq!(alive(&home.path().join("jobs")).len(), 1, "one supervisor");
    second.cancel().await.unwrap();
    assert_eq!(alive(&home.path().join("jobs")), Vec::<String>::new());
    assert_eq!(first.status().await.unwrap().state, RunState::Cancelled);
    assert!(matches!(first.result().await, Err(Error::Cancelled { step: 1, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_teacher_that_is_still_starting_is_waited_for() {
    let home = Home::new();
    let gym = home.gym();
    let teacher = CustomDeployment::launch(home.model("fine")).app_name("teacher").on(&gym).await.unwrap();
    let mut config = config(&home, "fine");
    config.recipe.opd = Some(Opd::from(&teacher));
    let run = config.launch().on(&gym).await.unwrap();
    let spec = run.spec().teacher.clone().unwrap();
    teacher.wait_until_ready(PATIENCE).await.unwrap();
    assert_eq!(spec.url, teacher.generate_url().unwrap());
    run.result().await.unwrap();
    let log = run.logs().await.unwrap().lines().await.unwrap();
    let hash = training_gym_core::ids::ContentHash::of(teacher.token().unwrap().expose().as_bytes());
    assert!(log.iter().any(|line| line.contains(hash.as_str())), "the trainer finds the teacher's token: {log:?}");
    teacher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_a_variable_becomes_a_secret_of_the_job() {
    let home = Home::new();
    let gym = home.gym();
    let mut config = config(&home, "fine");
    // Every process has a PATH; here it stands for a token.
    config.recipe.opd = Some(Opd::to_url("http://127.0.0.1:9/generate").token_env("PATH"));
    let run = config.clone().launch().on(&gym).await.unwrap();
    run.result().await.unwrap();
    let hash = training_gym_core::ids::ContentHash::of(std::env::var("PATH").unwrap().trim().as_bytes());
    let log = run.logs().await.unwrap().lines().await.unwrap();
    assert!(log.iter().any(|line| line.contains(hash.as_str())), "{log:?}");

    config.recipe.opd = Some(Opd::to_url("http://127.0.0.1:9/generate").token_env("GYM_TEST_UNSET_TOKEN"));
    let error = config.launch().on(&gym).await.unwrap_err();
    assert!(error.to_string().contains("GYM_TEST_UNSET_TOKEN"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_is_refused_before_anything_starts() {
    let home = Home::new();
    let gym = home.gym();
    let mut bad = config(&home, "fine");
    bad.recipe.rollout_batch_size = Some(0);
    let error = bad.launch().on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("recipe.rollout_batch_size = 0"), "{error}");
    let mut graded = config(&home, "fine");
    graded.recipe.custom_rm_function = Some(ALWAYS_RIGHT);
    let error = graded.launch().on(&gym).await.unwrap_err();
    assert!(matches!(error, Error::Program(_)), "a test harness cannot be the reward worker: {error}");
    let error = config(&home, "fine").launch().run_id("Not A Name").on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("Not A Name"), "{error}");

    let checked = config(&home, "fine").launch().on(&gym).check().await.unwrap();
    assert_eq!(checked.spec.data.train.rows, 2);
    assert!(checked.notes.iter().any(|note| note.contains("has 12 tokens")), "{:?}", checked.notes);
    let error = config(&home, "no-template").launch().on(&gym).check().await.unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
    // `config.check()` is the same: values, model, rows, tokenizer and template.
    let checked = config(&home, "fine").check().on(&gym).await.unwrap();
    assert!(checked.notes.iter().any(|note| note.contains("has 12 tokens")), "{:?}", checked.notes);
    assert!(checked.notes.iter().any(|note| note.contains("does not say what it serves")), "{:?}", checked.notes);
    let error = config(&home, "no-template").check().on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
    let mut bad = config(&home, "fine");
    bad.recipe.rollout_batch_size = Some(0);
    let error = bad.check().on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("recipe.rollout_batch_size = 0"), "{error}");
    let mut bad = config(&home, "fine");
    bad.dataset = bad.dataset.input_key("question");
    let error = bad.check().on(&gym).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("`question`") && cause.contains("`prompt`"), "{cause}");
    let ungraded = config(&home, "fine");
    let error = ungraded.check().eval(ungraded.dataset.clone()).on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("recipe.eval_interval") && error.contains("custom_rm_function"), "{error}");
    // The launch itself asks as well, before anything is stored.
    let error = config(&home, "no-template").launch().on(&gym).await.unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
    assert!(gym.runs().await.unwrap().is_empty());
    assert!(gym.backend().list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_runtime_remarks_on_the_rows_is_a_note_of_the_run() {
    let home = Home::new();
    let gym = home.gym();
    let mut short = config(&home, "fine");
    short.recipe.rollout_max_prompt_len = Some(11);
    let run = short.launch().on(&gym).await.unwrap();
    assert!(run.notes().iter().any(|note| note.contains("1 training prompts of more than 11")), "{:?}", run.notes());
    run.result().await.unwrap();
    // Over is over: stopping it then is no error.
    run.cancel().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continued_run_keeps_its_node_unless_another_is_asked_for() {
    let home = Home::new();
    let gym = home.gym();
    let launch = || config(&home, "recovers").launch().run_id("node").on(&gym);
    let odd = Resources { threads: Some(7), dtype: Some(Dtype::Bfloat16), ..Resources::default() };
    let run = launch().resources(odd.clone()).await.unwrap();
    assert_eq!(ended(&run).await.state, RunState::Failed);
    let error = launch().resources(Resources { threads: Some(2), ..odd }).await.unwrap_err().to_string();
    assert!(error.contains("node.threads"), "{error}");
    let run = launch().await.unwrap();
    assert_eq!((run.spec().node.threads, run.spec().node.dtype), (7, Dtype::Bfloat16));
    run.result().await.unwrap();
    launch().await.unwrap().result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_not_continued_under_another_teacher() {
    let home = Home::new();
    let gym = home.gym();
    let mut first = None;
    for (name, model, refused) in [("a", "fine", false), ("b", "other", true), ("c", "fine", false)] {
        let teacher = Endpoint::launch(home.model(model)).app_name(name).on(&gym).await.unwrap();
        teacher.wait_until_ready(PATIENCE).await.unwrap();
        let teacher = CustomDeployment::from((*teacher).clone());
        let mut config = config(&home, "recovers");
        config.recipe.opd = Some(Opd::from(&teacher));
        let launched = config.launch().run_id("taught").on(&gym).await;
        if refused {
            let error = launched.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::OtherTeacher { .. }), "{text}");
            assert!(text.contains("`fine`") && text.contains("`other`") && text.contains("run_id"), "{text}");
        } else {
            let run = launched.unwrap();
            let state = ended(&run).await.state;
            assert_eq!(state, if first.is_none() { RunState::Failed } else { RunState::Succeeded });
            first = Some(run);
        }
        teacher.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_process_has_failed_and_can_be_launched_again() {
    let home = Home::new();
    let gym = home.gym();
    let launch = || config(&home, "recovers").launch().run_id("orphan").on(&gym);
    let run = launch().await.unwrap();
    ended(&run).await;
    // As after a launch that was killed before its job, or a state folder that was cleaned.
    wait_until(|| async { alive(&home.path().join("jobs")).is_empty().then_some(()) }).await;
    std::fs::remove_dir_all(home.path().join("jobs/train-orphan")).unwrap();
    let error = gym.run("orphan").await.unwrap().result().await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Died));
    assert!(error.to_string().contains(".run_id(\"orphan\")"), "{error}");
    run.cancel().await.unwrap();
    launch().await.unwrap().result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_advice_depends_on_the_cause() {
    let home = Home::new();
    let gym = home.gym();
    let run = config(&home, "exit-2").launch().on(&gym).await.unwrap();
    let failure = ended(&run).await.failure.unwrap();
    assert_eq!((failure.cause, failure.retryable), (Cause::InvalidInput, false));
    assert!(failure.next_step.contains("without `.run_id"), "{}", failure.next_step);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_process_outlives_its_last_word_is_started_anew_once() {
    let home = Home::new();
    let gym = home.gym();
    let launch = || config(&home, "lingers").launch().run_id("slow").on(&gym);
    let run = launch().await.unwrap();
    assert_eq!(ended(&run).await.state, RunState::Failed);
    assert_eq!(alive(&home.path().join("jobs")).len(), 1, "its process is still there");
    // The old word must not end the new attempt, which has not spoken when the second launch looks.
    let (first, second) = tokio::join!(launch(), launch());
    first.unwrap().result().await.unwrap();
    assert_eq!(second.unwrap().status().await.unwrap().attempt, 2);
}
