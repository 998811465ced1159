//! The walk of a prompt: which streams hold its leading blocks, and how far.
//!
//! All streams walk together. What they hold is looked at only where the set of holders changes, so that a run of
//! blocks that the same streams hold costs one comparison of tokens a block.

use crate::event::TokensHash;

use super::answer::{StreamId, StreamMatch};
use super::holders::Member;
use super::paths::{Paths, ROOT};

/// A stream that holds all blocks so far.
#[derive(Clone, Copy, Debug)]
struct Walker {
    stream: u32,
    /// The tier that it is in.
    tier: usize,
    /// Blocks that were matched when each tier came to its end.
    until: [u32; 4],
}

impl Walker {
    /// Takes the block at position `at`, which counts in the tiers of `mask`: in the tier that the stream is in, or
    /// the next slower one. Says whether it does.
    #[inline]
    fn take(&mut self, mask: u8, at: u32) -> bool {
        let left = mask >> self.tier;
        if left == 0 {
            return false;
        }
        let tier = self.tier + left.trailing_zeros() as usize;
        for until in &mut self.until[self.tier..tier] {
            *until = at;
        }
        self.tier = tier;
        true
    }

    fn answer(mut self, stream: StreamId, blocks: u32) -> StreamMatch {
        for until in &mut self.until[self.tier..] {
            *until = blocks;
        }
        let [device, host_pinned, disk, external] = self.until;
        StreamMatch {
            stream,
            device,
            host_pinned: host_pinned - device,
            disk: disk - host_pinned,
            external: external - disk,
        }
    }
}

/// The walkers, and the answers of those that are done.
struct Walk<'a> {
    paths: &'a Paths,
    id_of: &'a dyn Fn(u32) -> StreamId,
    walkers: Vec<Walker>,
    done: Vec<StreamMatch>,
}

/// Walks along `prompt` with all streams that `takes_part` lets in; `id_of` names them. With `early_exit` it ends
/// once at most one stream is left.
pub(super) fn find_matches(
    paths: &Paths,
    prompt: &[TokensHash],
    early_exit: bool,
    takes_part: impl Fn(u32) -> bool,
    id_of: &dyn Fn(u32) -> StreamId,
) -> Vec<StreamMatch> {
    let first = prompt.first().and_then(|tokens| paths.child(ROOT, tokens.0));
    let Some(mut node) = first else { return Vec::new() };
    // Positions are as wide as the answer's counts.
    let prompt = &prompt[..prompt.len().min(u32::MAX as usize)];
    let mut set = paths.set(node);
    let starts = |member: &Member| {
        let mut walker = Walker { stream: member.stream, tier: 0, until: [0; 4] };
        (walker.take(member.mask(), 0) && takes_part(member.stream)).then_some(walker)
    };
    let walkers: Vec<Walker> = paths.members(set).iter().filter_map(starts).collect();
    let mut walk = Walk { paths, id_of, done: Vec::with_capacity(walkers.len()), walkers };
    let mut at = 1;
    while at < prompt.len() && walk.goes_on(early_exit) {
        let run = paths.run_from(node.wrapping_add(1));
        let mut steps = 0;
        let mut changed = None;
        for (next, tokens) in run.iter().zip(&prompt[at..]) {
            if !next.goes_on_with(tokens.0) {
                break;
            }
            steps += 1;
            if next.set() != set {
                changed = Some(next.set());
                break;
            }
        }
        if steps == 0 {
            let Some(child) = paths.child(node, prompt[at].0) else { break };
            node = child;
            steps = 1;
            changed = Some(paths.set(child)).filter(|other| *other != set);
        } else {
            node += steps;
        }
        at += steps as usize;
        if let Some(other) = changed {
            set = other;
            walk.change(set, at as u32 - 1);
        }
    }
    walk.end(at as u32)
}

impl Walk<'_> {
    fn goes_on(&self, early_exit: bool) -> bool {
        self.walkers.len() > usize::from(early_exit)
    }

    /// The block at position `at` is held by another set of streams than the one before.
    fn change(&mut self, set: u32, at: u32) {
        // Both are in the order of the streams' slots.
        let mut members = self.paths.members(set).iter().peekable();
        let (id_of, done) = (self.id_of, &mut self.done);
        self.walkers.retain_mut(|walker| {
            while members.next_if(|member| member.stream < walker.stream).is_some() {}
            let member = members.next_if(|member| member.stream == walker.stream);
            let stays = member.is_some_and(|member| walker.take(member.mask(), at));
            if !stays {
                done.push(walker.answer(id_of(walker.stream), at));
            }
            stays
        });
    }

    /// All that are left match `blocks` blocks.
    fn end(mut self, blocks: u32) -> Vec<StreamMatch> {
        for walker in &self.walkers {
            self.done.push(walker.answer((self.id_of)(walker.stream), blocks));
        }
        self.done
    }
}
