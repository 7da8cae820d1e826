//! A text that is never printed.

use std::fmt;

/// A bearer token. It has no `Display`, its `Debug` is blind, and it is not `Serialize`:
/// the only ways out are [`Secret::expose`] and a file only its owner reads.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A fresh bearer token: 256 random bits in hexadecimal, behind `gym-`.
    pub fn generate() -> Self {
        let bytes: [u8; 32] = rand::random();
        Self(bytes.iter().fold(String::from("gym-"), |mut text, byte| {
            text.push_str(&format!("{byte:02x}"));
            text
        }))
    }

    /// The text itself: for a header, or for the file.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_itself() {
        let secret = Secret::generate();
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(secret.expose().len(), 4 + 64);
        assert_ne!(secret, Secret::generate());
    }
}
