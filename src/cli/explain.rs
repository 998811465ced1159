//! Why a prompt matches as far as it does: for each of its blocks, the events that stored it and took it away.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::event::{BlockHash, EventData, EventId, Placement, StorageTier, Stored, TokensHash};

/// What events say of the blocks of one prompt, gathered while they are folded. Other blocks cost nothing.
pub(super) struct Trace {
    wanted: HashSet<TokensHash>,
    blocks: HashMap<BlockHash, Life>,
}

/// What became of one block.
struct Life {
    tokens: TokensHash,
    parent: Option<BlockHash>,
    /// The first event that stored it since nobody held it.
    stored_at: EventId,
    copies: HashMap<Placement, u64>,
    end: Option<End>,
}

/// What took the last copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    RemovedAt(EventId),
    ClearedBy(EventId),
}

/// What is known of one block of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Explained {
    position: usize,
    tokens: TokensHash,
    block: Option<BlockHash>,
    stored_at: Option<EventId>,
    tiers: Vec<&'static str>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is held, and all before it.
    Held,
    /// It is held, but a block before it is not.
    Hidden,
    /// Blocks with its tokens are held after other prefixes only.
    Elsewhere,
    Ended(End),
    /// No event that is kept names it; events up to the horizon are kept only as far as their blocks are held.
    Unknown {
        horizon: EventId,
    },
}

impl Trace {
    pub(super) fn new(prompt: &[TokensHash]) -> Self {
        Self { wanted: prompt.iter().copied().collect(), blocks: HashMap::new() }
    }

    pub(super) fn see(&mut self, id: EventId, data: &EventData) {
        if self.wanted.is_empty() {
            return;
        }
        match data {
            EventData::Stored(stored) => self.store(id, stored),
            EventData::Removed(removed) => {
                let hashes: HashSet<_> = removed.block_hashes.iter().collect();
                for hash in hashes {
                    if let Some(life) = self.blocks.get_mut(hash)
                        && let Some(count) = life.copies.get_mut(&removed.placement)
                    {
                        *count -= 1;
                        life.copies.retain(|_, count| *count > 0);
                        life.ends(End::RemovedAt(id));
                    }
                }
            }
            EventData::Cleared(cleared) => {
                for life in self.blocks.values_mut().filter(|life| !life.copies.is_empty()) {
                    life.copies.retain(|placement, _| {
                        let is_named = |tier| cleared.tiers.contains(&tier);
                        !cleared.tiers.is_empty() && !placement.tier().is_some_and(is_named)
                    });
                    life.ends(End::ClearedBy(id));
                }
            }
            EventData::Unknown(_) => {}
        }
    }

    fn store(&mut self, id: EventId, stored: &Stored) {
        let mut seen = HashSet::new();
        let mut parent = stored.parent;
        for block in &stored.blocks {
            let after = parent.replace(block.block_hash);
            let tokens = block.tokens_hash.filter(|tokens| self.wanted.contains(tokens));
            if !seen.insert(block.block_hash) {
                continue;
            }
            let held = self.blocks.get_mut(&block.block_hash).filter(|life| !life.copies.is_empty());
            match (held, tokens) {
                (Some(life), _) => {
                    let count = life.copies.entry(stored.placement.clone()).or_default();
                    *count = if stored.refresh { (*count).max(1) } else { *count + 1 };
                }
                (None, Some(tokens)) => {
                    let copies = HashMap::from([(stored.placement.clone(), 1)]);
                    let life = Life { tokens, parent: after, stored_at: id, copies, end: None };
                    self.blocks.insert(block.block_hash, life);
                }
                // It comes back with other tokens, which are not asked for.
                (None, None) => drop(self.blocks.remove(&block.block_hash)),
            }
        }
    }

    /// Each block of the prompt, in order.
    pub(super) fn explain(&self, prompt: &[TokensHash], horizon: EventId) -> Vec<Explained> {
        let mut reached: HashSet<Option<BlockHash>> = HashSet::from([None]);
        // Those that would be reached if all before were held.
        let mut chain = reached.clone();
        let one = |(position, tokens): (usize, &TokensHash)| {
            let alike: Vec<_> = self.blocks.iter().filter(|(_, life)| life.tokens == *tokens).collect();
            let is_held = |life: &Life| !life.copies.is_empty();
            let of = |state, found: Option<&(&BlockHash, &Life)>| Explained {
                position,
                tokens: *tokens,
                block: found.map(|(hash, _)| **hash),
                stored_at: found.map(|(_, life)| life.stored_at),
                tiers: found.map_or_else(Vec::new, |(_, life)| life.tiers()),
                state,
            };
            let newest = |is_it: &dyn Fn(&Life) -> bool| {
                alike.iter().filter(|(_, life)| is_it(life)).max_by_key(|(_, life)| life.stored_at)
            };
            let in_chain = newest(&|life| is_held(life) && chain.contains(&life.parent));
            let held = newest(&|life| is_held(life) && reached.contains(&life.parent));
            let gone = newest(&|life| life.end.is_some() && chain.contains(&life.parent));
            let gone = gone.or_else(|| newest(&|life| life.end.is_some()));
            let elsewhere = newest(&is_held);
            let explained = match (held, in_chain, gone, elsewhere) {
                (Some(found), ..) => of(State::Held, Some(found)),
                (_, Some(found), ..) => of(State::Hidden, Some(found)),
                (_, _, Some(found), _) if let Some(end) = found.1.end => of(State::Ended(end), Some(found)),
                (.., Some(found)) => of(State::Elsewhere, Some(found)),
                _ => of(State::Unknown { horizon }, None),
            };
            let next = |of: &HashSet<Option<BlockHash>>, is_it: &dyn Fn(&Life) -> bool| {
                let those = alike.iter().filter(|(_, life)| is_it(life) && of.contains(&life.parent));
                those.map(|(hash, _)| Some(**hash)).collect()
            };
            reached = next(&reached, &is_held);
            chain = next(&chain, &|_| true);
            explained
        };
        prompt.iter().enumerate().map(one).collect()
    }
}

impl Life {
    fn ends(&mut self, end: End) {
        if self.copies.is_empty() {
            self.end = Some(end);
        }
    }

    fn tiers(&self) -> Vec<&'static str> {
        let name = |tier| match tier {
            Some(StorageTier::Device) => "device",
            Some(StorageTier::HostPinned) => "host",
            Some(StorageTier::Disk) => "disk",
            Some(StorageTier::External) => "external",
            None => "unknown",
        };
        let mut tiers: Vec<_> = self.copies.keys().map(|placement| name(placement.tier())).collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }
}

impl Explained {
    pub(super) fn to_json(&self) -> Value {
        let (state, removed_at, cleared_by) = match self.state {
            State::Held => ("held", None, None),
            State::Hidden => ("hidden", None, None),
            State::Elsewhere => ("elsewhere", None, None),
            State::Ended(End::RemovedAt(id)) => ("removed", Some(id), None),
            State::Ended(End::ClearedBy(id)) => ("cleared", None, Some(id)),
            State::Unknown { .. } => ("unknown", None, None),
        };
        json!({
            "position": self.position,
            "tokens_hash": self.tokens,
            "block_hash": self.block,
            "state": state,
            "tiers": self.tiers,
            "stored_at": self.stored_at,
            "removed_at": removed_at,
            "cleared_by": cleared_by,
        })
    }

    /// Position, tokens hash, block hash, state.
    pub(super) fn to_row(&self) -> [String; 4] {
        let stored = self.stored_at.map_or_else(String::new, |id| format!(", stored at {id}"));
        let tiers = self.tiers.join("+");
        let state = match self.state {
            State::Held => format!("held in {tiers}{stored}"),
            State::Hidden => format!("hidden: a block before it is not held; in {tiers}{stored}"),
            State::Elsewhere => format!("held after another prefix only; in {tiers}{stored}"),
            State::Ended(End::RemovedAt(id)) => format!("removed at {id}{stored}"),
            State::Ended(End::ClearedBy(id)) => format!("cleared by {id}{stored}"),
            State::Unknown { horizon: 0 } => "never stored".into(),
            State::Unknown { horizon } => format!("not stored since {horizon}, and not held then"),
        };
        let block = self.block.map_or_else(|| "-".into(), |hash| format!("{:016x}", hash.0));
        [self.position.to_string(), format!("{:016x}", self.tokens.0), block, state]
    }
}
