//! `#[training_gym::main]`

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ItemFn, Result};

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "`#[training_gym::main]` takes no arguments"));
    }
    let ItemFn { attrs, vis, mut sig, block } = syn::parse2(item)?;
    if sig.asyncness.is_none() {
        return Err(Error::new_spanned(sig.fn_token, "`#[training_gym::main]` needs an `async fn`"));
    }
    if !sig.inputs.is_empty() || !sig.generics.params.is_empty() {
        let given = if sig.inputs.is_empty() { &sig.generics as &dyn quote::ToTokens } else { &sig.inputs };
        return Err(Error::new_spanned(given, "`main` takes no parameters; read arguments from `std::env::args`"));
    }
    let name = std::mem::replace(&mut sig.ident, quote::format_ident!("person_main"));
    Ok(quote! {
        #(#attrs)*
        #vis fn #name() -> ::std::process::ExitCode {
            #sig #block
            ::training_gym::__private::run(person_main)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_mains_are_told_why() {
        for (arguments, item, words) in [
            (
                quote!(flavor),
                quote!(
                    async fn main() {}
                ),
                "no arguments",
            ),
            (
                quote!(),
                quote!(
                    fn main() {}
                ),
                "async fn",
            ),
            (
                quote!(),
                quote!(
                    async fn main(x: u8) {}
                ),
                "no parameters",
            ),
            (
                quote!(),
                quote!(
                    async fn main<T>() {}
                ),
                "no parameters",
            ),
        ] {
            let error = expand(arguments, item).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        expand(
            quote!(),
            quote!(
                async fn main() -> anyhow::Result<()> {
                    Ok(())
                }
            ),
        )
        .unwrap();
    }
}
