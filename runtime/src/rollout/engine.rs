//! Continuous batching: who runs, who waits, who is done.

use std::collections::{HashMap, HashSet, VecDeque};

use tch::Tensor;
use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::{EngineSpec, SamplingSpec};

use super::noise;
use super::request::{
    EngineStats, Event, PromptBounds, Refusal, ReplaceError, Request, RequestId, TokenScore, TokenWatcher,
    check_sampling,
};
use super::sampling::{Draw, draw};
use crate::model::{Footprint, KvCache, Model, Placing};

/// An idle engine keeps a cache of up to this many positions for the next requests.
const IDLE_POSITIONS: usize = 1 << 16;

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit that cannot be.
    #[error("engine.{field} = {value}: must be {bound}")]
    Limit {
        /// The setting.
        field: &'static str,
        /// What it is.
        value: usize,
        /// What it may be.
        bound: String,
    },
    /// No room for the cache of a single sequence.
    #[error(
        "the key-value cache may take {bytes} bytes, and one sequence of {context_length} tokens takes {of_one}; raise \
         gpu_memory_utilization, or lower rollout_max_response_len"
    )]
    CacheBound {
        /// What it may take.
        bytes: u64,
        /// Tokens of a sequence.
        context_length: usize,
        /// What one takes, while a layer of it grows too.
        of_one: u64,
    },
}

/// A request on its way. While it runs, its slot of the cache holds all of `ids` but the last.
struct Sequence {
    id: RequestId,
    /// Order of submission.
    serial: u64,
    ids: Vec<i64>,
    prompt_len: usize,
    max_len: usize,
    sampling: SamplingSpec,
    seed: u64,
    stop_ids: HashSet<i64>,
    top_logprobs: usize,
    watcher: Option<Box<dyn TokenWatcher>>,
}

impl Sequence {
    fn draw(&self) -> Draw<'_> {
        let position = (self.ids.len() - self.prompt_len) as u64;
        Draw { sampling: &self.sampling, uniform: noise::uniform(self.seed, position), top_logprobs: self.top_logprobs }
    }

    /// Takes the next token; says whether the response is complete.
    fn push(&mut self, token: i64) -> Option<FinishReason> {
        self.ids.push(token);
        let watched = self.watcher.as_mut().is_some_and(|watcher| watcher.push(token));
        if watched || self.stop_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else {
            (self.ids.len() >= self.max_len).then_some(FinishReason::Length)
        }
    }
}

/// Draws responses to many requests at once on the calling thread.
///
/// Which requests share a batch is a function of the order of submission and of the responses, not
/// of time. A request's noise depends on its seed and position alone; its sums may differ in their
/// last bits with its neighbours. The same submissions give the same tokens, bit for bit.
pub struct Engine {
    pub(super) model: Model,
    pub(super) limits: EngineSpec,
    pub(super) context_length: usize,
    pub(super) stats: EngineStats,
    cache: KvCache,
    /// The most bytes of it since they were last asked for.
    cache_peak: usize,
    waiting: VecDeque<Sequence>,
    /// By slot of the cache.
    running: Vec<Sequence>,
    pending: Vec<Event>,
    serial: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engine").field("limits", &self.limits).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An idle engine. It computes without gradients whatever the calling thread's mode is.
    ///
    /// # Errors
    /// [`Error::Limit`] where a limit is 0, or the context longer than the model's.
    pub fn new(model: Model, limits: &EngineSpec) -> Result<Self, Error> {
        for (field, value) in
            [("max_running_requests", limits.max_running_requests), ("max_prefill_tokens", limits.max_prefill_tokens)]
        {
            if value == 0 {
                return Err(Error::Limit { field, value, bound: "≥ 1".to_owned() });
            }
        }
        let longest = model.config().max_position_embeddings;
        let context_length = limits.context_length.unwrap_or(longest);
        if !(2..=longest).contains(&context_length) {
            let bound = format!("from 2 to the model's max_position_embeddings = {longest}");
            return Err(Error::Limit { field: "context_length", value: context_length, bound });
        }
        let options = model.options();
        let cache = KvCache::new(model.config(), context_length, options.device, options.dtype);
        Ok(Self {
            model,
            limits: limits.clone(),
            context_length,
            stats: EngineStats { max_running: limits.max_running_requests, ..EngineStats::default() },
            cache,
            cache_peak: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pending: Vec::new(),
            serial: 0,
        })
    }

    /// Goes on with `model`, the same weights in other memory, and gives up its cache.
    ///
    /// # Panics
    /// When a request is on its way.
    pub fn reseat(&mut self, model: Model) {
        assert!(self.running.is_empty() && self.waiting.is_empty(), "requests on their way need the cache");
        let (options, most) = (model.options(), self.limits.max_running_requests);
        self.cache = KvCache::new(model.config(), self.context_length, options.device, options.dtype).of_at_most(most);
        self.model = model;
    }

    /// Lets the key-value cache take `bytes` at the most: so many sequences run together as fit with all
    /// their tokens. (While it grows, a layer of it is held twice; that is counted.) Returns how many run
    /// together now.
    ///
    /// # Errors
    /// [`Error::CacheBound`] where not even one fits.
    pub fn bound_cache(&mut self, bytes: u64) -> Result<usize, Error> {
        let config = self.model.config();
        let footprint = Footprint::of(config, self.model.options().dtype);
        let of_tokens = footprint.cache_per_token.saturating_mul(self.context_length as u64);
        let (kept, layers) = (of_tokens.saturating_add(footprint.state_per_sequence), config.num_hidden_layers as u64);
        let of_one = kept.saturating_add(kept.div_ceil(layers.max(1))).max(1);
        let most = usize::try_from(bytes / of_one).unwrap_or(usize::MAX).min(self.limits.max_running_requests);
        if most == 0 {
            return Err(Error::CacheBound { bytes, context_length: self.context_length, of_one });
        }
        (self.limits.max_running_requests, self.stats.max_running) = (most, most);
        let options = self.model.options();
        self.cache = KvCache::new(config, self.context_length, options.device, options.dtype).of_at_most(most);
        Ok(most)
    }

    /// Bytes of the key-value cache as allocated now.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// The most bytes the key-value cache had since the last call.
    pub fn take_cache_peak(&mut self) -> usize {
        std::mem::take(&mut self.cache_peak)
    }

    /// Gives the key-value cache back, where no request runs; the next request makes a new one. Returns
    /// the bytes.
    pub fn free_cache(&mut self) -> usize {
        if !self.running.is_empty() {
            return 0;
        }
        let before = self.cache.bytes();
        self.cache.clear();
        before - self.cache.bytes()
    }

    /// Tokens a sequence may have, prompt and response together.
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// The model that runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether a request is one this engine could take.
    ///
    /// # Errors
    /// Every [`Refusal`] but [`Refusal::QueueFull`].
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        check_sampling(&request.sampling)?;
        self.bounds().check(&request.prompt_ids, request.max_new_tokens)
    }

    /// How many more requests it takes now.
    pub fn room(&self) -> usize {
        let free = self.limits.max_running_requests - self.running.len();
        free.saturating_add(self.limits.max_queued_requests).saturating_sub(self.waiting.len())
    }

    /// Takes a request; its first token comes from a later [`Engine::step`].
    ///
    /// # Errors
    /// A [`Refusal`], and the request is forgotten.
    pub fn submit(&mut self, id: RequestId, request: Request) -> Result<(), Refusal> {
        self.check(&request)?;
        if self.room() == 0 {
            return Err(Refusal::QueueFull { limit: self.limits.max_queued_requests });
        }
        let (prompt_len, context_length) = (request.prompt_ids.len(), self.context_length);
        if request.max_new_tokens == 0 {
            self.pending.push(Event::Finished { id, reason: FinishReason::Length });
            return Ok(());
        }
        self.serial += 1;
        self.waiting.push_back(Sequence {
            id,
            serial: self.serial,
            ids: request.prompt_ids,
            prompt_len,
            max_len: prompt_len + request.max_new_tokens.min(context_length - prompt_len),
            sampling: request.sampling,
            seed: request.seed,
            stop_ids: request.stop_ids.into_iter().collect(),
            top_logprobs: request.top_logprobs,
            watcher: request.watcher,
        });
        Ok(())
    }

    pub(super) fn bounds(&self) -> PromptBounds {
        PromptBounds { context_length: self.context_length, vocab_size: self.model.config().vocab_size }
    }

    /// Gives a request up: it ends with [`FinishReason::Abort`] in the next step. An unknown id
    /// (one that has ended, say) is nothing.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(slot) = self.running.iter().position(|sequence| sequence.id == id) {
            self.free(slot);
        } else if let Some(place) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(place);
        } else {
            return;
        }
        self.pending.push(Event::Finished { id, reason: FinishReason::Abort });
    }

    /// Admits waiting requests in order of submission into free slots (one packed prefill, which
    /// draws their first token), then draws one token of every running sequence.
    pub fn step(&mut self) -> Vec<Event> {
        let _guard = tch::no_grad_guard();
        let mut events = std::mem::take(&mut self.pending);
        self.admit(&mut events);
        self.decode(&mut events);
        self.cache_peak = self.cache_peak.max(self.cache.bytes());
        let (slots, positions) = self.cache.capacity();
        if self.running.is_empty() && slots * positions > IDLE_POSITIONS {
            self.cache.clear();
        }
        events
    }

    /// Whether there is nothing to do or to tell.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.pending.is_empty()
    }

    /// The shared weights were updated in place. Sequences that run go on under the new weights:
    /// what the old ones left in the cache is computed anew.
    pub fn weights_changed(&mut self, version: WeightVersion) {
        let mut interrupted = std::mem::take(&mut self.running);
        interrupted.sort_by_key(|sequence| sequence.serial);
        for sequence in interrupted.into_iter().rev() {
            self.waiting.push_front(sequence);
        }
        self.stats.weight_version = version;
    }

    /// Puts other weights of the same architecture in place, as [`Engine::weights_changed`].
    ///
    /// # Errors
    /// [`ReplaceError::OtherArchitecture`]; the old weights go on.
    pub fn replace_weights(&mut self, model: Model, version: WeightVersion) -> Result<(), ReplaceError> {
        if let Some(difference) = self.model.config().difference(model.config()) {
            return Err(ReplaceError::OtherArchitecture { difference });
        }
        self.model = model;
        self.cache.clear();
        self.weights_changed(version);
        Ok(())
    }

    /// The weights that run: 0 until told otherwise.
    pub fn weight_version(&self) -> WeightVersion {
        self.stats.weight_version
    }

    /// What the engine is doing and has done.
    pub fn stats(&self) -> EngineStats {
        let (slots, positions) = self.cache.capacity();
        EngineStats {
            running: self.running.len(),
            queued: self.waiting.len(),
            kv_used: self.running.iter().map(|sequence| sequence.ids.len() - 1).sum(),
            kv_allocated: slots * positions,
            ..self.stats.clone()
        }
    }

    /// Prefills what fits, equal prompts once.
    fn admit(&mut self, events: &mut Vec<Event>) {
        let free = self.limits.max_running_requests - self.running.len();
        let mut places: HashMap<&[i64], usize> = HashMap::new();
        let (mut prompts, mut owners): (Vec<&[i64]>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut tokens = 0;
        for sequence in self.waiting.iter().take(free) {
            let ids = sequence.ids.as_slice();
            if let Some(&place) = places.get(ids) {
                owners.push(place);
                continue;
            }
            if tokens > 0 && tokens + ids.len() > self.limits.max_prefill_tokens {
                break;
            }
            tokens += ids.len();
            places.insert(ids, prompts.len());
            owners.push(prompts.len());
            prompts.push(ids);
        }
        if owners.is_empty() {
            return;
        }
        let lengths: Vec<usize> = prompts.iter().map(|ids| ids.len()).collect();
        let packed: Vec<i64> = prompts.concat();
        let ends: Vec<i64> = lengths.iter().scan(-1, |end, &length| Some(advance(end, length))).collect();
        let rows: Vec<i64> = owners.iter().map(|&owner| ends[owner]).collect();

        let first = self.running.len();
        let mut slots = vec![Vec::new(); prompts.len()];
        for (offset, &owner) in owners.iter().enumerate() {
            slots[owner].push(first + offset);
        }
        self.running.extend(self.waiting.drain(..owners.len()));
        // A token more than the prompt: the first decode step follows at once.
        let longest = self.running.iter().map(|sequence| sequence.ids.len() + 1).max().unwrap_or(0);
        self.cache.reserve(self.running.len(), longest.min(self.context_length), first);
        let placing = Placing { cache: &mut self.cache, lengths: &lengths, slots: &slots };
        let hidden = self.model.prefill(&packed, &lengths, &rows, Some(placing));
        self.stats.prompt_tokens += tokens as u64;
        self.sample(&hidden, first, events);
    }

    fn decode(&mut self, events: &mut Vec<Event>) {
        if self.running.is_empty() {
            return;
        }
        let last: Vec<i64> = self.running.iter().map(|sequence| sequence.ids[sequence.ids.len() - 1]).collect();
        let positions: Vec<i64> = self.running.iter().map(|sequence| sequence.ids.len() as i64 - 1).collect();
        let longest = self.running.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0);
        self.cache.reserve(self.running.len(), longest, self.running.len());
        let hidden = self.model.decode(&Tensor::from_slice(&last), &positions, &mut self.cache);
        self.sample(&hidden, 0, events);
    }

    /// Draws a token for every sequence from slot `first` on, and frees the slots of the complete.
    fn sample(&mut self, hidden: &Tensor, first: usize, events: &mut Vec<Event>) {
        let draws: Vec<Draw<'_>> = self.running[first..].iter().map(Sequence::draw).collect();
        let scores: Vec<TokenScore> = draw(&self.model.logits(hidden), &draws);
        self.stats.generated_tokens += scores.len() as u64;
        let mut complete = Vec::new();
        for (offset, score) in scores.into_iter().enumerate() {
            let sequence = &mut self.running[first + offset];
            let (id, reason) = (sequence.id, sequence.push(score.token));
            events.push(Event::Token { id, score });
            if let Some(reason) = reason {
                events.push(Event::Finished { id, reason });
                complete.push(first + offset);
            }
        }
        // From the last on, so that what moves into a hole is still running.
        for slot in complete.into_iter().rev() {
            self.free(slot);
        }
    }

    fn free(&mut self, slot: usize) {
        let _guard = tch::no_grad_guard();
        let last = self.running.len() - 1;
        if slot != last {
            self.cache.copy_slot(last, slot, self.running[last].ids.len() - 1);
        }
        self.running.swap_remove(slot);
    }
}

fn advance(end: &mut i64, length: usize) -> i64 {
    *end += length as i64;
    *end
}
