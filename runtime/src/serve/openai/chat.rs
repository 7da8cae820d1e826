//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};

use super::stream::{Render, Shared, chunks, respond};
use super::{Delivery, Envelope, MOST_LOGPROBS, logprobs, usage};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::generation::{self, Complete, Generation, Piece, Wanted};
use crate::serve::reasoning::ReasoningSplitter;
use crate::serve::sampling::Sampling;
use crate::serve::service::Service;
use crate::serve::waiting::Held;
use crate::text::RenderOptions;

/// What a chat request comes to.
struct Chat {
    prompt_ids: Arc<Vec<i64>>,
    splitter: ReasoningSplitter,
    sampling: Arc<Sampling>,
    /// `None`: no log-probabilities.
    top_logprobs: Option<usize>,
}

pub(super) async fn answer(service: &Service, fields: Fields, held: &Held) -> Result<Response, ApiError> {
    service.check_name(fields.text("model")?)?;
    let delivery = Delivery::read(&fields)?;
    let chat = read(service, &fields)?;
    // Many times the ids it held.
    drop(fields);
    let wanted = Wanted::all(&chat.prompt_ids, &chat.sampling, chat.top_logprobs.unwrap_or(0));
    let generations = generation::start(service, wanted.collect(), held).await?;
    if delivery.stream {
        Ok(streamed(service, chat, generations, delivery))
    } else {
        whole(service, chat, generations).await
    }
}

fn read(service: &Service, fields: &Fields) -> Result<Chat, ApiError> {
    let sampling = Sampling::openai(fields, service.defaults(), None)?;
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", MOST_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.refuse("top_logprobs", "needs logprobs = true"));
    }
    let messages = fields.list("messages")?.ok_or_else(|| fields.refuse("messages", "must be a list of messages"))?;
    if messages.is_empty() {
        return Err(fields.refuse("messages", "must have at least one message"));
    }
    let messages: Vec<Value> =
        messages.iter().enumerate().map(|(at, message)| for_template(at, message)).collect::<Result<_, _>>()?;
    let kwargs = fields.object("chat_template_kwargs")?.map(Fields::into_map).unwrap_or_default();
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    let options = RenderOptions {
        tools: tools.map(Vec::as_slice),
        add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
        kwargs: Some(&kwargs),
    };
    let text = service.text();
    let prompt = text.template()?.render_values(&messages, &options)?;
    let splitter = match fields.flag("separate_reasoning")?.unwrap_or(true) {
        true => ReasoningSplitter::after_prompt(&prompt),
        false => ReasoningSplitter::off(),
    };
    let (prompt_ids, sampling) = (Arc::new(text.tokenizer().encode(&prompt, false)?), Arc::new(sampling));
    Ok(Chat { prompt_ids, splitter, sampling, top_logprobs: wanted.then(|| top.unwrap_or(0) as usize) })
}

/// Whose messages there are; OpenAI refuses any other, and so do we: most templates drop what they do
/// not know without a word. (`function` is OpenAI's former name of `tool`, no template's.)
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A message as templates expect it: parts of text joined, the arguments of tool calls (a JSON
/// text in OpenAI's API) as an object, `developer` under the name that templates know.
fn for_template(at: usize, message: &Value) -> Result<Value, ApiError> {
    let refuse = |what: &str, rule: &str| {
        let name = format!("messages[{at}]{what}");
        ApiError::field(name.clone(), format!("{name}: {rule}"))
    };
    let mut message = message.as_object().cloned().ok_or_else(|| refuse("", "must be an object"))?;
    let role = message.get("role").and_then(Value::as_str);
    match ROLES.iter().find(|known| Some(**known) == role) {
        None => return Err(refuse(".role", &format!("must be one of `{}`", ROLES.join("`, `")))),
        Some(&"developer") => drop(message.insert("role".into(), "system".into())),
        Some(_) => {}
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match part.get("type").and_then(Value::as_str) {
                Some("text") => part.get("text").and_then(Value::as_str),
                _ => None,
            });
            let texts: Option<Vec<&str>> = texts.collect();
            let texts = texts.ok_or_else(|| refuse(".content", "only parts of type `text` are supported"))?;
            let joined = texts.join("\n");
            message.insert("content".into(), joined.into());
        }
        Some(_) => return Err(refuse(".content", "must be a text or a list of parts")),
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if let Some(text) = arguments.as_str() {
            *arguments = serde_json::from_str::<Map<String, Value>>(text)
                .map(Value::Object)
                .map_err(|_| refuse(".tool_calls", "function.arguments must be the JSON text of an object"))?;
        }
    }
    Ok(Value::Object(message))
}

async fn whole(service: &Service, chat: Chat, generations: Vec<Generation>) -> Result<Response, ApiError> {
    let envelope = Envelope::new(service, "chatcmpl", "chat.completion");
    let complete = generation::complete(generations).await?;
    let drawn = complete.iter().map(|complete| complete.scores.len()).sum();
    let choices: Vec<Value> = complete
        .iter()
        .enumerate()
        .map(|(index, complete)| choice(service, &chat, index, complete))
        .collect::<Result<_, _>>()?;
    Ok(Json(envelope.wrap(choices.into(), Some(usage(chat.prompt_ids.len(), drawn)))).into_response())
}

fn choice(service: &Service, chat: &Chat, index: usize, complete: &Complete) -> Result<Value, ApiError> {
    let mut splitter = chat.splitter.clone();
    let (first, rest) = (splitter.push(&complete.text), splitter.finish());
    let reasoning = first.reasoning + &rest.reasoning;
    let mut message = json!({"role": "assistant", "content": first.content + &rest.content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    let logprobs = chat.top_logprobs.map(|_| logprobs::chat(service.text().tokenizer(), &complete.scores));
    Ok(json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": complete.end.openai()?}))
}

fn streamed(service: &Service, chat: Chat, generations: Vec<Generation>, delivery: Delivery) -> Response {
    let shared = Shared::new(Envelope::new(service, "chatcmpl", "chat.completion.chunk"));
    let prompt = chat.prompt_ids.len();
    let choices: Vec<_> = generations
        .into_iter()
        .enumerate()
        .map(|(index, generation)| {
            let render = renderer(service, &chat, index, shared.clone());
            chunks(generation, render)
        })
        .collect();
    let last = move || delivery.include_usage.then(|| shared.usage(prompt));
    respond(stream::select_all(choices).boxed(), last)
}

fn renderer(service: &Service, chat: &Chat, index: usize, shared: Shared) -> Render {
    let tokenizer = service.text().tokenizer().clone();
    let mut splitter = chat.splitter.clone();
    let wanted = chat.top_logprobs.is_some();
    let mut first = true;
    Box::new(move |piece: &Piece| {
        shared.count(piece);
        let mut split = splitter.push(&piece.text);
        if piece.end.is_some() {
            let rest = splitter.finish();
            split.reasoning.push_str(&rest.reasoning);
            split.content.push_str(&rest.content);
        }
        let mut delta = Map::new();
        if std::mem::take(&mut first) {
            delta.insert("role".into(), "assistant".into());
            delta.insert("content".into(), "".into());
        }
        if !split.reasoning.is_empty() {
            delta.insert("reasoning_content".into(), split.reasoning.into());
        }
        if !split.content.is_empty() {
            delta.insert("content".into(), split.content.into());
        }
        let scores = piece.score.as_slice();
        let logprobs = (wanted && !scores.is_empty()).then(|| logprobs::chat(&tokenizer, scores));
        let reason = piece.end.as_ref().map(|end| end.openai()).transpose()?;
        if delta.is_empty() && logprobs.is_none() && reason.is_none() {
            return Ok(Vec::new());
        }
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        Ok(vec![shared.envelope.wrap(json!([choice]), None)])
    })
}
