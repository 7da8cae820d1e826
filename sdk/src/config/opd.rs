//! On-policy distillation: who teaches, and how much it weighs.

use std::time::Duration;

use training_gym_core::spec::{
    Divergence, DivergenceSwitch, SecretRef, SelectionRule, TeacherDialect, TeacherSpec, TokenSelection, TopK,
};

use super::Model;

/// A server that says how likely it finds the student's tokens, and where its credential is.
#[derive(Clone, Debug, PartialEq)]
pub struct Teacher {
    /// The whole URL requests go to, such as `http://127.0.0.1:8000/generate`.
    pub url: String,
    /// Its bearer token, by reference; `None` asks without.
    pub token: Option<SecretRef>,
    /// What the server speaks.
    pub dialect: TeacherDialect,
}

impl Teacher {
    /// A teacher that speaks SGLang's `/generate` and asks for no credential.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, dialect: TeacherDialect::Sglang }
    }
}

/// A teacher in the trainer itself: it takes turns with the student on one device, and whole
/// distributions are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoResident {
    /// The teacher: a model with the student's tokenizer.
    pub model: Model,
    /// What is minimised.
    pub divergence: Divergence,
    /// What is minimised later, where that is something else.
    pub switch: Option<DivergenceSwitch>,
    /// Which response tokens carry the loss; `None` is all.
    pub selection: Option<TokenSelection>,
}

/// On-policy distillation, in one of three forms. From a teacher behind a URL, each token's advantage
/// loses `opd_kl_coef · (log π_student − log π_teacher)`; from a co-resident one, the loss gains
/// `opd_kl_coef` times a divergence between whole distributions; from one behind a URL with
/// [`top_k`](Self::top_k), the same between distributions over its k likeliest tokens and a tail.
///
/// Defaults: `opd_kl_coef` 1; behind a URL `log_ratio_clamp` 10, 4 requests of 16 sequences in flight,
/// 300 seconds for each; co-resident the reverse KL.
///
/// ```
/// use training_gym::config::{Divergence, Opd, models};
/// let _ = Opd { opd_kl_coef: 0.5, ..Opd::to_url("https://teacher.example/generate").token_env("TEACHER_TOKEN") };
/// let _ = Opd::co_resident(models::QWEN3_8B).divergence(Divergence::Jsd { beta: 0.5 });
/// let _ = Opd::to_url("https://teacher.example/generate").top_k(64);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Opd {
    /// Who is asked, unless the teacher is co-resident.
    pub teacher: Teacher,
    /// The teacher in the trainer itself.
    pub co_resident: Option<CoResident>,
    /// λ: the weight of the teacher's term, ≥ 0.
    pub opd_kl_coef: f64,
    /// |log π_student − log π_teacher| of one token is clamped to this, and counted; `None` is
    /// unclamped.
    pub log_ratio_clamp: Option<f64>,
    /// Requests in flight at once.
    pub max_concurrency: usize,
    /// Sequences in one request; they are scored together, so this is part of the result.
    pub batch_size: usize,
    /// What one request may take before it is tried again.
    pub timeout: Duration,
    /// Learn from so many of the likeliest tokens of each position, from a teacher behind a URL, in place
    /// of the advantage's term; `None` is the sampled token alone.
    pub top_k: Option<TopK>,
}

impl Opd {
    /// Distillation from the server at `url`, the whole URL of its `/generate`.
    #[must_use]
    pub fn to_url(url: impl Into<String>) -> Self {
        Teacher::new(url).into()
    }

    /// Distillation from a model in the trainer itself: whole distributions, by the reverse KL unless
    /// [`divergence`](Self::divergence) says otherwise.
    #[must_use]
    pub fn co_resident(model: Model) -> Self {
        let co_resident = CoResident { model, divergence: Divergence::default(), switch: None, selection: None };
        Self { co_resident: Some(co_resident), ..Self::from(Teacher::new("")) }
    }

    /// Learns from the teacher's `k` likeliest tokens at each position, and from all others together: by
    /// the forward KL unless [`divergence`](Self::divergence) says otherwise. vLLM has to be started with
    /// `--max-logprobs` of at least `k`.
    #[must_use]
    pub fn top_k(self, k: usize) -> Self {
        Self { top_k: Some(TopK { k, divergence: Divergence::ForwardKl, tail: true }), ..self }
    }

    /// Says what the distributions of a co-resident teacher, or of one with [`top_k`](Self::top_k), are
    /// compared by. Any other sends none: nothing changes.
    #[must_use]
    pub fn divergence(mut self, divergence: Divergence) -> Self {
        self.co_resident = self.co_resident.map(|teacher| CoResident { divergence, ..teacher });
        self.top_k = self.top_k.map(|top| TopK { divergence, ..top });
        self
    }

    /// Minimises another divergence once the share `at` of the run's steps is done, as PACED's schedule
    /// does: `Opd::co_resident(m).divergence(Divergence::ForwardKl).then(0.5, Divergence::ReverseKl)`.
    #[must_use]
    pub fn then(mut self, at: f64, to: Divergence) -> Self {
        let switch = Some(DivergenceSwitch { at, to });
        self.co_resident = self.co_resident.map(|teacher| CoResident { switch, ..teacher });
        self
    }

    /// Teaches only the share `ratio` of each response's tokens that `rule` ranks highest (TIP). A teacher
    /// behind a URL sends no distributions to rank by: nothing changes.
    #[must_use]
    pub fn select(mut self, rule: SelectionRule, ratio: f64) -> Self {
        let selection = Some(TokenSelection { rule, ratio });
        self.co_resident = self.co_resident.map(|teacher| CoResident { selection, ..teacher });
        self
    }

    /// Names the environment variable of the job that holds the teacher's bearer token.
    #[must_use]
    pub fn token_env(mut self, variable: impl Into<String>) -> Self {
        self.teacher.token = Some(SecretRef::Env(variable.into()));
        self
    }

    /// Says what the teacher's server speaks; SGLang's `/generate` unless said otherwise.
    #[must_use]
    pub fn dialect(mut self, dialect: TeacherDialect) -> Self {
        self.teacher.dialect = dialect;
        self
    }

    pub(super) fn spec(&self) -> TeacherSpec {
        TeacherSpec {
            url: self.teacher.url.clone(),
            token: self.teacher.token.clone(),
            dialect: self.teacher.dialect,
            opd_kl_coef: self.opd_kl_coef,
            log_ratio_clamp: self.log_ratio_clamp,
            max_concurrency: self.max_concurrency,
            batch_size: self.batch_size,
            timeout_secs: self.timeout.as_secs_f64(),
            top_k: self.top_k,
        }
    }
}

impl From<Teacher> for Opd {
    fn from(teacher: Teacher) -> Self {
        Self {
            teacher,
            co_resident: None,
            opd_kl_coef: 1.0,
            log_ratio_clamp: Some(10.0),
            max_concurrency: 4,
            batch_size: 16,
            timeout: Duration::from_secs(300),
            top_k: None,
        }
    }
}
