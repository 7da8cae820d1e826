use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use training_gym_core::sample::{FinishReason, Message, Prompt};

use super::*;
use crate::deploy::Usage;

/// Answers a prompt `x` with `x`; texts of the prompt ask for other things.
#[derive(Default)]
struct Echo {
    running: AtomicUsize,
    most: AtomicUsize,
    calls: AtomicUsize,
    seeds: Mutex<Vec<Option<u64>>>,
}

#[async_trait]
impl ChatTarget for Echo {
    fn name(&self) -> String {
        "echo".to_owned()
    }

    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.seeds.lock().unwrap().push(options.seed);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        let text = messages.last().unwrap().content.as_str().unwrap().to_owned();
        let error = |transient| ChatError { transient, source: format!("no reply to {text}").into() };
        match text.as_str() {
            "busy" if call % 3 != 2 => return Err(error(true)),
            "down" => return Err(error(true)),
            "forbidden" => return Err(error(false)),
            _ => {}
        }
        let finish_reason = if text == "long" { FinishReason::Length } else { FinishReason::Stop };
        Ok(ChatReply { content: text, reasoning_content: None, finish_reason, usage: Usage::default() })
    }
}

fn rows(prompts: &[(&str, &str)]) -> Vec<Row> {
    let row = |(prompt, label): &(&str, &str)| Row {
        prompt: Prompt::Messages(vec![Message::user(*prompt)]),
        label: (*label).to_owned(),
        metadata: Map::new(),
    };
    prompts.iter().map(row).collect()
}

fn same(row: &Row, reply: &ChatReply) -> f64 {
    if reply.content == row.label { 1.0 } else { -1.0 }
}

#[tokio::test]
async fn replies_are_scored_in_the_rows_order() {
    let mut rows = rows(&[("a", "a"), ("b", "x"), ("long", "long"), ("d", "d")]);
    rows[0].prompt = Prompt::Text("a".to_owned());
    let echo = Echo::default();
    let report = evaluate(&echo, &rows, same).max_concurrency(2).quiet().await.unwrap();
    assert_eq!(
        report.rows.iter().map(|row| row.samples[0].score().unwrap()).collect::<Vec<_>>(),
        [1.0, -1.0, 1.0, 1.0]
    );
    assert_eq!(echo.most.load(Ordering::SeqCst), 2, "as many at once as allowed, and no more");
    let (mean, accuracy) = (report.mean(), report.accuracy());
    assert_eq!((mean.value, accuracy.value, accuracy.rows), (0.5, 0.75, 4));
    assert!((accuracy.standard_error.unwrap() - 0.25).abs() < 1e-12);
    assert_eq!((report.truncated(), report.failed()), (0.25, 0));
    assert_eq!(
        report.to_string(),
        "echo: 75.0% ± 25.0 right, mean score 0.500 ± 0.500 (4 rows, 1 each, 25% truncated)"
    );
}

#[tokio::test]
async fn closures_and_async_scorers_do() {
    let rows = rows(&[("a", "a"), ("b", "x")]);
    let wanted = "a".to_owned();
    let echo = Echo::default();
    let report = evaluate(&echo, &rows, |_row, reply| if reply.content == wanted { 2.0 } else { 0.0 }).quiet().await;
    assert_eq!(report.unwrap().mean().value, 1.0);
    let judge = async |row: Row, reply: ChatReply| {
        tokio::task::yield_now().await;
        same(&row, &reply)
    };
    let report = evaluate_async(&echo, &rows[..], judge).quiet().await.unwrap();
    assert_eq!(report.mean().value, 0.0);
}

#[tokio::test]
async fn only_transient_failures_are_tried_again() {
    let evaluation = |rows: Vec<Row>| async move {
        let echo = Echo::default();
        let mut evaluation = evaluate(&echo, &rows, same).max_failed_fraction(1.0).retries(2).quiet();
        evaluation.retry_pause = Duration::from_millis(1);
        let report = evaluation.await.unwrap();
        (report, echo.calls.load(Ordering::SeqCst))
    };
    let (report, calls) = evaluation(rows(&[("busy", "busy")])).await;
    assert_eq!((report.accuracy().value, calls), (1.0, 3));
    let (report, calls) = evaluation(rows(&[("down", "down")])).await;
    assert_eq!((report.failed(), calls), (1, 3), "tried, and twice again");
    let (report, calls) = evaluation(rows(&[("forbidden", "")])).await;
    assert_eq!((report.failed(), calls), (1, 1));
    assert_eq!(report.rows[0].samples[0], Outcome::Failed { error: "no reply to forbidden".to_owned() });
    assert!(report.mean().value.is_nan());
    assert_eq!(report.mean().rows, 0);
}

#[tokio::test]
async fn failed_rows_are_not_wrong_ones_and_too_many_are_an_error() {
    let some = rows(&[("a", "a"), ("forbidden", ""), ("c", "c"), ("d", "x")]);
    let echo = Echo::default();
    let report = evaluate(&echo, &some, same).max_failed_fraction(0.25).quiet().await.unwrap();
    assert_eq!((report.failed(), report.accuracy().rows), (1, 3));
    assert!((report.accuracy().value - 2.0 / 3.0).abs() < 1e-12);
    assert!(report.to_string().ends_with("(3 rows, 1 each, 1 failed)"), "{report}");

    let error = evaluate(&echo, &some, same).quiet().await.unwrap_err();
    assert!(matches!(&error, Error::TooManyFailed { failed: 1, total: 4, allowed: 0, row: 1, .. }), "{error}");
    assert!(error.to_string().contains("no reply to forbidden"), "{error}");

    let nan = evaluate(&echo, &some[..1], |_, _| f64::NAN).max_failed_fraction(1.0).quiet().await.unwrap();
    assert_eq!(nan.rows[0].samples[0], Outcome::Failed { error: "the scorer returned NaN".to_owned() });
}

#[tokio::test]
async fn several_samples_give_pass_and_mean_at_k() {
    let rows = rows(&[("a", "a"), ("b", "b")]);
    let echo = Echo::default();
    // Row a is right in 1 of 4, row b in 3 of 4.
    let counts = Mutex::new(std::collections::BTreeMap::<String, usize>::new());
    let scorer = |row: &Row, _reply: &ChatReply| {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(row.label.clone()).or_default();
        *count += 1;
        f64::from(u8::from(if row.label == "a" { *count <= 1 } else { *count <= 3 }))
    };
    let report = evaluate(&echo, &rows, scorer).samples(4).seed(7).max_concurrency(1).quiet().await.unwrap();
    assert_eq!(report.accuracy().value, 0.5);
    assert!((report.accuracy().standard_error.unwrap() - 0.25).abs() < 1e-12, "clustered: two rows, not eight samples");
    assert_eq!(report.pass_at(1).unwrap().value, 0.5);
    assert_eq!(report.pass_at(2).unwrap().value, 0.75, "1 − C(3,2)/C(4,2), and 1");
    assert_eq!(report.pass_at(4).unwrap().value, 1.0);
    assert_eq!(report.mean_at(1).unwrap().value, 1.0, "each row's first");
    assert_eq!(report.mean_at(4).unwrap(), report.mean());
    assert!(matches!(report.pass_at(5), Err(Error::Setting { setting: "k", .. })));
    assert!(matches!(report.mean_at(0), Err(Error::Setting { .. })));

    let seeds: BTreeSet<Option<u64>> = echo.seeds.lock().unwrap().drain(..).collect();
    assert_eq!(seeds.len(), 8, "each reply has a seed of its own");
    let again = Echo::default();
    let _ = evaluate(&again, &rows, same).samples(4).seed(7).quiet().await.unwrap();
    assert_eq!(again.seeds.lock().unwrap().drain(..).collect::<BTreeSet<_>>(), seeds, "and the same ones again");

    let json = report.to_json();
    assert_eq!(json["pass_at"]["2"]["value"], 0.75);
    assert_eq!(json["mean_at"]["4"]["value"], 0.5);
    assert_eq!(json["rows"][1]["samples"][3]["outcome"], "scored");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    report.write_json(&path).unwrap();
    let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(read, json);
    assert!(matches!(report.write_json(folder.path().join("no/folder.json")), Err(Error::Write { .. })));
}

#[tokio::test]
async fn a_majority_is_elected_by_answers_and_the_spread_is_that_of_runs() {
    let rows = rows(&[("q", "5"), ("r", "7")]);
    let said = Mutex::new(["Answer: 5", "Answer: 4", "Answer: 5.", "Answer: 3", "Answer: 7", "no"].into_iter());
    struct Says<'a>(&'a Mutex<std::array::IntoIter<&'static str, 6>>);
    #[async_trait]
    impl ChatTarget for Says<'_> {
        fn name(&self) -> String {
            "says".to_owned()
        }
        async fn reply(&self, _: &[Message], _: &ChatOptions) -> Result<ChatReply, ChatError> {
            let content = self.0.lock().unwrap().next().unwrap().to_owned();
            let usage = Usage { prompt_tokens: 1, completion_tokens: 10 };
            Ok(ChatReply { content, reasoning_content: None, finish_reason: FinishReason::Stop, usage })
        }
    }
    let target = Says(&said);
    // Replies alternate between the rows: q gets 5, 5., 7 and r gets 4, 3, no.
    let grade = |row: &Row, reply: &ChatReply| Grader::Math.score(&reply.content, &row.label);
    let report = evaluate(&target, &rows, grade).samples(3).max_concurrency(1).quiet().await.unwrap();
    let majority = report.maj_at(3, crate::scorers::math::stated_form).unwrap();
    assert_eq!((majority.value, majority.rows), (0.5, 2), "q elects 5, with and without its full stop");
    // Run means 1/2, 1/2, 0.
    let spread = report.std_at(3).unwrap().unwrap();
    assert!((spread - (1.0_f64 / 12.0).sqrt()).abs() < 1e-12, "{spread}");
    assert_eq!(report.std_at(1).unwrap(), None);
    assert_eq!(report.completion_tokens().value, 10.0);
}

#[tokio::test]
async fn what_cannot_be_decided_is_counted_apart() {
    let rows = rows(&[("Answer: 5", "5"), (r"\boxed{9^{9^{9^9}}}", "5")]);
    let grade = |row: &Row, reply: &ChatReply| Grader::Math.score(&reply.content, &row.label);
    let report = evaluate(&Echo::default(), &rows, grade).max_failed_fraction(0.0).quiet().await.unwrap();
    assert_eq!((report.accuracy().value, report.accuracy().rows), (1.0, 1));
    assert_eq!((report.ungradable(), report.failed()), (1, 0));
    assert!(report.to_string().contains("1 ungradable"), "{report}");
    assert_eq!(report.to_json()["rows"][1]["samples"][0]["reason"], "a number too large to compute");
}

#[test]
fn questions_are_framed_and_names_are_read() {
    let [row] = rows(&[("What is 1 + 1?", "2")]).try_into().unwrap();
    for (name, ends) in [("boxed", r"\boxed{}."), ("dapo", "after \"Answer:\"."), ("none", "1 + 1?")] {
        let instruction: Instruction = name.parse().unwrap();
        assert_eq!(instruction.to_string(), name);
        let Prompt::Messages(messages) = instruction.apply(row.clone()).prompt else { panic!("it was messages") };
        let text = messages[0].content.as_str().unwrap();
        assert!(text.contains("What is 1 + 1?") && text.ends_with(ends), "{text}");
    }
    let error = "mcq".parse::<Grader>().unwrap_err().to_string();
    assert!(error.contains("`grader` = mcq: is one of math, math_reward, math_dapo, tutorial"), "{error}");
    let worked = Row { label: "So 3.\n#### 18".to_owned(), ..row };
    assert_eq!(Benchmark::Gsm8k.label(worked.clone()).label, "18");
    assert_eq!(final_answer(r"So $x = \boxed{\frac{1}{2}}$."), r"\frac{1}{2}");
    assert_eq!(final_answer(r" \left( 3, \frac{\pi}{2} \right) "), r"\left( 3, \frac{\pi}{2} \right)");
    assert_eq!(Instruction::bare(&Instruction::Dapo.frame("1 + 1?")), "1 + 1?");
    for name in ["math500", "aime2024", "aime2025", "gsm8k"] {
        name.parse::<Benchmark>().unwrap().dataset().unwrap();
    }
}

/// Every copy of a benchmark that people have: by its own columns, framed, its labels short.
#[tokio::test]
async fn a_benchmark_is_loaded_from_a_file_under_other_columns_too() {
    let folder = tempfile::tempdir().unwrap();
    for (line, question) in [
        (r#"{"problem": "a", "answer": "5"}"#, "a"),
        (r#"{"Problem": "b", "Answer": 5, "ID": "2024-I-1"}"#, "b"),
        (r#"{"problem": "c", "solution": "so \\boxed{5}"}"#, "c"),
        (r#"{"prompt": [{"role": "user", "content": "d"}], "reward_model": {"ground_truth": "5"}}"#, "d"),
        (r#"{"prompt": "e", "label": "x\n#### 5"}"#, "e"),
    ] {
        let file = folder.path().join("aime2024.jsonl");
        std::fs::write(&file, line).unwrap();
        assert_eq!(Benchmark::Aime2024.find_in(folder.path()).as_ref(), Some(&file));
        let dataset = Benchmark::Aime2024.dataset_in(&file);
        let rows = Benchmark::Aime2024.load(&dataset, Instruction::Boxed).await.unwrap();
        assert_eq!(rows[0].label, "5", "{line}");
        let Prompt::Messages(messages) = &rows[0].prompt else { panic!("a chat") };
        assert_eq!(messages[0].content, Instruction::Boxed.frame(question).as_str());
    }
    let file = folder.path().join("other.jsonl");
    std::fs::write(&file, r#"{"text": "a"}"#).unwrap();
    let error = Benchmark::Math500.load(&Benchmark::Math500.dataset_in(&file), Instruction::None).await.unwrap_err();
    assert!(format!("{error:?}").contains("problem"), "{error:?}");
}

#[tokio::test]
async fn impossible_settings_are_refused_before_anything_is_asked() {
    let rows = rows(&[("a", "a")]);
    let echo = Echo::default();
    let greedy = SamplingSpec { temperature: 0.0, ..SamplingSpec::default() };
    for (evaluation, setting) in [
        (evaluate(&echo, &rows, same).samples(0), "samples"),
        (evaluate(&echo, &rows, same).max_concurrency(0), "max_concurrency"),
        (evaluate(&echo, &rows, same).max_failed_fraction(1.5), "max_failed_fraction"),
        (evaluate(&echo, &rows, same).sampling(greedy).samples(2), "samples"),
    ] {
        let error = evaluation.await.unwrap_err();
        assert!(error.to_string().contains(setting), "{error}");
    }
    assert!(matches!(evaluate(&echo, &rows[..0], same).await, Err(Error::NoRows)));
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
}
