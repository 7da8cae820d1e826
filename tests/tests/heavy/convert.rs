//! `gym-runtime convert` against the tools that wrote what it reads: PyTorch's FSDP, llama.cpp's own
//! Python for GGUF, and a real pretrained model under transformers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use training_gym::prelude::*;
use training_gym_core::wire::{GenerateRequest, OneOrMany, SamplingParams};
use training_gym_tests::house::{House, fail, succeed};
use training_gym_tests::programs::program;

use super::{given, gym, python, script};

/// Runs a script and returns what it printed last.
fn answer(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot start Python")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout)?;
    Ok(printed.lines().last().unwrap_or_default().to_owned())
}

fn ours(arguments: &[&Path]) -> Command {
    let mut command = Command::new(program("gym-runtime"));
    command.args(arguments);
    command
}

fn converted(source: &Path, out: &Path) -> Result<String> {
    succeed(ours(&[Path::new("convert"), source]).arg("--out").arg(out))
}

/// The model file that a package carries.
fn smollm2() -> Result<PathBuf> {
    given("GYM_HEAVY_SMOLLM2")
}

#[test]
fn shards_that_pytorch_wrote_are_merged_to_the_unsharded_model() -> Result<()> {
    let house = House::new(&["fine"])?;
    for (world, kind) in [(2, "fsdp2"), (3, "fsdp2"), (4, "hybrid"), (2, "fsdp1")] {
        let case = house.path(&format!("{kind}-{world}"));
        std::fs::create_dir(&case)?;
        let mut command = Command::new(python()?);
        command.arg(script("fsdp_shards.py")).arg(house.path("student")).arg(&case).arg(world.to_string()).arg(kind);
        answer(&mut command)?;
        let out = case.join("converted");
        converted(&case.join("global_step_1"), &out)?;
        let (expected, found) =
            (std::fs::read(case.join("expected.safetensors"))?, std::fs::read(out.join("model.safetensors"))?);
        let (expected, found) = (SafeTensors::deserialize(&expected)?, SafeTensors::deserialize(&found)?);
        ensure!(expected.len() == found.len() && found.len() > 20, "{kind}: {} tensors", found.len());
        for (name, view) in expected.tensors() {
            let ours = found.tensor(&name)?;
            ensure!(
                ours.dtype() == view.dtype() && ours.shape() == view.shape() && ours.data() == view.data(),
                "{kind} of {world}: `{name}` differs"
            );
        }
        ensure!(out.join("tokenizer.json").is_file(), "the tokenizer comes along");
        let mut inspect = ours(&[Path::new("inspect"), &case.join("global_step_1")]);
        if kind == "fsdp1" {
            succeed(&mut inspect)?;
        } else {
            // A buffer that the family's model does not have is merged like any tensor, and is no sound model.
            let printed = fail(&mut inspect)?;
            ensure!(printed.contains("no place for: `model.plain_buffer`"), "{kind}: {printed}");
        }
    }
    Ok(())
}

#[test]
fn pickles_that_python_would_run_are_refused_by_name() -> Result<()> {
    let house = House::new(&["fine"])?;
    let (folder, proof) = (house.path("hostile"), house.path("proof"));
    std::fs::create_dir(&folder)?;
    answer(Command::new(python()?).arg(script("hostile_pickle.py")).arg(&folder).arg(&proof))?;
    for (name, word) in [("value", "system"), ("inside", "eval"), ("library", "torch.hub")] {
        let printed = fail(ours(&[Path::new("convert"), &folder.join(name)]).arg("--out").arg(house.path("out")))?;
        ensure!(printed.contains(word) && printed.contains("nothing of it was run"), "{name}: {printed}");
        ensure!(!house.path("out").exists() && !proof.exists(), "{name}: something was made");
    }
    Ok(())
}

#[test]
fn every_encoding_is_decoded_to_the_bits_of_the_reference() -> Result<()> {
    let house = House::new(&["fine"])?;
    let sample = house.path("sample.gguf");
    answer(Command::new(python()?).arg(script("gguf_sample.py")).arg(&sample))?;
    for (file, least) in [(sample, 13), (smollm2()?, 3)] {
        let out = house.path("decoded");
        let _ = std::fs::remove_dir_all(&out);
        converted(&file, &out)?;
        let report = answer(Command::new(python()?).arg(script("gguf_reference.py")).arg(&file).arg(&out))?;
        let report: Value = serde_json::from_str(&report)?;
        ensure!(report["differing"] == json!([]), "{report}");
        let encodings = report["encodings"].as_array().map_or(0, Vec::len);
        ensure!(encodings >= least && report["tensors"].as_u64() > Some(20), "{report}");
    }
    Ok(())
}

/// Text in which tokenizers differ: digits, contractions, spaces, other scripts, control tokens.
const TEXTS: [&str; 14] = [
    "Hello, world!",
    "  leading and   inner  spaces \t tabs\n\n\nand lines \r\n",
    "1234567890 3.14159 1,000,000 x2 2x ²³ ٣٤٥ ½",
    "I'll say it's what they've DON'T we'd",
    "def f(x):\n    return x**2  # comment\n",
    "naïve café Übergröße ﬁne ﷺ",
    "日本語のテキスト、中文字符，한국어",
    "Привет, как дела? Γειά σου",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_end|> <|endoftext|>x",
    "e\u{301} \u{e9} \u{0} \u{7f} \u{a0}nbsp\u{3000}wide",
    "",
    "https://example.org/a?b=c&d=%20#e_f-g",
];

fn chats() -> Vec<Vec<Message>> {
    let system = |text: &str| Message { role: "system".to_owned(), ..Message::user(text) };
    let assistant = |text: &str| Message { role: "assistant".to_owned(), ..Message::user(text) };
    vec![
        vec![Message::user("What is the capital of France?")],
        vec![system("Answer in one word."), Message::user("Which planet is known as the red one?")],
        vec![Message::user("What is 2 + 2?"), assistant("4"), Message::user("And twice that?")],
        vec![Message::user("Write a short poem about a river.")],
        vec![Message::user("Name three colours, separated by commas.")],
    ]
}

const NEW_TOKENS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_pretrained_model_of_a_gguf_answers_as_it_does_under_transformers() -> Result<()> {
    let house = House::new(&["fine"])?;
    let folder = house.path("smollm2");
    converted(&smollm2()?, &folder)?;
    let inspected = succeed(&mut ours(&[Path::new("inspect"), &folder]))?;
    ensure!(inspected.contains("134,515,008 in 272 tensors"), "{inspected}");

    let chats = chats();
    let asked = json!({"chats": chats, "texts": TEXTS, "new_tokens": NEW_TOKENS});
    let theirs = answer(Command::new(python()?).arg(script("pretrained.py")).arg(&folder).arg(asked.to_string()))?;
    let theirs: Value = serde_json::from_str(&theirs)?;

    let endpoint = Endpoint::launch(Model::folder(&folder)).app_name("smollm2").on(&gym(&house)?).await?;
    endpoint.wait_until_ready(Duration::from_secs(300)).await?;
    let mut sensible = false;
    for (chat, theirs) in chats.iter().zip(theirs["chats"].as_array().context("a list")?) {
        let options = ChatOptions { temperature: Some(0.0), max_tokens: Some(NEW_TOKENS), ..ChatOptions::default() };
        let reply = endpoint.chat(chat, &options).await?;
        ensure!(theirs["answer"] == reply.content.as_str(), "`{}` here, {} there", reply.content, theirs["answer"]);
        sensible |= reply.content.contains("Paris");
        let ids = |key: &str| -> Vec<i64> {
            theirs[key].as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
        };
        ensure!(reply.usage.prompt_tokens == ids("prompt_ids").len() as u64, "prompts differ in length");
        let whole = [ids("prompt_ids"), ids("answer_ids")].concat();
        let ours = endpoint.logprobs(&whole, 1..whole.len()).await?;
        let expected: Vec<f64> =
            theirs["logprobs"].as_array().context("a list")?.iter().filter_map(Value::as_f64).collect();
        ensure!(ours.len() == expected.len() && ours.len() > 10, "{} and {}", ours.len(), expected.len());
        for (position, (ours, theirs)) in ours.iter().zip(&expected).enumerate() {
            // Two float32 forward passes of thirty layers with other kernels.
            ensure!((f64::from(*ours) - theirs).abs() < 1e-3, "position {position}: {ours} here, {theirs} there");
        }
    }
    ensure!(sensible, "it knows the capital of France");

    for (text, theirs) in TEXTS.iter().zip(theirs["texts"].as_array().context("a list")?) {
        if text.is_empty() {
            continue;
        }
        let request = GenerateRequest {
            text: Some(OneOrMany::One((*text).to_owned())),
            sampling_params: SamplingParams { max_new_tokens: 0, ..SamplingParams::default() },
            return_logprob: true,
            logprob_start_len: OneOrMany::One(0),
            ..GenerateRequest::default()
        };
        let replies = endpoint.generate(&request).await?;
        let scored = replies[0].meta_info.input_token_logprobs.as_ref().context("log-probabilities")?;
        let ids: Vec<i64> = scored.iter().map(|token| token.1).collect();
        ensure!(json!(ids) == *theirs, "{text:?} is {ids:?} here, {theirs} there");
    }
    endpoint.stop().await?;
    Ok(())
}

#[test]
fn a_step_of_distillation_runs_with_a_pretrained_model_as_teacher_and_student() -> Result<()> {
    let house = House::new(&["fine"; 4])?;
    let folder = house.path("smollm2");
    converted(&smollm2()?, &folder)?;
    let mut person = Command::new(program("person"));
    person
        .env("TRAINING_GYM_RUNTIME", program("gym-runtime"))
        .arg("--home")
        .arg(house.path("home"))
        .arg("--dataset")
        .arg(house.path("rows.jsonl"))
        .arg("--student")
        .arg(&folder)
        .arg("--teacher")
        .arg(&folder)
        .args(["--steps", "1", "--lr", "1e-6"]);
    let printed = succeed(&mut person)?;
    let checkpoint = house.run_folder("home")?.join("checkpoints/step-1");
    ensure!(printed.contains("checkpoint "), "{printed}");
    let metrics = house.lines("home", "metrics.jsonl")?;
    ensure!(metrics.len() == 1, "{metrics:?}");
    // Its own teacher: the student has nothing to learn from it but rounding.
    let divergence = metrics[0]["reverse_kl"].as_f64().context("the teacher was asked")?;
    ensure!(divergence.abs() < 1e-3, "{divergence} nats a token");
    let inspected = succeed(&mut ours(&[Path::new("inspect"), &checkpoint]))?;
    ensure!(inspected.contains("134,515,008 in 272 tensors"), "{inspected}");
    Ok(())
}
