//! The constants that `#[training_gym::reward]` makes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{RewardError, Sample};

/// What a registered function gives: its result, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, RewardError>> + Send + 'a>>;

macro_rules! function {
    ($(#[$doc:meta])* $type:ident, $subject:ty, $output:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $type {
            name: &'static str,
            module: &'static str,
            call: for<'a> fn(&'a mut $subject) -> Answer<'a, $output>,
        }

        impl $type {
            /// For the macro's output: registers nothing by itself.
            #[doc(hidden)]
            pub const fn __new(
                name: &'static str,
                module: &'static str,
                call: for<'a> fn(&'a mut $subject) -> Answer<'a, $output>,
            ) -> Self {
                Self { name, module, call }
            }

            /// The function's name, by which a spec and the reward worker know it.
            pub const fn name(&self) -> &'static str {
                self.name
            }

            /// The module that defines it.
            pub const fn module(&self) -> &'static str {
                self.module
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!(stringify!($type), "({}::{})"), self.module, self.name)
            }
        }

        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                (self.module, self.name) == (other.module, other.name)
            }
        }

        impl Eq for $type {}

        inventory::collect!($type);
    };
}

function!(
    /// A reward function of one sample.
    RewardFn,
    Sample,
    f64
);
function!(
    /// A group-level function: all samples of a step in, one reward for each out, in order.
    PostProcessFn,
    [Sample],
    Vec<f64>
);

impl RewardFn {
    /// Calls the function here, in this process: for a unit test.
    ///
    /// # Errors
    /// What the function returns.
    pub async fn call(&self, sample: &mut Sample) -> Result<f64, RewardError> {
        (self.call)(sample).await
    }
}

impl PostProcessFn {
    /// Calls the function here, in this process: for a unit test.
    ///
    /// # Errors
    /// What the function returns, or another number of rewards than of samples.
    pub async fn call(&self, samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
        let count = samples.len();
        let rewards = (self.call)(samples).await?;
        if rewards.len() != count {
            let found = rewards.len();
            return Err(RewardError::new(format!(
                "`{}` returned {found} rewards for {count} samples: return one for each",
                self.name
            )));
        }
        Ok(rewards)
    }
}
