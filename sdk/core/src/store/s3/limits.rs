//! How much a store takes of memory and time, and how an operation is tried again.

use std::time::{Duration, Instant};

use crate::store::fault::{Fault, FaultKind};

const MIB: u64 = 1 << 20;
/// S3 takes parts of this size or more, apart from the last one.
pub(super) const SMALLEST_PART: u64 = 5 * MIB;
/// S3 takes this many parts of an object.
const MOST_PARTS: u64 = 10_000;
/// An endpoint from which nothing ever came is given this many attempts: it is mistyped more often than down.
const UNPROVEN_ATTEMPTS: u32 = 3;

/// Bounds of one store's work. The defaults suit anything from a laptop's link to a data centre's.
///
/// One upload or download holds at most `parallel + 2` parts in memory.
#[derive(Clone, Debug)]
pub struct S3Limits {
    /// Bytes of a part of a file that goes up or down in several (8 MiB; at least 5 MiB). Uploads of more
    /// than 10,000 such parts take larger ones, fewer at a time.
    pub part: u64,
    /// Parts under way at once (4).
    pub parallel: usize,
    /// Attempts at one request (10).
    pub attempts: u32,
    /// The pause before the second attempt (200 ms); each further one is twice as long, and each is cut by
    /// chance to between its half and its whole, so that many clients do not come back at once.
    pub pause: Duration,
    /// The longest pause (15 s), also where the server asks for a longer one.
    pub longest_pause: Duration,
    /// No attempt begins later than this after the first (2 minutes).
    pub patience: Duration,
    /// Time for a connection, with its encryption (5 s).
    pub connect: Duration,
    /// Time for one attempt at a request (30 s), and more for what it carries at `slowest` bytes a second.
    pub attempt: Duration,
    /// The slowest link that is waited for, in bytes a second (48 KiB): a part has its attempt's time and
    /// `part / slowest` seconds.
    pub slowest: u64,
    /// A download of which no byte comes for so long has stalled (20 s).
    pub stall: Duration,
}

impl Default for S3Limits {
    fn default() -> Self {
        Self {
            part: 8 * MIB,
            parallel: 4,
            attempts: 10,
            pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(15),
            patience: Duration::from_secs(120),
            connect: Duration::from_secs(5),
            attempt: Duration::from_secs(30),
            slowest: 48 << 10,
            stall: Duration::from_secs(20),
        }
    }
}

impl S3Limits {
    /// Bounds as S3 and arithmetic want them.
    pub(super) fn sound(mut self) -> Self {
        self.part = self.part.clamp(SMALLEST_PART, 512 * MIB);
        self.parallel = self.parallel.clamp(1, 64);
        self.attempts = self.attempts.max(1);
        self.slowest = self.slowest.max(1);
        self
    }

    /// The size of an upload's parts, and how many are under way at once.
    pub(super) fn parts(&self, size: u64) -> (u64, usize) {
        let part = self.part.max(size.div_ceil(MOST_PARTS).next_multiple_of(MIB));
        let memory = self.part * self.parallel as u64;
        (part, usize::try_from(memory / part).unwrap_or(1).clamp(1, self.parallel))
    }

    /// Time for an attempt that carries `bytes`.
    pub(super) fn time(&self, bytes: u64) -> Duration {
        self.attempt + Duration::from_secs_f64(bytes as f64 / self.slowest as f64)
    }

    /// The longest any single attempt may take.
    pub(super) fn longest_attempt(&self) -> Duration {
        self.time(self.parts(50 << 40).0)
    }
}

/// The attempts at one request.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    limits: &'a S3Limits,
    began: Instant,
    made: u32,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(limits: &'a S3Limits) -> Self {
        Self { limits, began: Instant::now(), made: 0 }
    }

    /// How long to wait before the next attempt, now that one failed with `fault`; or the fault that the
    /// caller gets. `proven`: the endpoint has answered something before.
    pub(super) fn failed(&mut self, fault: Fault, proven: bool) -> Result<Duration, Fault> {
        self.made += 1;
        let most = if proven { self.limits.attempts } else { self.limits.attempts.min(UNPROVEN_ATTEMPTS) };
        let hopeless = fault.kind == FaultKind::Unreachable && self.made >= most;
        if !fault.kind.is_transient()
            || hopeless
            || self.made >= self.limits.attempts
            || self.began.elapsed() >= self.limits.patience
        {
            return Err(self.summed_up(fault));
        }
        let doubled = self.limits.pause.saturating_mul(1 << (self.made - 1).min(16));
        let pause = doubled.max(fault.wait.unwrap_or_default()).min(self.limits.longest_pause);
        Ok(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0))
    }

    fn summed_up(&self, mut fault: Fault) -> Fault {
        if self.made > 1 {
            let seconds = self.began.elapsed().as_secs_f64();
            fault.sentence = format!("{} ({} attempts in {seconds:.1} s)", fault.sentence, self.made);
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> Fault {
        Fault::new(kind, "it broke", "wait")
    }

    #[test]
    fn parts_are_bounded_in_number_and_memory() {
        let limits = S3Limits::default().sound();
        for size in [0, 1, 8 * MIB, 100 * MIB, 80_000 * MIB, 5 << 40] {
            let (part, parallel) = limits.parts(size);
            assert!(size.div_ceil(part) <= MOST_PARTS && part >= SMALLEST_PART, "{size}");
            assert!(parallel >= 1 && (parallel == 1 || part * parallel as u64 <= 32 * MIB), "{size}");
        }
        assert_eq!(limits.parts(100 * MIB), (8 * MIB, 4));
        let tiny = S3Limits { part: 1, parallel: 0, ..S3Limits::default() }.sound();
        assert_eq!((tiny.part, tiny.parallel), (SMALLEST_PART, 1));
    }

    #[test]
    fn pauses_double_with_chance_up_to_a_bound() {
        let limits = S3Limits { attempts: 20, ..S3Limits::default() };
        let mut attempts = Attempts::new(&limits);
        for expected in [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0] {
            let pause = attempts.failed(fault(FaultKind::Throttled), true).unwrap().as_secs_f64();
            assert!(pause >= expected / 2.0 && pause <= expected, "{pause} of {expected}");
        }
        let asked = Fault { wait: Some(Duration::from_secs(3600)), ..fault(FaultKind::Throttled) };
        assert!(Attempts::new(&limits).failed(asked, true).unwrap() <= limits.longest_pause);
    }

    #[test]
    fn attempts_end() {
        let limits = S3Limits { attempts: 4, ..S3Limits::default() };
        let count = |kind, proven| {
            let mut attempts = Attempts::new(&limits);
            let mut made = 1;
            loop {
                match attempts.failed(fault(kind), proven) {
                    Ok(_) => made += 1,
                    Err(end) => break (made, end.sentence),
                }
            }
        };
        assert_eq!(count(FaultKind::Denied, true), (1, "it broke".to_owned()));
        assert_eq!(count(FaultKind::Server, false).0, 4);
        assert_eq!(count(FaultKind::Unreachable, true).0, 4);
        let (made, sentence) = count(FaultKind::Unreachable, false);
        assert!(made == 3 && sentence.contains("(3 attempts in "), "{made} {sentence}");
        let impatient = S3Limits { patience: Duration::ZERO, ..S3Limits::default() };
        Attempts::new(&impatient).failed(fault(FaultKind::Server), true).unwrap_err();
    }
}
