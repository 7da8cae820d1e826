//! Which values resources may have.

use super::Resources;

/// A resource that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resources.{field} = {given}: {rule}")]
pub struct InvalidResources {
    field: &'static str,
    given: String,
    rule: &'static str,
}

const QUANTITY: &str = "write a whole number above 0 with its unit: Ki, Mi, Gi, Ti, k, M, G or T, such as `16Gi`";
const NAME: &str = "write the name as the cluster has it: lower-case letters, digits, `-` and `.`, at most 253";
const LABEL: &str = "a label is `name` or `prefix/name`, its value at most 63 letters, digits, `-`, `_` and `.`, as `kubectl get nodes --show-labels` shows";

impl Resources {
    /// Refuses what no backend could do.
    ///
    /// # Errors
    /// The first field that cannot be, with what can.
    pub(crate) fn check(&self) -> Result<(), InvalidResources> {
        let device = self.device();
        let number = device.strip_prefix("cuda:").map(str::parse::<u16>);
        if device != "cpu" && !matches!(number, Some(Ok(_))) {
            return refuse("device", &device, "write `cpu` or `cuda:N`");
        }
        if self.threads == Some(0) {
            return refuse("threads", "0", "must be ≥ 1");
        }
        if device != "cpu" && self.gpus == Some(0) {
            return refuse("gpus", "0", "`device` asks for a GPU; leave one of the two out");
        }
        if let Some(cpu) = self.cpu
            && !(cpu.is_finite() && (0.001..=100_000.0).contains(&cpu))
        {
            return refuse("cpu", &cpu.to_string(), "write a number of cores above 0, such as 0.5 or 8");
        }
        let amounts = [("memory", &self.memory), ("disk", &self.disk), ("shared_memory", &self.shared_memory)];
        for (field, amount) in amounts {
            if let Some(amount) = amount
                && bytes(amount).is_none()
            {
                return refuse(field, amount, QUANTITY);
            }
        }
        for (field, name) in [("priority_class", &self.priority_class), ("queue", &self.queue)] {
            if let Some(name) = name
                && !is_object_name(name)
            {
                return refuse(field, name, NAME);
            }
        }
        if let Some((key, value)) = self.gpu_label()
            && !(is_label_key(key) && is_label_value(value) && !value.is_empty())
        {
            return refuse("gpu_type", self.gpu_type.as_deref().unwrap_or_default(), LABEL);
        }
        if let Some((key, value)) =
            self.node_selector.iter().find(|(key, value)| !(is_label_key(key) && is_label_value(value)))
        {
            return refuse("node_selector", &format!("{key}={value}"), LABEL);
        }
        for toleration in &self.tolerations {
            toleration.check().or_else(|rule| refuse("tolerations", &format!("{toleration:?}"), rule))?;
        }
        for (field, duration) in [("deadline", self.deadline), ("grace", self.grace)] {
            if let Some(duration) = duration
                && duration.as_secs() == 0
            {
                return refuse(field, &format!("{duration:?}"), "must be at least a second");
            }
        }
        Ok(())
    }

    /// The node label, and its value, that says which GPU.
    pub(crate) fn gpu_label(&self) -> Option<(&str, &str)> {
        let kind = self.gpu_type.as_deref()?;
        Some(kind.split_once('=').unwrap_or(("nvidia.com/gpu.product", kind)))
    }
}

fn refuse<T>(field: &'static str, given: &str, rule: &'static str) -> Result<T, InvalidResources> {
    Err(InvalidResources { field, given: given.to_owned(), rule })
}

/// A Kubernetes quantity of bytes, the whole ones among them.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// RFC 1123: a subdomain.
pub(crate) fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

fn is_label_value(value: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    value.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

pub(super) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_object_name) && !name.is_empty() && is_label_value(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::super::{Toleration, TolerationEffect};
    use super::*;

    #[test]
    fn each_field_that_cannot_be_is_named_with_what_can() {
        let default = Resources::default;
        let text = |text: &str| Some(text.to_owned());
        let selector = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let bad = [
            ("cpu", Resources { cpu: Some(0.0), ..default() }),
            ("cpu", Resources { cpu: Some(f64::NAN), ..default() }),
            ("cpu", Resources { cpu: Some(-1.0), ..default() }),
            ("memory", Resources { memory: text("16GB"), ..default() }),
            ("memory", Resources { memory: text("16"), ..default() }),
            ("memory", Resources { memory: text("99999999999Ti"), ..default() }),
            ("disk", Resources { disk: text("0Gi"), ..default() }),
            ("shared_memory", Resources { shared_memory: text("-1Gi"), ..default() }),
            ("priority_class", Resources { priority_class: text("High Priority"), ..default() }),
            ("queue", Resources { queue: text(""), ..default() }),
            ("gpu_type", Resources { gpu_type: text("NVIDIA L4"), ..default() }),
            ("gpu_type", Resources { gpu_type: text("label="), ..default() }),
            ("gpus", Resources { gpus: Some(0), device: text("cuda:0"), ..default() }),
            ("node_selector", Resources { node_selector: selector("", "x"), ..default() }),
            ("node_selector", Resources { node_selector: selector("a/b/c", "x"), ..default() }),
            ("node_selector", Resources { node_selector: selector("zone", "-x"), ..default() }),
            ("deadline", Resources { deadline: Some(Duration::ZERO), ..default() }),
            ("grace", Resources { grace: Some(Duration::ZERO), ..default() }),
            ("tolerations", Resources { tolerations: vec![Toleration::default()], ..default() }),
        ];
        for (field, resources) in bad {
            let error = resources.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("resources.{field} = ")), "{field}: {error}");
        }
        let good = Resources {
            cpu: Some(0.25),
            memory: text("512Mi"),
            disk: text("100G"),
            gpus: Some(8),
            gpu_type: text("cloud.google.com/gke-accelerator=nvidia-l4"),
            node_selector: selector("topology.kubernetes.io/zone", "eu-1a"),
            tolerations: vec![Toleration::of("spot").with_effect(TolerationEffect::NoSchedule)],
            priority_class: text("high"),
            queue: text("team-a"),
            ..default()
        };
        good.check().unwrap();
        assert_eq!(good.gpu_label(), Some(("cloud.google.com/gke-accelerator", "nvidia-l4")));
        assert_eq!(bytes("2Ki"), Some(2048));
    }
}
