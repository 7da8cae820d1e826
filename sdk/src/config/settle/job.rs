//! What a job is started with.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use training_gym_core::spec::Dtype;

use crate::config::ledger::{Field, Ledger, Shown, field};
use crate::config::{Facts, Recipe};

/// Variables, device, seed, and the chat template's variables.
pub(in crate::config) struct Job {
    pub(in crate::config) shuffle: bool,
    pub(in crate::config) chat_template_kwargs: Map<String, Value>,
    pub(in crate::config) environment: BTreeMap<String, String>,
    /// `None`: the machine's.
    pub(in crate::config) dtype: Option<Dtype>,
    pub(in crate::config) seed: u64,
}

pub(super) fn job(ledger: &mut Ledger<'_>, facts: &Facts) -> Job {
    let shuffle = ledger.value(field!(shuffle), false);
    let chat_template_kwargs = chat_template_kwargs(ledger, facts);
    let environment = environment(ledger);
    device(ledger);
    let dtype = ledger.optional(field!(dtype), "the machine's");
    let seed = ledger.value(field!(seed), 42);
    Job { shuffle, chat_template_kwargs, environment, dtype, seed }
}

fn chat_template_kwargs(ledger: &mut Ledger<'_>, facts: &Facts) -> Map<String, Value> {
    const NAME: &str = "apply_chat_template_kwargs";
    let shown = Field {
        name: NAME,
        of: |recipe: &Recipe| {
            let kwargs = recipe.apply_chat_template_kwargs.as_ref()?;
            Some(kwargs.map().map_or_else(|not| not.given.clone(), |map| Value::Object(map.clone()).to_string()))
        },
    };
    ledger.optional(shown, "none");
    match ledger.recipe().apply_chat_template_kwargs.as_ref().map(|kwargs| kwargs.map()) {
        None => Map::new(),
        Some(Err(not)) => {
            ledger.refuse(
                NAME,
                not.given.clone(),
                (&not.why, r#"give a JSON object, such as {"enable_thinking": true}"#),
            );
            Map::new()
        }
        Some(Ok(map)) => {
            if facts.chat_template == Some(false) && !map.is_empty() {
                ledger.refuse(
                    NAME,
                    Value::Object(map.clone()).to_string(),
                    (
                        "the dataset does not apply the chat template, so it would be ignored",
                        "set apply_chat_template(true) on the dataset, or leave it unset",
                    ),
                );
            }
            map.clone()
        }
    }
}

/// The device is entered and checked here; which one it is must be known before anything is settled.
fn device(ledger: &mut Ledger<'_>) {
    let device = ledger.optional(field!(device), "the machine's");
    if let Some(device) = &device {
        let cuda = device.strip_prefix("cuda:").is_some_and(|index| {
            !index.is_empty() && index.bytes().all(|c| c.is_ascii_digit()) && index.parse::<u32>().is_ok()
        });
        ledger.need(
            "device",
            device,
            device == "cpu" || cuda,
            ("must be `cpu` or `cuda:N`", "leave it unset for the machine's"),
        );
    }
}

/// Names this program sets itself, with what to do instead.
const RESERVED: [(&str, &str); 4] = [
    ("OMP_NUM_THREADS", "set the threads with .resources() of the launch"),
    ("OMP_WAIT_POLICY", "leave it out: threads that spin slow the other jobs of the machine"),
    ("MKL_NUM_THREADS", "set the threads with .resources() of the launch"),
    ("LD_PRELOAD", "leave it unset"),
];

/// Ends of names that hold secrets.
const SECRET: [&str; 6] = ["_TOKEN", "_SECRET", "_PASSWORD", "_API_KEY", "_ACCESS_KEY", "_PRIVATE_KEY"];

fn environment(ledger: &mut Ledger<'_>) -> BTreeMap<String, String> {
    let environment = ledger.recipe().environment.clone().unwrap_or_default().0;
    let names = Field {
        name: "environment",
        of: |recipe: &Recipe| {
            let names: Vec<String> = recipe.environment.as_ref()?.0.keys().cloned().collect();
            Some(if names.is_empty() { "none".to_owned() } else { names.join(" ") })
        },
    };
    ledger.optional(names, "none");
    for (name, value) in &environment {
        let field = format!("environment.{name}");
        if !is_variable_name(name) {
            let rule =
                ("a variable's name is letters, digits and `_`, and does not begin with a digit", "correct the name");
            ledger.refuse("environment", format!("{name:?}"), rule);
        } else if name.starts_with("TRAINING_GYM_") {
            ledger.refuse(&field, value.shown(), ("names that begin with TRAINING_GYM_ are reserved", "leave it out"));
        } else if let Some((_, remedy)) = RESERVED.iter().find(|(reserved, _)| reserved == name) {
            ledger.refuse(&field, value.shown(), ("this variable is set by the launch", remedy));
        } else if SECRET.iter().any(|end| name.to_ascii_uppercase().ends_with(end)) {
            // The value is not shown: it may be the secret.
            ledger.refuse(
                &field,
                None,
                (
                    "it looks like a secret, and the spec is stored as plain text",
                    "put the secret in a file that only you can read, and pass the file's path",
                ),
            );
        } else if value.contains('\0') {
            ledger.refuse(&field, None, ("a variable cannot hold a NUL character", "leave the character out"));
        }
    }
    environment
}

pub(super) fn is_variable_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}
