//! What a store on the network can do wrong, sorted by what helps.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A refusal or failure of a store on the network: which way, in a sentence, and what to do. No text
/// of it holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which way.
    pub kind: FaultKind,
    /// What happened, with the server's own words where it said some.
    pub sentence: String,
    /// What to do.
    pub remedy: String,
    /// How long the server asked to wait before another attempt.
    pub(super) wait: Option<Duration>,
}

/// The kinds of [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// No credentials were found anywhere the chain looked, or what it found cannot be read.
    NoCredentials,
    /// The server does not know the access key.
    UnknownKey,
    /// The secret does not belong to the access key, or something changed the request on its way.
    BadSignature,
    /// The credentials, or their session token, are past their time or not valid.
    ExpiredCredentials,
    /// The credentials are good and may not do this.
    Denied,
    /// The bucket does not exist.
    NoBucket,
    /// The bucket lives in another region than the one asked.
    WrongRegion,
    /// This machine's clock and the server's differ by more than requests may.
    ClockSkew {
        /// What this machine's clock said.
        ours: SystemTime,
        /// What the server's clock said.
        theirs: SystemTime,
    },
    /// The server asked to be asked less.
    Throttled,
    /// No answer, or not all of it, in time.
    Timeout,
    /// The content is not the one that was written.
    Checksum,
    /// The endpoint's name is not known, or nothing answers there.
    Unreachable,
    /// No trusted encrypted connection came about.
    Tls,
    /// The connection broke.
    Interrupted,
    /// The server failed.
    Server,
    /// Another write of the same object was under way.
    Conflict,
    /// A condition of the request did not hold.
    Precondition,
    /// There is no such object.
    NoObject,
    /// The server does not offer what was asked.
    Unsupported,
    /// Anything else; the sentence has the server's words.
    Other,
}

impl FaultKind {
    /// Whether the same request may succeed a little later, with nobody changing anything.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Throttled
                | Self::Timeout
                | Self::Checksum
                | Self::Unreachable
                | Self::Interrupted
                | Self::Server
                | Self::Conflict
        )
    }

    /// Whether the request may have been carried out all the same.
    #[cfg(feature = "s3")]
    pub(super) fn may_have_landed(self) -> bool {
        !matches!(self, Self::Unreachable | Self::Throttled)
    }

    /// Whether the server gave an answer of its own.
    #[cfg(feature = "s3")]
    pub(super) fn is_an_answer(self) -> bool {
        !matches!(self, Self::NoCredentials | Self::Timeout | Self::Unreachable | Self::Tls | Self::Interrupted)
    }
}

#[cfg(feature = "s3")]
impl Fault {
    pub(super) fn new(kind: FaultKind, sentence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, sentence: sentence.into(), remedy: remedy.into(), wait: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {}", self.sentence, self.remedy)
    }
}
