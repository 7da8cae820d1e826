//! `#[training_gym::reward]`

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Type};

/// The two forms of a reward function.
struct Form {
    constant: TokenStream,
    output: TokenStream,
    subject: TokenStream,
    /// For messages.
    takes: &'static str,
    returns: &'static str,
    field: &'static str,
}

fn form(arguments: TokenStream) -> Result<Form> {
    if arguments.is_empty() {
        return Ok(Form {
            constant: quote!(RewardFn),
            output: quote!(f64),
            subject: quote!(::training_gym::reward::Sample),
            takes: "`sample: &mut Sample`",
            returns: "`Result<f64, RewardError>`",
            field: "custom_rm_function",
        });
    }
    match syn::parse2::<Ident>(arguments.clone()) {
        Ok(word) if word == "post_process" => Ok(Form {
            constant: quote!(PostProcessFn),
            output: quote!(::std::vec::Vec<f64>),
            subject: quote!([::training_gym::reward::Sample]),
            takes: "`samples: &mut [Sample]`",
            returns: "`Result<Vec<f64>, RewardError>`",
            field: "custom_reward_post_process_function",
        }),
        _ => Err(Error::new_spanned(arguments, "expected nothing or `post_process`")),
    }
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let form = form(arguments)?;
    let function: ItemFn = syn::parse2(item)?;
    let parameter = check(&function, &form)?;

    let name = &function.sig.ident;
    let text = name.unraw().to_string();
    let constant = Ident::new(&text.to_uppercase(), Span::call_site());
    let docs = format!("The reward function [`{text}`], for `Recipe::{}`.", form.field);
    let vis = &function.vis;
    let cfgs: Vec<_> = function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect();
    let Form { constant: kind, output, subject, .. } = &form;
    // A wrong type is reported where it is written: at the parameter, and at the return type.
    let returned = match &function.sig.output {
        ReturnType::Type(_, returned) => returned.span(),
        ReturnType::Default => name.span(),
    };
    let argument = quote_spanned!(parameter.span()=> subject);
    let call = quote_spanned!(returned=> #name(#argument));
    let answer = if function.sig.asyncness.is_some() { quote_spanned!(returned=> #call.await) } else { call };
    let body = quote_spanned!(returned=>
        let answer: ::std::result::Result<#output, ::training_gym::reward::RewardError> = #answer;
    );
    Ok(quote! {
        #function

        #(#cfgs)*
        #[doc = #docs]
        #vis const #constant: ::training_gym::reward::#kind = {
            fn call<'a>(
                subject: &'a mut #subject,
            ) -> ::training_gym::__private::Answer<'a, #output> {
                ::std::boxed::Box::pin(async move {
                    #body
                    answer
                })
            }
            ::training_gym::reward::#kind::__new(#text, ::std::module_path!(), call)
        };

        #(#cfgs)*
        ::training_gym::__private::inventory::submit! { #constant }
    })
}

/// The function's one parameter type.
fn check<'a>(function: &'a ItemFn, form: &Form) -> Result<&'a Type> {
    let sig = &function.sig;
    if !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(&sig.generics, "a reward function has no generics: it is called by its name"));
    }
    let takes = format!("a reward function takes exactly {}", form.takes);
    let parameter = match sig.inputs.first() {
        Some(FnArg::Typed(parameter)) if sig.inputs.len() == 1 => &*parameter.ty,
        Some(_) => return Err(Error::new_spanned(&sig.inputs, takes)),
        None => return Err(Error::new(sig.paren_token.span.join(), takes)),
    };
    let Type::Reference(reference) = parameter else { return Err(Error::new_spanned(parameter, takes)) };
    let slice = matches!(&*reference.elem, Type::Slice(_));
    if reference.mutability.is_none() || slice != (form.field != "custom_rm_function") {
        return Err(Error::new_spanned(parameter, takes));
    }
    if matches!(sig.output, ReturnType::Default) {
        return Err(Error::new_spanned(&sig.ident, format!("a reward function returns {}", form.returns)));
    }
    Ok(parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_signatures_are_told_the_right_one() {
        let one = quote!();
        let group = quote!(post_process);
        for (arguments, item, words) in [
            (
                &one,
                quote!(
                    async fn f() -> Result<f64, RewardError> {}
                ),
                "exactly `sample: &mut Sample`",
            ),
            (
                &one,
                quote!(
                    async fn f(s: &Sample) -> Result<f64, RewardError> {}
                ),
                "exactly `sample: &mut Sample`",
            ),
            (
                &one,
                quote!(
                    async fn f(s: Sample) -> Result<f64, RewardError> {}
                ),
                "exactly `sample: &mut Sample`",
            ),
            (
                &one,
                quote!(
                    async fn f(s: &mut [Sample]) -> Result<f64, RewardError> {}
                ),
                "exactly `sample: &mut Sample`",
            ),
            (
                &one,
                quote!(
                    async fn f(s: &mut Sample, x: u8) -> Result<f64, RewardError> {}
                ),
                "exactly",
            ),
            (
                &one,
                quote!(
                    async fn f(&mut self) -> Result<f64, RewardError> {}
                ),
                "exactly",
            ),
            (
                &one,
                quote!(
                    async fn f<T>(s: &mut Sample) -> Result<f64, RewardError> {}
                ),
                "no generics",
            ),
            (
                &one,
                quote!(
                    async fn f(s: &mut Sample) {}
                ),
                "returns `Result<f64, RewardError>`",
            ),
            (
                &group,
                quote!(
                    async fn f(s: &mut Sample) -> Result<Vec<f64>, RewardError> {}
                ),
                "`samples: &mut [Sample]`",
            ),
            (
                &group,
                quote!(
                    fn f(s: &mut [Sample]) {}
                ),
                "returns `Result<Vec<f64>, RewardError>`",
            ),
            (
                &quote!(group),
                quote!(
                    fn f(s: &mut [Sample]) {}
                ),
                "expected nothing or `post_process`",
            ),
        ] {
            let error = expand(arguments.clone(), item).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_constant_is_named_after_the_function() {
        let out = expand(
            quote!(),
            quote!(
                pub(crate) fn r#match(s: &mut Sample) -> Result<f64, RewardError> {
                    Ok(1.0)
                }
            ),
        );
        let out = out.unwrap().to_string();
        assert!(out.contains("pub (crate) const MATCH"), "{out}");
        assert!(out.contains("\"match\""), "{out}");
    }
}
