//! Attribute macros of training-gym.

use proc_macro::TokenStream;

/// Runs an async `main`.
#[proc_macro_attribute]
pub fn main(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    item
}

/// Registers a reward function.
#[proc_macro_attribute]
pub fn reward(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    item
}
