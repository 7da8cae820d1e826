//! Whether the hub answers, and as whom it knows us.

use reqwest::Method;
use serde::Deserialize;

use super::http::Trouble;
use super::{Error, Hub};

/// As whom a hub knows its token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Who {
    /// No token is set: only what is public can be had.
    Nobody,
    /// The account of the token.
    Account(String),
    /// It does not know the token.
    Unknown,
}

#[derive(Deserialize)]
struct Account {
    name: String,
}

impl Hub {
    /// Asks once, without patience.
    ///
    /// # Errors
    /// [`Error::Network`] and [`Error::Status`] when it cannot be reached or is in trouble.
    pub async fn who(&self) -> Result<Who, Error> {
        let url = self.client.url(&["api", "whoami-v2"]);
        let answer = self.client.send(Method::GET, &url, 0).await;
        match answer {
            // A mirror may not know this question; that it answers is enough.
            Err(Trouble::Refused(refusal)) if matches!(refusal.status.as_u16(), 401 | 403) => {
                Ok(if self.client.has_token() { Who::Unknown } else { Who::Nobody })
            }
            Err(Trouble::Refused(_)) => Ok(Who::Nobody),
            Err(Trouble::Passing { error, .. } | Trouble::Fatal(error)) => Err(error),
            Ok(answer) => {
                let account = answer.response.json::<Account>().await;
                Ok(account.map_or(Who::Nobody, |account| Who::Account(account.name)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HubOptions;

    #[tokio::test]
    async fn a_hub_that_is_not_there_is_an_error_and_one_that_refuses_knows_nobody() {
        let cache = tempfile::tempdir().unwrap();
        let at = |endpoint: String| HubOptions { endpoint, ..HubOptions::new(cache.path()) };
        let gone = Hub::new(at("http://127.0.0.1:9".to_owned())).unwrap();
        assert!(matches!(gone.who().await, Err(Error::Network { .. })));
        let app = axum::Router::new()
            .route("/api/whoami-v2", axum::routing::get(async || axum::http::StatusCode::UNAUTHORIZED));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        assert_eq!(Hub::new(at(endpoint.clone())).unwrap().who().await.unwrap(), Who::Nobody);
        let token = crate::Token::new("hf_wrong");
        let known = Hub::new(HubOptions { token, ..at(endpoint) }).unwrap();
        assert_eq!(known.who().await.unwrap(), Who::Unknown);
    }
}
