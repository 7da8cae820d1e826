//! The bearer token.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use super::service::Service;

/// A token's hash. Hashes of equal length are compared, so the time it takes tells neither the
/// token nor its length.
#[derive(Clone)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Hashes a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether `token` is the one hashed, in constant time.
    pub fn matches(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        self.0.ct_eq(&given).into()
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TokenDigest(…)")
    }
}

/// Lets a request through that has the token, or needs none.
pub(super) async fn require(State(service): State<Service>, request: Request, next: Next) -> Response {
    let Some(expected) = service.token() else { return next.run(request).await };
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let token = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    if token.is_some_and(|token| expected.matches(token)) {
        next.run(request).await
    } else {
        ApiError::unauthorised().into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_matches() {
        let digest = TokenDigest::of("secret");
        assert!(digest.matches(b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret"] {
            assert!(!digest.matches(wrong));
        }
        assert!(!format!("{digest:?}").contains("secret"));
    }
}
