//! Whatever can hold a chat.

use async_trait::async_trait;
use training_gym_core::sample::Message;

use crate::deploy::{ChatOptions, ChatReply, CustomDeployment, Deployment, Endpoint};

/// Something that replies to a chat: a deployment, or a stand-in for one.
#[async_trait]
pub trait ChatTarget: Send + Sync {
    /// What reports call it.
    fn name(&self) -> String;

    /// One reply to `messages`.
    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError>;
}

/// Why there was no reply.
#[derive(Debug, thiserror::Error)]
#[error("no reply")]
pub struct ChatError {
    /// Whether the same request may succeed a little later.
    pub transient: bool,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

#[async_trait]
impl ChatTarget for Deployment {
    fn name(&self) -> String {
        self.app_name().to_string()
    }

    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError> {
        let reply = self.chat(messages, options).await;
        reply.map_err(|error| ChatError { transient: error.is_transient(), source: error.into() })
    }
}

#[async_trait]
impl ChatTarget for Endpoint {
    fn name(&self) -> String {
        ChatTarget::name(&**self)
    }

    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError> {
        (**self).reply(messages, options).await
    }
}

#[async_trait]
impl ChatTarget for CustomDeployment {
    fn name(&self) -> String {
        ChatTarget::name(&**self)
    }

    async fn reply(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, ChatError> {
        (**self).reply(messages, options).await
    }
}
