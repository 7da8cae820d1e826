use std::collections::BTreeSet;
use std::path::Path;

use training_gym::config::{Divergence, SampleWeighting, TrainConfig};
use training_gym::dataset::HuggingFaceDataset;
use training_gym::reward::Sample;

use super::*;

fn read(program: Program, pairs: &[(&str, &str)]) -> Result<Knobs, Problems> {
    Knobs::read(&Environment::of(pairs), program)
}

fn refusals(program: Program, pairs: &[(&str, &str)]) -> String {
    read(program, pairs).map(|knobs| format!("{knobs:?}")).unwrap_err().to_string()
}

const OPD: [(&str, &str); 2] = [("MODEL_PATH", "Qwen/Qwen3-4B"), ("TEACHER_MODEL_PATH", "Qwen/Qwen3-8B")];

/// The list for people, row by row.
#[test]
fn the_documentation_says_what_the_code_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/seed-variables.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> = VARIABLES
        .iter()
        .map(|Variable { name, programs, default, becomes }| {
            let programs: Vec<String> = programs.iter().map(Program::to_string).collect();
            let programs = if programs.is_empty() { "-".to_owned() } else { programs.join(", ") };
            format!("| `{name}` | {programs} | {default} | {becomes} |")
        })
        .collect();
    assert_eq!(found, expected, "the table of {} should be\n{}", path.display(), expected.join("\n"));
}

/// Every name of the scripts' own documentation, where that is here: its lists, and what its commands set.
#[test]
fn the_list_is_that_of_the_scripts() {
    let ours: BTreeSet<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    assert_eq!(ours.len(), VARIABLES.len(), "each once");
    let shared = std::env::var("TRAINING_GYM_SHARED").unwrap_or_else(|_| "../../shared".to_owned());
    let Ok(text) = std::fs::read_to_string(Path::new(&shared).join("seeds/002_memory_efficient_opd.txt")) else {
        println!("skipped: the scripts' documentation is absent");
        return;
    };
    let name = |text: &str| text.chars().all(|c| c.is_ascii_uppercase() || c == '_') && text.contains('_');
    let mut theirs = BTreeSet::new();
    for line in text.lines() {
        let listed = line.strip_prefix("• ").map(|item| item.split_whitespace().next().unwrap_or_default());
        let set = line.split_once('=').map(|(before, _)| before);
        theirs.extend([listed, set].into_iter().flatten().filter(|word| name(word)));
    }
    assert!(theirs.len() > 30, "{theirs:?}");
    assert_eq!(ours, theirs);
}

#[test]
fn a_distillation_has_every_knob() {
    let set = [
        ("TRAIN_BATCH_SIZE", "8"),
        ("PPO_MINI_BATCH_SIZE", "4"),
        ("PPO_MICRO_BATCH_SIZE_PER_GPU", "2"),
        ("LEARNING_RATE", "5e-7"),
        ("TOTAL_EPOCHS", "3"),
        ("MAX_PROMPT_LENGTH", "1000"),
        ("MAX_RESPONSE_LENGTH", "3000"),
        ("ROLLOUT_N", "16"),
        ("OPD_LOSS_TYPE", "jsd"),
        ("OPD_CHUNK_SIZE", "128"),
        ("OPD_MAX_LENGTH", "4000"),
        ("OPD_REWARD_BETA", "0.25"),
        ("ENABLE_THINKING", "False"),
        ("REWARD_FUNCTION", "math_dapo"),
        ("VAL_TEMPERATURE", "0.6"),
        ("VAL_TOP_P", "0.95"),
        ("VAL_N", "4"),
        ("TP_SIZE", "1"),
        ("GPU_MEMORY_UTIL", "0.6"),
        ("MODEL_NAME", "My_Model"),
    ];
    let knobs = read(Program::Opd, &[&OPD[..], &set].concat()).unwrap();
    assert_eq!(knobs.notes, ["TP_SIZE = 1 is not applied: ".to_owned() + VARIABLES[11].becomes]);
    assert_eq!((knobs.name.as_ref().unwrap().as_str(), knobs.most_evaluated()), ("my-model", 256));
    let recipe = knobs.recipe(100, true).unwrap();
    assert_eq!((recipe.num_rollout, recipe.rollout_batch_size), (Some(37), Some(8)), "3 · 100 / 8");
    assert_eq!((recipe.n_samples_per_prompt, recipe.global_batch_size), (Some(16), Some(64)));
    assert_eq!((recipe.max_tokens_per_gpu, recipe.logits_chunk_size), (Some(8000), Some(128)));
    assert_eq!((recipe.rollout_max_prompt_len, recipe.rollout_max_response_len), (Some(1000), Some(3000)));
    assert_eq!((recipe.lr, recipe.eval_temperature, recipe.eval_top_p), (Some(5e-7), Some(0.6), Some(0.95)));
    assert_eq!((recipe.n_samples_per_eval_prompt, recipe.gpu_memory_utilization), (Some(4), Some(0.6)));
    assert_eq!(
        (recipe.param_offload, recipe.optimizer_offload, recipe.free_cache_engine),
        (Some(true), Some(true), Some(true))
    );
    assert_eq!(recipe.custom_rm_function, Some(rewards::MATH_DAPO));
    assert!(matches!(recipe.weighting, Some(SampleWeighting::Reward { beta: 0.25 })));
    let teacher = recipe.opd.as_ref().unwrap().co_resident.unwrap();
    assert_eq!((teacher.divergence, teacher.model.name()), (Divergence::Jsd { beta: 0.5 }, "Qwen/Qwen3-8B"));
    // The whole recipe is one that a launch takes.
    let dataset = HuggingFaceDataset::new("org/data");
    TrainConfig { model: knobs.model, dataset, recipe }.check_values().unwrap();
}

#[test]
fn defaults_are_the_scripts_and_are_ones_that_a_launch_takes() {
    let student = &OPD[..1];
    for (program, pairs, batch, samples, mini) in
        [(Program::Opd, &OPD[..], 256, 1, 64), (Program::Grpo, student, 512, 8, 1024)]
    {
        let knobs = read(program, pairs).unwrap();
        assert_eq!(knobs.notes, [""; 0]);
        let recipe = knobs.recipe(13_918, true).unwrap();
        let sizes = (recipe.rollout_batch_size, recipe.n_samples_per_prompt, recipe.global_batch_size);
        assert_eq!(sizes, (Some(batch), Some(samples), Some(mini)));
        let dataset = HuggingFaceDataset::new("org/data");
        TrainConfig { model: knobs.model, dataset, recipe }.check_values().unwrap();
    }
    let knobs = read(Program::Eval, student).unwrap();
    let options = knobs.chat_options();
    assert_eq!((options.temperature, options.top_p, options.top_k), (Some(0.7), Some(0.8), Some(20)));
    assert_eq!((options.max_tokens, knobs.validation.n), (Some(16_384), 16));
}

#[test]
fn a_bad_value_is_refused_by_name_value_and_remedy_and_all_at_once() {
    let text = refusals(Program::Opd, &[("TRAIN_BATCH_SIZE", "many"), ("OPD_LOSS_TYPE", "l2")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "MODEL_PATH is not set: export it as a model's folder or hub id",
            "TRAIN_BATCH_SIZE = many: write a whole number from 1 to 16777216",
            "TEACHER_MODEL_PATH is not set: export it as the teacher's folder or hub id",
            "OPD_LOSS_TYPE = l2: write reverse_kl, forward_kl or jsd",
        ]
    );
    for (name, value, words) in [
        ("PPO_MINI_BATCH_SIZE", "100", "divides TRAIN_BATCH_SIZE = 256"),
        ("PPO_MICRO_BATCH_SIZE_PER_GPU", "0", "from 1"),
        ("LEARNING_RATE", "NaN", "(0, 1]"),
        ("LEARNING_RATE", "-1", "(0, 1]"),
        ("TOTAL_EPOCHS", "1.5", "whole number"),
        ("MAX_PROMPT_LENGTH", "99999999999999999999", "16777216"),
        ("MAX_RESPONSE_LENGTH", "-3", "from 1"),
        ("ROLLOUT_N", "", ""),
        ("TP_SIZE", "8", "one device"),
        ("GPU_MEMORY_UTIL", "70", "(0, 1]"),
        ("OPD_CHUNK_SIZE", "x", "from 1"),
        ("OPD_MAX_LENGTH", "4096", "are 10240: raise it"),
        ("OPD_REWARD_BETA", "0", "or none"),
        ("ENABLE_THINKING", "perhaps", "true or false"),
        ("ENABLE_TOOLS", "true", "one turn"),
        ("MAX_ASSISTANT_TURNS", "none", "from 1"),
        ("MAX_TOOL_RESPONSE_LENGTH", "0", "from 1"),
        ("AGENT_NUM_WORKERS", "-1", "from 1"),
        ("INSTRUCTION_VARIANT", "chat", "boxed, dapo or none"),
        ("REWARD_FUNCTION", "llm", "math_reward, math_dapo"),
        ("VAL_TEMPERATURE", "-0.1", "[0, 10]"),
        ("VAL_TOP_P", "0", "(0, 1]"),
        ("VAL_TOP_K", "0", "-1 for all"),
        ("VAL_N", "2000", "at most 1024"),
        ("OPD_LOSTYPE", "jsd", "there are OPD_LOSS_TYPE, OPD_CHUNK_SIZE"),
    ] {
        let asked = [&OPD[..], &[(name, value)]].concat();
        if words.is_empty() {
            read(Program::Opd, &asked).expect("a blank value is one that is not set");
            continue;
        }
        let text = refusals(Program::Opd, &asked);
        assert!(text.starts_with(&format!("{name} = {value}: ")) && text.contains(words), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let text = refusals(Program::Eval, &[("MODEL_PATH", "o/m"), ("VAL_TEMPERATURE", "0")]);
    assert!(text.starts_with("VAL_N = 16:"), "{text}");
    let knobs = read(Program::Opd, &OPD).unwrap();
    let text = knobs.recipe(10, false).unwrap_err().to_string();
    assert!(text.starts_with("TRAIN_BATCH_SIZE = 256: there are 10 training rows"), "{text}");
}

#[test]
fn what_does_not_apply_says_so() {
    for variable in VARIABLES {
        for program in [Program::Grpo, Program::Opd, Program::Eval] {
            let value = match variable.name {
                "MODEL_PATH" | "TEACHER_MODEL_PATH" => continue,
                "ENABLE_TOOLS" | "ENABLE_THINKING" => "false",
                "INSTRUCTION_VARIANT" => "dapo",
                "REWARD_FUNCTION" => "math",
                "TOOL_FORMAT" => "json",
                "OPD_LOSS_TYPE" => "jsd",
                "TRAIN_BATCH_SIZE" | "OPD_MAX_LENGTH" => "65536",
                "ROLLOUT_N" | "PPO_MINI_BATCH_SIZE" => "2",
                _ => "1",
            };
            let pairs = [&OPD[..if program == Program::Opd { 2 } else { 1 }], &[(variable.name, value)]].concat();
            let knobs = read(program, &pairs).unwrap_or_else(|error| panic!("{program}: {error}"));
            let noted =
                knobs.notes.iter().any(|note| note.starts_with(&format!("{} = {value} is not applied", variable.name)));
            assert_eq!(
                noted,
                !variable.programs.contains(&program),
                "{} in {program}: {:?}",
                variable.name,
                knobs.notes
            );
        }
    }
}

#[tokio::test]
async fn the_rewards_grade_and_leave_out_what_hurts() {
    for (grader, answer) in [
        (training_gym::eval::Grader::Math, r"\boxed{1,024}"),
        (training_gym::eval::Grader::MathReward, r"\boxed{1024}"),
        (training_gym::eval::Grader::MathDapo, "Answer: 1024"),
        (training_gym::eval::Grader::Tutorial, "Answer: 1024"),
    ] {
        let reward = rewards::of(grader);
        let mut sample =
            Sample::for_test("q", &format!("<think>\nAnswer: 3, \\boxed{{3}}\n</think>\n{answer}"), "1024");
        assert_eq!(reward.call(&mut sample).await.unwrap(), 1.0, "{grader}");
        assert_eq!(sample.score, Some(1.0));
        let mut hostile = Sample::for_test("q", &"{".repeat(5 << 20), "1024");
        match reward.call(&mut hostile).await {
            Ok(score) => assert_eq!((score, grader), (0.0, training_gym::eval::Grader::MathDapo)),
            Err(error) => assert!(error.to_string().contains("bytes"), "{error}"),
        }
    }
}
