//! Requests made up with the statistics of a real trace of conversations.
//!
//! Measured on the conversation trace that came with Mooncake's FAST'25 paper (12,031 requests in 59 minutes): each
//! prompt starts with the same block; 38.7 % go on with an earlier conversation; a prompt has 24.0 blocks of 512
//! tokens on average, 8.8 of them (36.6 %) seen before; the answer has 343 tokens; a request comes each 294 ms. New
//! blocks are spread about log-normally: median 10 and mean 20.5 for a fresh conversation, 2 and 6.8 for the next
//! turn of one.

use super::cache::TRACE_BLOCK_TOKENS;
use super::trace::Request;

const CONTINUES: f64 = 0.387;
/// Median and spread (sigma of the logarithm) of the new blocks of a fresh conversation.
const FRESH: (f64, f64) = (10.0, 1.2);
/// The same for the next turn.
const NEXT_TURN: (f64, f64) = (2.0, 1.56);
const ANSWER: (f64, f64) = (250.0, 0.8);
const GAP_MS: f64 = 294.0;
/// Longest prompt of the trace, in blocks.
const BLOCKS_MAX: usize = 247;
/// Conversations that may go on; the oldest are forgotten.
const OPEN_MAX: usize = 512;

/// An endless stream of requests; the same for the same seed.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
    now_ms: f64,
    next_id: u64,
    open: Vec<Vec<u64>>,
}

impl Generator {
    /// A stream from a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, now_ms: 0.0, next_id: 1, open: Vec::new() }
    }

    /// SplitMix64: its stream is fixed by its definition, whatever release of whatever library.
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, below: usize) -> usize {
        (self.next_u64() % below.max(1) as u64) as usize
    }

    fn log_normal(&mut self, (median, sigma): (f64, f64)) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }

    fn prompt(&mut self) -> Vec<u64> {
        let goes_on = !self.open.is_empty() && self.unit() <= CONTINUES;
        let (mut prompt, new) = if goes_on {
            let at = self.below(self.open.len());
            (self.open.swap_remove(at), NEXT_TURN)
        } else {
            (vec![0], FRESH)
        };
        let new = (self.log_normal(new).round() as usize).max(1);
        let room = BLOCKS_MAX.saturating_sub(prompt.len());
        for _ in 0..new.min(room) {
            prompt.push(self.next_id);
            self.next_id += 1;
        }
        if self.open.len() == OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(prompt.clone());
        prompt
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.now_ms -= self.unit().ln() * GAP_MS;
        let hash_ids = self.prompt();
        let block = u64::from(TRACE_BLOCK_TOKENS);
        let input_length = hash_ids.len() as u64 * block - self.next_u64() % block;
        let output_length = self.log_normal(ANSWER).round() as u64;
        Some(Request { timestamp_ms: self.now_ms as u64, input_length, output_length, hash_ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_statistics_are_those_of_the_trace() {
        let requests: Vec<Request> = Generator::new(1).take(12_031).collect();
        let count = requests.len() as f64;
        let mean = |of: fn(&Request) -> u64| requests.iter().map(of).sum::<u64>() as f64 / count;
        let near = |found: f64, measured: f64, what: &str| {
            assert!((found / measured - 1.0).abs() < 0.15, "{what}: {found:.2}, the trace has {measured}");
        };
        near(mean(|r| r.hash_ids.len() as u64), 23.98, "blocks of a prompt");
        near(mean(|r| r.input_length), 12_035.0, "tokens of a prompt");
        near(mean(|r| r.output_length), 342.6, "tokens of an answer");
        near(requests.last().unwrap().timestamp_ms as f64 / count, 294.0, "milliseconds between requests");
        let mut seen = HashSet::new();
        let known: usize =
            requests.iter().map(|r| r.hash_ids.iter().filter(|id| !seen.insert(**id)).count()).sum();
        near(known as f64 / requests.iter().map(|r| r.hash_ids.len()).sum::<usize>() as f64, 0.366, "reuse");
    }

    #[test]
    fn a_seed_always_makes_the_same_requests() {
        let first: Vec<Request> = Generator::new(7).take(3).collect();
        assert_eq!(first, Generator::new(7).take(3).collect::<Vec<_>>());
        assert_ne!(first, Generator::new(8).take(3).collect::<Vec<_>>());
    }
}
