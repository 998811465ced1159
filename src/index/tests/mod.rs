//! The index against the fold by its words.

mod model;
mod props;
mod streams;
mod words;

use std::collections::{BTreeMap, HashSet};

use crate::event::{EventData, TokensHash, WorkerId};

use super::{Index, MatchOptions, StreamId, StreamMatch};
use model::Model;

/// An index and the model of each of its streams.
#[derive(Default)]
struct Pair {
    index: Index,
    models: BTreeMap<StreamId, Model>,
}

impl Pair {
    fn apply(&mut self, stream: StreamId, event: &EventData) {
        self.index.apply(stream, event);
        self.models.entry(stream).or_default().apply(event);
    }

    fn clear(&mut self, stream: StreamId) {
        let known = self.models.get_mut(&stream).map(|model| *model = Model::default());
        assert_eq!(self.index.clear(stream), known.is_some());
    }

    fn remove_stream(&mut self, stream: StreamId) {
        assert_eq!(self.index.remove_stream(stream), self.models.remove(&stream).is_some());
    }

    fn remove_worker(&mut self, worker: WorkerId) {
        let before = self.models.len();
        self.models.retain(|stream, _| stream.worker_id != worker);
        assert_eq!(self.index.remove_worker(worker), before - self.models.len());
    }

    fn check_prompt(&self, prompt: &[TokensHash]) {
        let mut expected = Vec::new();
        for (stream, model) in &self.models {
            let [device, host_pinned, disk, external] = model.find_match(prompt);
            let found = StreamMatch { stream: *stream, device, host_pinned, disk, external };
            expected.extend((found.total() > 0).then_some(found));
        }
        let sorted = |mut found: Vec<StreamMatch>| {
            found.sort_by_key(|found| found.stream);
            found
        };
        let found = sorted(self.index.find_matches(prompt, MatchOptions::default()));
        assert_eq!(found, expected, "{prompt:?}");
        // With an early exit all but the longest are exact, and the longest is not less than they.
        let early = MatchOptions { early_exit: true, ..MatchOptions::default() };
        let early = sorted(self.index.find_matches(prompt, early));
        assert_eq!(early.len(), found.len());
        let shorter = early.iter().zip(&found).filter(|(early, found)| early != found);
        assert!(shorter.count() <= 1);
        let longest = early.iter().map(StreamMatch::total).max();
        assert!(early.iter().zip(&found).all(|(early, found)| early == found
            || early.total() < found.total() && Some(early.total()) == longest));
        // Of some streams only.
        let some: HashSet<StreamId> = self.models.keys().copied().step_by(2).collect();
        let filter = MatchOptions { streams: Some(&some), ..MatchOptions::default() };
        let filtered = sorted(self.index.find_matches(prompt, filter));
        expected.retain(|found| some.contains(&found.stream));
        assert_eq!(filtered, expected);
    }

    /// All but the matches, and the matches of what is held.
    fn check(&self) {
        assert_eq!(self.index.streams(), self.models.keys().copied().collect::<Vec<_>>());
        let mut blocks = 0;
        for (stream, model) in &self.models {
            assert_eq!(self.index.blocks(*stream), model.blocks.len());
            assert_eq!(self.index.digest(*stream), model.digest(), "{stream:?}");
            blocks += model.blocks.len();
            for prompt in model.prompts(12, 40) {
                self.check_prompt(&prompt);
            }
        }
        assert_eq!(self.index.counters().blocks, blocks);
        self.index.check();
    }

    /// A dump folds to the same in the model, to the last detail, and in another index.
    fn check_dumps(&self) {
        let mut refolded = Pair::default();
        for (stream, model) in &self.models {
            let mut again = Model::default();
            for event in self.index.dump(*stream) {
                again.apply(&event);
                refolded.apply(*stream, &event);
            }
            assert_eq!(again, *model, "{stream:?}");
            refolded.models.entry(*stream).or_default();
            refolded.index.set_model(*stream, None);
        }
        refolded.check();
    }
}
