//! Requests made up with the statistics of a real trace of conversations.
//!
//! Measured on the conversation trace of Mooncake's FAST'25 release (12,031 requests in 59 minutes):
//!
//! - Requests come in ticks of 3 s, 10.2 a tick.
//! - Every prompt starts with the same block, the system prompt.
//! - 38.7 % of the prompts go on with an earlier conversation, half of them within 123 s. 85 % of these keep all of
//!   it but the last block, which was not full; 15 % fork it further up and go on with a longer text.
//! - A prompt has 24.0 blocks of 512 tokens on average; 36.6 % of them were seen before. An answer has 343 tokens.
//!
//! Which conversation goes on is drawn by how many requests ago its last turn came, with a lean towards short ones.
//! Conversations of more than six turns are rarer than in the trace (under 1 % of the requests, not 4 %).

use std::collections::VecDeque;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use super::quantiles::Quantiles;
use super::tokens::{TRACE_BLOCK_TOKENS, below, mix};
use super::trace::Request;

/// Requests that go on with an earlier conversation, in thousandths.
const CONTINUES: u64 = 387;
/// Those of them that fork it, in thousandths.
const FORKS: u64 = 150;
/// Those of them that take the shorter of two. Not measured: set so that prompts grow as in the trace.
const PREFERS_SHORT: u64 = 300;
/// Longest prompt, in blocks.
const BLOCKS_MAX: usize = 247;
/// Blocks of the shortest prompt that another can go on with: with less than the system prompt and a whole block of
/// its own it leaves nothing to share.
const SHARED_BLOCKS_MIN: usize = 2;
/// Time between ticks.
const TICK_MS: u64 = 3000;
/// Earlier prompts that may go on; the trace reaches further back in under 2 % of the turns.
const RECENT_MAX: usize = 4096;
/// Bits of an id that count blocks; those above tell seeds apart, so that two workers share the system prompt only.
const COUNTER_BITS: u32 = 40;

/// Requests of a tick.
const ARRIVALS: Quantiles = Quantiles([
    2, 3, 4, 5, 6, 7, 7, 8, 8, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 15, 16, 17, 17, 19, 20, 22, 28,
]);
/// Blocks after the system prompt of a fresh conversation.
const FRESH: Quantiles = Quantiles([
    1, 1, 1, 1, 1, 1, 2, 2, 3, 5, 7, 8, 10, 12, 14, 17, 21, 25, 30, 37, 49, 61, 75, 101, 131, 175, 218, 231,
    246,
]);
/// New blocks of a next turn.
const NEXT_TURN: Quantiles = Quantiles([
    0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4, 7, 10, 13, 15, 20, 24, 34, 45, 70, 181,
]);
/// Last blocks of a conversation that its next turn replaces.
const REPLACED: Quantiles =
    Quantiles([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
/// New blocks of a fork.
const FORK: Quantiles = Quantiles([
    1, 1, 2, 2, 4, 8, 10, 12, 14, 16, 17, 18, 19, 20, 22, 24, 27, 30, 32, 34, 39, 49, 52, 59, 63, 85, 95,
    129, 186,
]);
/// Last blocks of a conversation that a fork leaves out.
const FORKED_OFF: Quantiles = Quantiles([
    2, 2, 2, 2, 2, 10, 13, 15, 16, 17, 19, 20, 22, 23, 25, 27, 28, 30, 33, 36, 43, 47, 53, 59, 63, 85, 95,
    126, 198,
]);
/// Requests from one turn to the next.
const DISTANCE: Quantiles = Quantiles([
    5, 44, 62, 99, 141, 176, 204, 229, 257, 290, 324, 367, 423, 481, 550, 643, 757, 901, 1087, 1316, 1662,
    1924, 2131, 2592, 3491, 5110, 6711, 8142, 10_514,
]);
/// Tokens of an answer.
const ANSWER: Quantiles = Quantiles([
    1, 3, 3, 10, 24, 46, 100, 156, 213, 256, 291, 322, 350, 375, 399, 423, 447, 472, 504, 543, 597, 648, 698,
    802, 893, 1120, 1570, 2000, 2000,
]);
/// Tokens in the last block of a prompt.
const LAST_BLOCK: Quantiles = Quantiles([
    1, 6, 13, 29, 57, 84, 112, 140, 165, 194, 225, 253, 282, 311, 340, 371, 385, 393, 411, 435, 459, 475,
    486, 497, 502, 507, 510, 511, 512,
]);

/// An endless stream of requests, the same for the same seed in every release: the generator is xoshiro256++ by
/// name, seeded through SplitMix64, and all arithmetic is on whole numbers.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Xoshiro256PlusPlus,
    tick: u64,
    left_of_tick: u64,
    next_id: u64,
    /// Earlier prompts, the oldest first; `None` where a next turn took it over.
    recent: VecDeque<Option<Vec<u64>>>,
}

impl Generator {
    /// A stream from a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let left_of_tick = ARRIVALS.draw(&mut rng);
        // One bit less than fit, so that ids stay below 2^63, and never none, so that they are not a trace's.
        let tag = mix(seed, 0) >> (COUNTER_BITS + 1) | 1;
        Self { rng, tick: 0, left_of_tick, next_id: tag << COUNTER_BITS, recent: VecDeque::new() }
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        below(self.rng.next_u64(), 1000) < thousandths
    }

    fn timestamp_ms(&mut self) -> u64 {
        while self.left_of_tick == 0 {
            self.tick += 1;
            self.left_of_tick = ARRIVALS.draw(&mut self.rng);
        }
        self.left_of_tick -= 1;
        self.tick * TICK_MS
    }

    fn prompt(&mut self) -> Vec<u64> {
        let goes_on = self.chance(CONTINUES);
        let (mut prompt, new) = match goes_on.then(|| self.pick_one_of_two()).flatten() {
            Some(at) => self.go_on(at),
            None => (vec![0], FRESH.draw(&mut self.rng)),
        };
        let room = BLOCKS_MAX.saturating_sub(prompt.len()) as u64;
        let new = new.min(room);
        prompt.extend(self.next_id..self.next_id + new);
        self.next_id += new;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Some(prompt.clone()));
        prompt
    }

    /// What the next prompt shares with an earlier one, and how many blocks it adds.
    fn go_on(&mut self, at: usize) -> (Vec<u64>, u64) {
        let forks = self.chance(FORKS);
        let (replaced, new) = if forks { (&FORKED_OFF, &FORK) } else { (&REPLACED, &NEXT_TURN) };
        let (replaced, new) = (replaced.draw(&mut self.rng), new.draw(&mut self.rng));
        let slot = &mut self.recent[at];
        let earlier = if forks { slot.clone() } else { slot.take() };
        let mut prompt = earlier.expect("only prompts that are there are picked");
        prompt.truncate(prompt.len().saturating_sub(replaced as usize).max(SHARED_BLOCKS_MIN));
        (prompt, new)
    }

    fn pick_one_of_two(&mut self) -> Option<usize> {
        let one = self.pick();
        if !self.chance(PREFERS_SHORT) {
            return one;
        }
        let two = self.pick();
        let blocks = |at: &usize| self.recent[*at].as_ref().map(Vec::len);
        one.into_iter().chain(two).min_by_key(blocks)
    }

    /// A prompt about as far back as the next turn usually is, or the nearest after it that can go on.
    fn pick(&mut self) -> Option<usize> {
        let distance = DISTANCE.draw(&mut self.rng) as usize;
        let start = self.recent.len().saturating_sub(distance);
        let can_go_on =
            |prompt: &Option<Vec<u64>>| prompt.as_ref().is_some_and(|ids| ids.len() > SHARED_BLOCKS_MIN);
        self.recent.iter().skip(start).position(can_go_on).map(|past| start + past)
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let timestamp_ms = self.timestamp_ms();
        let hash_ids = self.prompt();
        let whole = (hash_ids.len() as u64 - 1) * u64::from(TRACE_BLOCK_TOKENS);
        let input_length = whole + LAST_BLOCK.draw(&mut self.rng);
        let output_length = ANSWER.draw(&mut self.rng);
        Some(Request { timestamp_ms, input_length, output_length, hash_ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn an_id_always_follows_the_same_id_and_prompts_keep_to_their_limits() {
        let mut parents = HashMap::new();
        let mut last_ms = 0;
        for request in Generator::new(5).take(20_000) {
            assert_eq!(request.hash_ids[0], 0, "all share the system prompt");
            assert!(request.hash_ids.len() <= BLOCKS_MAX);
            let blocks = request.input_length.div_ceil(u64::from(TRACE_BLOCK_TOKENS));
            assert_eq!(blocks, request.hash_ids.len() as u64);
            assert!(last_ms <= request.timestamp_ms);
            last_ms = request.timestamp_ms;
            for pair in request.hash_ids.windows(2) {
                assert_eq!(*parents.entry(pair[1]).or_insert(pair[0]), pair[0]);
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut generator = Generator::new(5);
        generator.by_ref().take(3 * RECENT_MAX).for_each(drop);
        assert_eq!(generator.recent.len(), RECENT_MAX);
    }

    #[test]
    fn seeds_share_the_system_prompt_only() {
        let ids = |seed| -> HashSet<u64> {
            Generator::new(seed).take(500).flat_map(|request| request.hash_ids).collect()
        };
        let shared: Vec<u64> = ids(1).intersection(&ids(2)).copied().collect();
        assert_eq!(shared, [0]);
    }
}
