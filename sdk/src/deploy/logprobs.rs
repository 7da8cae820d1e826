//! Tokens in, tokens and log-probabilities out: SGLang's `/generate`.

use std::ops::Range;
use std::time::Duration;

use training_gym_core::spec::TeacherDialect;
use training_gym_core::wire::teacher::{self, PROBE_TOKENS, Sequence};
use training_gym_core::wire::{GenerateReply, GenerateRequest, OneOrMany};

use super::{Deployment, Error, requests};

const PATH: &str = "/generate";
const TIMEOUT: Duration = Duration::from_secs(3600);
const PROBE_TIMEOUT: Duration = Duration::from_secs(120);
/// The two ids that every vocabulary has, in an order (Thue and Morse's) that no shift maps to itself.
const PROBE: [i64; PROBE_TOKENS] = [0, 1, 1, 0, 1, 0, 0, 1];

impl Deployment {
    /// Generates from ids or text, without a chat template: one reply a prompt, in order.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's words; [`Error::Died`] when its process has ended;
    /// [`Error::Unreachable`]; [`Error::Unreadable`].
    pub async fn generate(&self, request: &GenerateRequest) -> Result<Vec<GenerateReply>, Error> {
        if request.stream {
            let rule = "this call reads whole replies; leave it false";
            return Err(Error::Request { field: "stream", given: "true".to_owned(), rule });
        }
        let replies: OneOrMany<GenerateReply> = requests::post(self, PATH, request, TIMEOUT).await?;
        Ok(match replies {
            OneOrMany::One(reply) => vec![reply],
            OneOrMany::Many(replies) => replies,
        })
    }

    /// log π of the ids at positions `span`, each given all ids before it, at temperature 1, in nats.
    /// The first id has nothing before it, so a span begins at 1 or later.
    ///
    /// # Errors
    /// [`Error::Span`]; [`Error::Logprobs`] when the server scores other ids, not all of them, or
    /// with what is no log-probability; otherwise as [`Deployment::generate`].
    pub async fn logprobs(&self, input_ids: &[i64], span: Range<usize>) -> Result<Vec<f32>, Error> {
        let refuse = |rule| Error::Span { start: span.start, end: span.end, len: input_ids.len(), rule };
        if span.start == 0 {
            return Err(refuse("begin at 1 or later: nothing comes before the first id"));
        }
        if span.end > input_ids.len() || span.start > span.end {
            return Err(refuse("must lie within the ids"));
        }
        if span.is_empty() {
            return Ok(Vec::new());
        }
        let ids = &input_ids[..span.end];
        let sequence = Sequence::new(ids, span.len()).map_err(|_| refuse("must leave an id before it"))?;
        self.score(sequence, TIMEOUT).await?.map_err(|source| self.unusable(source))
    }

    async fn score(&self, sequence: Sequence<'_>, timeout: Duration) -> Result<teacher::Scored, Error> {
        let sequences = [sequence];
        let body = teacher::request(TeacherDialect::Sglang, &sequences, None);
        let answer = requests::post_raw(self, PATH, &body, timeout).await?;
        let mut scored = teacher::response_logprobs(TeacherDialect::Sglang, &sequences, &answer)
            .map_err(|source| self.unusable(source))?;
        scored.pop().ok_or_else(|| requests::unreadable(self, PATH, "it scored nothing"))
    }

    fn unusable(&self, source: teacher::TeacherFault) -> Error {
        Error::Logprobs { app_name: self.app_name().to_string(), source }
    }

    /// The start-up probe: eight tokens in, seven finite log-probabilities out.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let scored = self.score(teacher::probe_sequence(&PROBE), PROBE_TIMEOUT).await?;
        let probe = |source| Error::Probe { app_name: self.app_name().to_string(), source };
        teacher::check_probe(scored).map_err(probe)
    }
}
