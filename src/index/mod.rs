//! Which worker holds how many leading blocks of a prompt: the fold of many streams' events, in memory.
//!
//! # What is held
//!
//! A stream holds a block per placement and block hash, with a count. A hash counts once within one event. `Stored`
//! adds one (with `refresh` it makes sure of one), `Removed` takes one, and a block whose count is zero in every
//! placement is forgotten. Its identity (parent, tokens hash, LoRA adapter, salt) is that of the first `Stored` since
//! then; the parent of an event's first block is the event's, that of another the block before it. `Cleared` empties
//! all placements whose medium is of a tier it names; naming none, it empties everything, media of unknown tier
//! included. `Unknown` changes nothing. The fold reads nothing but the events, so that every reader agrees.
//!
//! # What is found
//!
//! A block can be reached if it and all blocks before it are held, in whatever placement, and have a tokens hash. A
//! prompt's position is held in a tier if some block that can be reached by the prompt's tokens hashes is there in a
//! [placement](crate::event::Placement::is_own_full_attention) of that tier that counts. Removing a block in the
//! middle thus hides all below it, and bringing it back shows it again. [`StreamMatch`] says how tiers add up.
//!
//! # Limits
//!
//! Up to 2^32 - 2 blocks a stream and nodes altogether, and 2^30 different sets of holders: hundreds of GiB. Block
//! hashes that were chosen to make streams expensive can do so only for blocks that get another identity again and
//! again, each time at the cost of all blocks below.
//!
//! # Digest
//!
//! [`Digest`] is the sum, modulo 2^128, of one term for each placement and block that is held there. A term is the
//! XXH3-128 (seed 0) of 32 bytes, all numbers big-endian:
//!
//! ```text
//! 0   16  the placement: XXH3-128 (seed 0) of its bytes, big-endian
//! 16   8  block hash
//! 24   8  count, 1 or more
//! ```
//!
//! The bytes of a placement are its five fields in the order `medium`, `group`, `kind`, `locality`, `ownership`. A
//! field that is not there is one byte 0. One that is there is a byte 1, followed by the number as 4 bytes (`group`),
//! or by the text's length in bytes as 4 bytes and the text in UTF-8 as it was written (the others).
//!
//! Nothing held is 0. The digest finds mistakes, not forgers: who may choose block hashes can make two states collide.

mod answer;
#[cfg(test)]
mod check;
mod digest;
mod dump;
mod entries;
mod find;
mod handle;
mod hash;
mod holders;
mod holds;
mod interner;
mod kids;
mod pages;
mod paths;
mod runs;
mod settle;
mod state;
mod stream;
mod tags;

#[cfg(test)]
mod tests;

pub use answer::{Counters, MatchOptions, StreamId, StreamMatch};
pub use digest::Digest;
pub use handle::Index;
