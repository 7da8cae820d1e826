//! `#[training_gym::rollout_environment]`

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::{Error, ItemImpl, Result, Type};

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "`#[training_gym::rollout_environment]` takes no arguments"));
    }
    let stands = "it stands on `impl RolloutEnvironment for YourType`";
    let item: ItemImpl = syn::parse2(item).map_err(|error| Error::new(error.span(), stands))?;
    match &item.trait_ {
        Some((None, path, _)) if path.segments.last().is_some_and(|last| last.ident == "RolloutEnvironment") => {}
        Some((_, path, _)) => return Err(Error::new_spanned(path, stands)),
        None => return Err(Error::new_spanned(&item.self_ty, stands)),
    }
    if !item.generics.params.is_empty() {
        let why = "an environment has no generics: it is called by its name";
        return Err(Error::new_spanned(&item.generics, why));
    }
    let named = match &*item.self_ty {
        Type::Path(path) => path.path.segments.last().filter(|last| last.arguments.is_none()),
        _ => None,
    };
    let Some(last) = named else { return Err(Error::new_spanned(&item.self_ty, "name a type without generics")) };
    let name = snake_case(&last.ident.unraw().to_string());
    let constant = Ident::new(&name.to_uppercase(), Span::call_site());
    let docs = format!("The environment [`{}`], for `Recipe::rollout_environment`.", last.ident);
    let this = &item.self_ty;
    let cfgs: Vec<_> = item.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect();
    Ok(quote! {
        #item

        #(#cfgs)*
        #[doc = #docs]
        pub(crate) const #constant: ::training_gym::reward::EnvironmentFn =
            ::training_gym::reward::EnvironmentFn::__new::<#this>(#name, ::std::module_path!());

        #(#cfgs)*
        ::training_gym::__private::inventory::submit! { #constant }
    })
}

/// `GuessNumber` to `guess_number`, `SQLTool` to `sql_tool`.
fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| letters[at]);
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_uppercase() && letters.get(at + 1).is_some_and(|next| next.is_lowercase()))
            });
        if begins {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_named_after_the_type() {
        for (name, expected) in [("GuessNumber", "guess_number"), ("SQLTool", "sql_tool"), ("A", "a"), ("Go2", "go2")] {
            assert_eq!(snake_case(name), expected);
        }
        let out = expand(
            quote!(),
            quote!(
                impl reward::RolloutEnvironment for games::GuessNumber {}
            ),
        );
        let out = out.unwrap().to_string();
        assert!(out.contains("const GUESS_NUMBER") && out.contains("\"guess_number\""), "{out}");
    }

    #[test]
    fn anything_else_is_told_where_it_stands() {
        for (item, words) in [
            (
                quote!(
                    fn f() {}
                ),
                "stands on",
            ),
            (
                quote!(
                    impl X {}
                ),
                "stands on",
            ),
            (
                quote!(
                    impl Clone for X {}
                ),
                "stands on",
            ),
            (
                quote!(
                    impl<T> RolloutEnvironment for X<T> {}
                ),
                "no generics",
            ),
            (
                quote!(
                    impl RolloutEnvironment for X<u8> {}
                ),
                "without generics",
            ),
        ] {
            let error = expand(quote!(), item).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let item = quote!(
            impl RolloutEnvironment for X {}
        );
        assert!(expand(quote!(x), item).unwrap_err().to_string().contains("no arguments"));
    }
}
