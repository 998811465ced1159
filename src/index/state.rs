//! All streams of an index and the tree of paths that they share; without locks.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use crate::event::{DpRank, EventData, TokensHash, WorkerId};

use super::answer::{Counters, MatchOptions, StreamId, StreamMatch};
use super::find::find_matches;
use super::interner::Interner;
use super::pages::Pages;
use super::paths::Paths;
use super::stream::Stream;

/// The number of no model.
const NO_MODEL: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct State {
    paths: Paths,
    slots: BTreeMap<StreamId, u32>,
    streams: Pages<Described>,
    models: Interner<String>,
    hasher: RandomState,
}

/// A stream. What an answer needs of it stands beside each other, without a way through its blocks.
#[derive(Debug, Default)]
struct Described {
    id: StreamId,
    model: u32,
    /// `None` in a slot that is free.
    stream: Option<Box<Stream>>,
}

impl State {
    pub(super) fn apply<'a>(&mut self, id: StreamId, events: impl IntoIterator<Item = &'a EventData>) {
        let slot = self.slot(id);
        if let Some(stream) = &mut self.streams.get_mut(slot).stream {
            for event in events {
                stream.apply(&mut self.paths, event);
            }
            stream.shrink();
        }
        self.tidy();
    }

    /// The slot of a stream, which is made if it is not there.
    fn slot(&mut self, id: StreamId) -> u32 {
        if let Some(slot) = self.slots.get(&id) {
            return *slot;
        }
        let slot = self.streams.add(Described { id, model: NO_MODEL, stream: None });
        self.streams.get_mut(slot).stream = Some(Box::new(Stream::new(slot)));
        self.slots.insert(id, slot);
        slot
    }

    fn stream(&self, id: StreamId) -> Option<&Described> {
        Some(self.streams.get(*self.slots.get(&id)?))
    }

    /// Gives memory back after blocks went.
    fn tidy(&mut self) {
        self.paths.shrink();
        if self.paths.is_sparse() {
            let moved = self.paths.compact();
            for slot in self.slots.values() {
                if let Some(stream) = &mut self.streams.get_mut(*slot).stream {
                    stream.move_nodes(&moved);
                }
            }
        }
    }

    pub(super) fn set_model(&mut self, id: StreamId, model: Option<&str>) {
        let model = model.map_or(NO_MODEL, |name| {
            let hash = self.hasher.hash_one(name);
            self.models.intern(hash, name.to_owned())
        });
        let slot = self.slot(id);
        let old = std::mem::replace(&mut self.streams.get_mut(slot).model, model);
        self.release_model(old);
    }

    fn release_model(&mut self, model: u32) {
        if model != NO_MODEL {
            self.models.release(model);
        }
    }

    pub(super) fn clear(&mut self, id: StreamId) -> bool {
        let Some(slot) = self.slots.get(&id).copied() else { return false };
        if let Some(stream) = &mut self.streams.get_mut(slot).stream {
            stream.reset(&mut self.paths);
        }
        self.tidy();
        true
    }

    pub(super) fn remove_stream(&mut self, id: StreamId) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        let described = self.streams.remove(slot);
        if let Some(mut stream) = described.stream {
            stream.reset(&mut self.paths);
        }
        self.release_model(described.model);
        self.tidy();
        true
    }

    pub(super) fn streams_of(&self, worker_id: WorkerId) -> Vec<StreamId> {
        let rank = |dp_rank| StreamId { worker_id, dp_rank };
        let range = rank(DpRank(0))..=rank(DpRank(u32::MAX));
        self.slots.range(range).map(|(id, _)| *id).collect()
    }

    pub(super) fn streams(&self) -> Vec<StreamId> {
        self.slots.keys().copied().collect()
    }

    pub(super) fn find_matches(&self, prompt: &[TokensHash], options: MatchOptions<'_>) -> Vec<StreamMatch> {
        let model = options.model.map(|name| {
            let hash = self.hasher.hash_one(name);
            self.models.find(hash, |known| known == name)
        });
        if model == Some(None) {
            return Vec::new();
        }
        let takes_part = |slot: u32| {
            let described = self.streams.get(slot);
            model.flatten().is_none_or(|model| described.model == model)
                && options.streams.is_none_or(|streams| streams.contains(&described.id))
        };
        let takes_all = model.is_none() && options.streams.is_none();
        let id_of = |slot: u32| self.streams.get(slot).id;
        let takes_part = |slot| takes_all || takes_part(slot);
        find_matches(&self.paths, prompt, options.early_exit, takes_part, &id_of)
    }

    pub(super) fn model(&self, id: StreamId) -> Option<String> {
        let model = self.stream(id)?.model;
        (model != NO_MODEL).then(|| self.models.get(model).clone())
    }

    pub(super) fn dump(&self, id: StreamId) -> Vec<EventData> {
        self.ask(id, |stream| stream.dump(&self.paths)).unwrap_or_default()
    }

    /// What a stream is asked, if it is there.
    pub(super) fn ask<T>(&self, id: StreamId, question: impl FnOnce(&Stream) -> T) -> Option<T> {
        self.stream(id)?.stream.as_deref().map(question)
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut at_nodes = std::collections::HashMap::new();
        for (slot, described) in self.streams.iter() {
            let stream = described.stream.as_ref().expect("a slot in use has a stream");
            assert_eq!((self.slots.get(&described.id), stream.slot), (Some(&slot), slot));
            stream.check(&self.paths, &mut at_nodes);
        }
        self.paths.check(&at_nodes);
    }

    pub(super) fn counters(&self) -> Counters {
        // A B-tree's nodes are about two thirds full.
        let slots = self.slots.len() * size_of::<(StreamId, u32)>() * 3 / 2;
        let mut counters = Counters {
            streams: self.slots.len(),
            nodes: self.paths.len(),
            holder_sets: self.paths.sets(),
            heap_bytes: self.paths.heap_bytes()
                + self.streams.heap_bytes()
                + self.models.heap_bytes(String::capacity)
                + slots,
            ..Counters::default()
        };
        for (_, described) in self.streams.iter() {
            let Some(stream) = &described.stream else { continue };
            counters.blocks += stream.held();
            counters.ghosts += stream.ghosts.len();
            counters.heap_bytes += size_of::<Stream>() + stream.heap_bytes();
        }
        counters
    }
}
