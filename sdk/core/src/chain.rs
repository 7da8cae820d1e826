//! Errors as one sentence.

use std::error::Error;

/// An error and its sources, joined by colons. Our errors never repeat their source.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
