//! Fences: tiny rows laid ahead of the large ones, so that sled's leaves never split over large values.
//!
//! sled splits a leaf of more than sixteen rows and writes both halves anew, and it rewrites a leaf after ten
//! changes. Rows appended one after the other, 64 KiB each, are thereby written four to five times (measured:
//! 4.6 bytes to disk for each byte appended). A leaf that was split while it held only fences, though, takes a few
//! large rows as plain changes and is never touched again: 1.02 to 1.05 bytes for each byte, and dead segments are
//! freed whole when old rows are removed.
//!
//! A group of eight fences makes one leaf. Groups are laid [`LEAVES_AHEAD`] leaves beyond the newest row, each as
//! many ids after the one before as [`ROWS_PER_LEAF`] rows are expected to take. A wrong guess costs speed, never
//! correctness: sled then splits as it always did.

/// Fences in a group. sled splits a leaf of seventeen rows into nine and eight.
const FENCES_PER_LEAF: u8 = 8;

/// Large rows for which a leaf is meant. It takes four times as many before sled would split or rewrite it, their
/// later removal does not rewrite it either, and sled's cache, which holds whole leaves, stays small.
const ROWS_PER_LEAF: u64 = 2;

/// How far ahead of the newest row leaves are laid.
const LEAVES_AHEAD: u64 = 4;

/// Rows shorter than this are cheap to rewrite; no fences are laid for them.
const LARGE_ROW_BYTES: usize = 4 * 1024;

/// Keys of fences have eleven bytes: the id where the leaf starts, a mark, and the number in the group.
const FENCE_KEY_BYTES: usize = 11;
const FENCE_MARK: [u8; 2] = [0xff, 0xff];

/// Whether a key is that of a fence.
pub(super) fn is_fence(key: &[u8]) -> bool {
    key.len() == FENCE_KEY_BYTES && key[8..10] == FENCE_MARK
}

/// Where the fences of one tree stand.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// Id of the row appended last.
    newest: u64,
    /// Ids that a large row takes, on average, times 16.
    stride_16: u64,
    /// Where the next group goes.
    next: u64,
}

impl Fence {
    /// Keys of the fences to lay before the row `key` of `len` bytes is appended.
    pub(super) fn before(&mut self, key: &[u8], len: usize) -> Vec<[u8; FENCE_KEY_BYTES]> {
        let Some(id) = key.first_chunk().map(|id| u64::from_be_bytes(*id)) else { return Vec::new() };
        let step = id.saturating_sub(self.newest);
        let first = self.newest == 0;
        self.newest = id;
        // The first row of an opening, and the first after a jump, say nothing about how many ids a row takes.
        if len < LARGE_ROW_BYTES || first || step == 0 || step > u64::from(u32::MAX) {
            return Vec::new();
        }
        self.stride_16 = match self.stride_16 {
            0 => step * 16,
            old => old - old / 8 + step * 2,
        };
        let leaf = (self.stride_16 * ROWS_PER_LEAF / 16).max(1);
        let goal = id.saturating_add(leaf * LEAVES_AHEAD);
        self.next = self.next.max(id + 1);
        let mut keys = Vec::new();
        while self.next < goal {
            for number in 0..FENCES_PER_LEAF {
                let mut key = [0; FENCE_KEY_BYTES];
                key[..8].copy_from_slice(&self.next.to_be_bytes());
                key[8..10].copy_from_slice(&FENCE_MARK);
                key[10] = number;
                keys.push(key);
            }
            self.next += leaf;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leaf_gets_its_rows_and_no_row_is_taken_for_a_fence() {
        let mut fence = Fence::default();
        let mut laid = Vec::new();
        for row in 0..100_u64 {
            let key = (1 + row * 240).to_be_bytes();
            assert!(!is_fence(&key));
            laid.extend(fence.before(&key, 64_000));
        }
        assert!(laid.iter().all(|key| is_fence(key)));
        let starts: Vec<u64> =
            laid.iter().map(|key| u64::from_be_bytes(*key.first_chunk().unwrap())).collect();
        assert!(starts.is_sorted());
        assert!(starts.last() > Some(&(100 * 240)), "the last leaf lies ahead");
        let groups: Vec<u64> = starts.chunks(8).map(|group| group[0]).collect();
        assert!(groups.windows(2).skip(1).all(|pair| pair[1] - pair[0] == ROWS_PER_LEAF * 240), "{groups:?}");
    }

    #[test]
    fn small_rows_and_jumps_lay_no_fences() {
        let mut fence = Fence::default();
        assert!(fence.before(&1_u64.to_be_bytes(), 100_000).is_empty());
        assert!(fence.before(&2_u64.to_be_bytes(), 100).is_empty());
        assert!(fence.before(&(1_u64 << 50).to_be_bytes(), 100_000).is_empty());
    }
}
