//! Every reward function that is linked into this program.

use std::collections::BTreeMap;

use training_gym_core::worker::Functions;

use super::{EnvironmentFn, PostProcessFn, RewardFn};

/// Two functions that a spec could not tell apart.
#[derive(Debug, thiserror::Error)]
#[error("two {kind} are named `{name}`, in `{}` and in `{}`: rename one, since a run knows a function by its name alone", modules[0], modules[1])]
pub(crate) struct Duplicate {
    kind: &'static str,
    name: &'static str,
    modules: [&'static str; 2],
}

/// The functions by name.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    rewards: BTreeMap<&'static str, RewardFn>,
    post_processes: BTreeMap<&'static str, PostProcessFn>,
    environments: BTreeMap<&'static str, EnvironmentFn>,
}

impl Registry {
    /// Collects what `#[training_gym::reward]` and `#[training_gym::rollout_environment]` registered.
    pub(crate) fn collect() -> Result<Self, Duplicate> {
        let rewards =
            inventory::iter::<RewardFn>.into_iter().map(|function| (function.name(), function.module(), *function));
        let post_processes = inventory::iter::<PostProcessFn>
            .into_iter()
            .map(|function| (function.name(), function.module(), *function));
        let environments = inventory::iter::<EnvironmentFn>
            .into_iter()
            .map(|function| (function.name(), function.module(), *function));
        Ok(Self {
            environments: by_name("rollout environments", environments)?,
            rewards: by_name("reward functions", rewards)?,
            post_processes: by_name("post-process functions", post_processes)?,
        })
    }

    pub(crate) fn reward(&self, name: &str) -> Option<RewardFn> {
        self.rewards.get(name).copied()
    }

    pub(crate) fn post_process(&self, name: &str) -> Option<PostProcessFn> {
        self.post_processes.get(name).copied()
    }

    pub(crate) fn environment(&self, name: &str) -> Option<EnvironmentFn> {
        self.environments.get(name).copied()
    }

    pub(crate) fn functions(&self) -> Functions {
        let names = |name: &&str| (*name).to_owned();
        Functions {
            rewards: self.rewards.keys().map(names).collect(),
            post_processes: self.post_processes.keys().map(names).collect(),
            environments: self.environments.keys().map(names).collect(),
        }
    }
}

fn by_name<F>(
    kind: &'static str,
    functions: impl Iterator<Item = (&'static str, &'static str, F)>,
) -> Result<BTreeMap<&'static str, F>, Duplicate> {
    let mut found = BTreeMap::new();
    for (name, module, function) in functions {
        if let Some((other, _)) = found.insert(name, (module, function)) {
            // In link order otherwise, which nobody knows.
            let modules = if other <= module { [other, module] } else { [module, other] };
            return Err(Duplicate { kind, name, modules });
        }
    }
    Ok(found.into_iter().map(|(name, (_, function))| (name, function)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::{RewardError, Sample};

    #[crate::reward]
    async fn registry_test_reward(sample: &mut Sample) -> Result<f64, RewardError> {
        sample.score = Some(2.0);
        Ok(sample.label.parse()?)
    }

    #[crate::reward]
    fn registry_test_sync(_sample: &mut Sample) -> Result<f64, RewardError> {
        Err("never")?
    }

    #[crate::reward(post_process)]
    fn registry_test_group(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
        Ok(samples.iter().filter_map(|sample| sample.score).collect())
    }

    #[tokio::test]
    async fn functions_are_found_and_called_by_name() {
        let registry = Registry::collect().unwrap();
        let functions = registry.functions();
        assert!(functions.rewards.iter().any(|name| name == "registry_test_reward"));
        assert_eq!(registry.reward("registry_test_reward"), Some(REGISTRY_TEST_REWARD));
        assert_eq!(registry.reward("nobody"), None);
        assert_eq!(REGISTRY_TEST_REWARD.module(), module_path!());

        let mut sample = Sample::for_test("p", "r", "7");
        assert_eq!(registry.reward("registry_test_reward").unwrap().call(&mut sample).await.unwrap(), 7.0);
        assert_eq!(sample.score, Some(2.0));
        assert_eq!(REGISTRY_TEST_SYNC.call(&mut sample).await.unwrap_err().to_string(), "never");

        let group = registry.post_process("registry_test_group").unwrap();
        assert_eq!(group, REGISTRY_TEST_GROUP);
        assert_eq!(group.call(&mut [sample.clone(), sample.clone()]).await.unwrap(), [2.0, 2.0]);
        sample.score = None;
        let error = group.call(&mut [sample]).await.unwrap_err();
        assert!(error.to_string().contains("0 rewards for 1 samples"), "{error}");
    }

    #[test]
    fn two_of_one_name_are_refused_with_both_modules() {
        let error =
            by_name("reward functions", [("f", "b", ()), ("g", "a", ()), ("f", "a", ())].into_iter()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`f`") && text.contains("in `a` and in `b`"), "{text}");
    }
}
