//! Why a sample could not be graded.

use std::error::Error;
use std::fmt;

use training_gym_core::chain;

/// Why a sample could not be graded: a message. Any error converts to it by `?`, and so do texts.
///
/// It is not itself a [`std::error::Error`], which is what lets every error convert.
pub struct RewardError(String);

impl RewardError {
    /// An error of your own words.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for RewardError {
    /// The error's message, and those of its causes.
    fn from(error: E) -> Self {
        Self(chain(error.into().as_ref()))
    }
}

impl fmt::Display for RewardError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for RewardError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_converts_with_its_causes() {
        let convert = |text: &str| -> Result<f64, RewardError> {
            let number: f64 = text.parse()?;
            if number < 0.0 {
                return Err(anyhow::anyhow!("root").context("below zero").into());
            }
            if number == 0.0 {
                Err("zero")?;
            }
            if number > 1.0 {
                return Err(RewardError::new(format!("{number} is above 1")));
            }
            Ok(number)
        };
        assert_eq!(convert("0.5").unwrap(), 0.5);
        assert_eq!(convert("x").unwrap_err().to_string(), "invalid float literal");
        assert_eq!(convert("-1").unwrap_err().to_string(), "below zero: root");
        assert_eq!(convert("0").unwrap_err().to_string(), "zero");
        assert_eq!(convert("2").unwrap_err().to_string(), "2 is above 1");
    }
}
