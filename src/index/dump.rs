//! What a stream holds, as events whose fold is the same.

use crate::event::{Block, BlockHash, EventData, Stored, TokensHash};

use super::entries::{Entry, Facts};
use super::paths::Paths;
use super::stream::Stream;

/// Most blocks of an event of a dump.
const BLOCKS_MAX: usize = 512;

/// No slot.
const NONE: u32 = u32::MAX;

/// The held blocks below each block and below nothing, as lists through all slots.
struct Lists {
    first: Vec<u32>,
    next: Vec<u32>,
    done: Vec<bool>,
}

impl Stream {
    /// The held blocks, parents first as far as their parents do not lead back to themselves.
    pub(super) fn dump(&self, paths: &Paths) -> Vec<EventData> {
        let (mut lists, tops) = self.lists();
        let mut events = Vec::new();
        for top in tops {
            self.dump_below(paths, top, &mut lists, &mut events);
        }
        // What is left hangs below itself.
        for (slot, _) in self.entries.iter() {
            if self.entries.facts(slot).is_held() && !lists.done[slot as usize] {
                self.dump_below(paths, slot, &mut lists, &mut events);
            }
        }
        events
    }

    /// The lists, and the held blocks that start a prompt or whose parent is not held.
    fn lists(&self) -> (Lists, Vec<u32>) {
        let end = self.entries.end() as usize;
        let mut lists = Lists { first: vec![NONE; end], next: vec![NONE; end], done: vec![false; end] };
        let mut tops = Vec::new();
        for (slot, _) in self.entries.iter().filter(|(slot, _)| self.entries.facts(*slot).is_held()) {
            match self.entries.parent_slot(slot).filter(|parent| self.entries.facts(*parent).is_held()) {
                Some(parent) => {
                    lists.next[slot as usize] = lists.first[parent as usize];
                    lists.first[parent as usize] = slot;
                }
                None => tops.push(slot),
            }
        }
        (lists, tops)
    }

    fn dump_below(&self, paths: &Paths, top: u32, lists: &mut Lists, events: &mut Vec<EventData>) {
        let mut stack = vec![top];
        let mut run = Vec::new();
        while let Some(start) = stack.pop() {
            if std::mem::replace(&mut lists.done[start as usize], true) {
                continue;
            }
            run.clear();
            run.push(start);
            let (mut last, facts) = (start, self.entries.facts(start));
            loop {
                // One block that is alike goes on with the run; the others start runs of their own.
                let mut goes_on = None;
                let mut kid = lists.first[last as usize];
                while kid != NONE {
                    let is_alike = || {
                        let other = self.entries.facts(kid);
                        (other.hold, other.tag) == (facts.hold, facts.tag)
                    };
                    if lists.done[kid as usize] {
                        // Hangs below itself; it was where the run began.
                    } else if goes_on.is_none() && run.len() < BLOCKS_MAX && is_alike() {
                        goes_on = Some(kid);
                    } else {
                        stack.push(kid);
                    }
                    kid = lists.next[kid as usize];
                }
                let Some(kid) = goes_on else { break };
                lists.done[kid as usize] = true;
                run.push(kid);
                last = kid;
            }
            self.dump_run(paths, &run, facts, events);
        }
    }

    /// Blocks that follow one another and are held alike: one event for each copy.
    fn dump_run(&self, paths: &Paths, run: &[u32], facts: Facts, events: &mut Vec<EventData>) {
        let Some(first) = run.first() else { return };
        let parent = self.entries.parent_slot(*first);
        let (lora, salt) = self.tags.get(facts.tag).clone();
        let block = |slot: &u32| {
            let entry: Entry = self.entries.get(*slot);
            let has_tokens = !self.entries.facts(*slot).no_tokens;
            Block {
                block_hash: BlockHash(entry.block_hash),
                tokens_hash: has_tokens.then(|| TokensHash(paths.tokens(entry.node))),
                mm: None,
            }
        };
        let stored = Stored {
            parent: parent.map(|parent| BlockHash(self.entries.get(parent).block_hash)),
            blocks: run.iter().map(block).collect(),
            lora,
            salt,
            ..Stored::default()
        };
        for hold in self.holds.of(facts.hold) {
            let placement = self.holds.get_place(hold.placement).placement.clone();
            let copy = Stored { placement, ..stored.clone() };
            for _ in 1..hold.count {
                events.push(EventData::Stored(copy.clone()));
            }
            events.push(EventData::Stored(copy));
        }
    }
}
