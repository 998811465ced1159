//! Says, before sled touches its files, what its recovery would throw away. Reads only.
//!
//! Opening a damaged database, sled 0.34.7 stops at the first bad message of its log, zeroes what follows and
//! reports nothing. Here its recovery is done over again without the writes, so that the caller can refuse while
//! the bytes are still there.
//!
//! | file | owns |
//! | --- | --- |
//! | `format` | headers and messages as bytes |
//! | `snapshot` | the `snap.*` file and its page table |
//! | `replay` | the walk over the log, as `LogIter` does it |
//! | `remains` | what is left in a segment that the walk did not take |
//! | `scan` | the answer |

#![allow(dead_code, unused_imports, reason = "the tests look at more of a scan than the store does")]

mod format;
mod remains;
mod replay;
mod scan;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use format::Lsn;
pub(crate) use remains::{Holds, Next};
pub(crate) use scan::{Doomed, Fate, LogScan, Refusal, SnapshotFile, Span, Tip, for_each_chunk, scan};
