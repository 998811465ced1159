//! Slots in pages of fixed size: growing copies nothing, neighbours stay neighbours, and a page that is empty goes
//! back to the allocator.
//!
//! A slot keeps its number until it is freed. The slot after a given one is preferred where it is free, so that chains
//! lie in order. A chain begins where much room is free: were the free slots used up to the last one, the pieces of
//! room, and so of chains, would get smaller with each coming and going until every block lay alone. So an eighth more
//! slots than are in use may stand free before the small pieces are used.

/// Slots of a page.
pub(super) const PAGE: usize = 512;
const SHIFT: u32 = PAGE.trailing_zeros();
const MASK: usize = PAGE - 1;
const WORDS: usize = PAGE / 64;

/// First room of a page, which doubles up to [`PAGE`]: a small index is not to take whole pages.
const ROOM_MIN: usize = 8;

/// Classes of pages by their holes.
const CLASSES: usize = 8;
/// Pages from this class on have so many holes that they are used before new slots are made.
const MANY: usize = CLASSES / 2;
/// Steps that find the starts of runs of 2, 4, 8 and 16 holes; longer ones are not told apart.
const RUNS: [u32; 4] = [1, 2, 4, 8];
/// Slots that may be free in a small index.
const SPARE: usize = 16;

#[derive(Debug)]
pub(super) struct Pages<T> {
    /// Each as long as it was used so far; empty if the page was given back.
    pages: Vec<Vec<T>>,
    holes: Vec<Holes>,
    /// Pages with holes, by how many they have.
    by_holes: [Vec<u32>; CLASSES],
    /// Pages that were given back.
    absent: Vec<u32>,
    /// The page that is not used to its end yet.
    growing: Option<u32>,
    live: usize,
    slots: usize,
}

/// Which slots of a page's used part are free.
#[derive(Debug, Default)]
struct Holes {
    bits: [u64; WORDS],
    count: u32,
    /// Where the page stands in the list of its class.
    at: u32,
}

impl Holes {
    fn class(&self) -> Option<usize> {
        Some(self.count.checked_sub(1)? as usize * CLASSES / PAGE)
    }

    fn is_hole(&self, at: usize) -> bool {
        self.bits[at / 64] >> (at % 64) & 1 == 1
    }

    /// Where a chain may begin: at a run of many holes, if there is one.
    fn start_of_run(&self) -> Option<usize> {
        let first = |bits: &[u64; WORDS]| {
            let word = bits.iter().position(|bits| *bits != 0)?;
            Some(word * 64 + bits[word].trailing_zeros() as usize)
        };
        let mut bits = self.bits;
        let mut found = first(&bits)?;
        for shift in RUNS {
            bits.iter_mut().for_each(|bits| *bits &= *bits >> shift);
            let Some(longer) = first(&bits) else { break };
            found = longer;
        }
        Some(found)
    }

    /// Holes from `at` on without a gap, at most `most`.
    #[inline]
    fn run_at(&self, at: usize, most: usize) -> usize {
        let end = PAGE.min(at + most);
        let mut next = at;
        while next < end {
            let holes = (!(self.bits[next / 64] >> (next % 64))).trailing_zeros() as usize;
            let word_end = (next / 64 + 1) * 64;
            if next + holes < word_end {
                return (next + holes).min(end) - at;
            }
            next = word_end;
        }
        end - at
    }

    /// Makes so many slots holes, or none.
    #[inline]
    fn mark(&mut self, at: usize, len: usize, are_holes: bool) {
        let (mut next, end) = (at, at + len);
        while next < end {
            let word_end = ((next / 64 + 1) * 64).min(end);
            let bits = (u64::MAX >> (64 - (word_end - next))) << (next % 64);
            let word = &mut self.bits[next / 64];
            *word = if are_holes { *word | bits } else { *word & !bits };
            next = word_end;
        }
    }
}

/// Slots that are to be freed together. Chains go from their ends, so each slot is the one before the last.
#[derive(Debug, Default)]
pub(super) struct Freed {
    first: u32,
    len: usize,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            holes: Vec::new(),
            by_holes: Default::default(),
            absent: Vec::new(),
            growing: None,
            live: 0,
            slots: 0,
        }
    }
}

fn split(slot: u32) -> (usize, usize) {
    ((slot >> SHIFT) as usize, slot as usize & MASK)
}

fn joined(page: u32, at: usize) -> u32 {
    page << SHIFT | at as u32
}

impl<T: Default> Pages<T> {
    /// Slots that are in use.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// One past the highest slot that may be in use.
    pub(super) fn end(&self) -> u32 {
        joined(self.pages.len() as u32, 0)
    }

    /// What stands in a slot that is in use.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> &T {
        let (page, at) = split(slot);
        &self.pages[page][at]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut T {
        let (page, at) = split(slot);
        &mut self.pages[page][at]
    }

    /// What stands in a slot, which need not be there; a free one holds the default.
    #[inline]
    pub(super) fn peek(&self, slot: u32) -> Option<&T> {
        let (page, at) = split(slot);
        self.pages.get(page)?.get(at)
    }

    /// The slots from `slot` to the end of its page.
    #[inline]
    pub(super) fn rest_of_page(&self, slot: u32) -> &[T] {
        let (page, at) = split(slot);
        self.pages.get(page).and_then(|page| page.get(at..)).unwrap_or_default()
    }

    /// So many slots of one page, from `slot` on.
    #[inline]
    pub(super) fn run_mut(&mut self, slot: u32, len: usize) -> &mut [T] {
        let (page, at) = split(slot);
        &mut self.pages[page][at..at + len]
    }

    /// Whether a slot is in use.
    #[inline]
    pub(super) fn is_live(&self, slot: u32) -> bool {
        let (page, at) = split(slot);
        self.pages.get(page).is_some_and(|page| at < page.len()) && !self.holes[page].is_hole(at)
    }

    /// The slots in use, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let used = |(page, slots): (usize, &'_ Vec<T>)| (page, slots.len());
        let pages: Vec<(usize, usize)> = self.pages.iter().enumerate().map(used).collect();
        pages.into_iter().flat_map(move |(page, len)| {
            (0..len).filter_map(move |at| {
                let is_hole = self.holes[page].is_hole(at);
                (!is_hole).then(|| (joined(page as u32, at), &self.pages[page][at]))
            })
        })
    }

    /// Puts `value` in a free slot: the one after `before` if it is free.
    #[inline]
    pub(super) fn add_after(&mut self, before: u32, value: T) -> u32 {
        let (slot, _) = self.claim_after(before, 1);
        *self.get_mut(slot) = value;
        slot
    }

    /// Puts `value` in a free slot.
    pub(super) fn add(&mut self, value: T) -> u32 {
        let (slot, _) = self.claim(1);
        *self.get_mut(slot) = value;
        slot
    }

    /// Takes free slots that follow one another, at least one and at most `most`: those after `before` if they are
    /// free. They hold the default. Says the first, and how many.
    #[inline]
    pub(super) fn claim_after(&mut self, before: u32, most: usize) -> (u32, usize) {
        let slot = before.wrapping_add(1);
        let (page, at) = split(slot);
        let Some(used) = self.pages.get(page).map(Vec::len) else { return self.claim(most) };
        if at < used {
            if self.holes[page].is_hole(at) {
                return self.fill(page, at, most);
            }
        } else if at == used && self.growing == Some(page as u32) {
            return self.grow(page, most);
        }
        self.claim(most)
    }

    /// Takes free slots that follow one another, at least one and at most `most`. They hold the default. Says the
    /// first, and how many.
    fn claim(&mut self, most: usize) -> (u32, usize) {
        let may_grow = self.slots < self.live + self.live / 8 + SPARE;
        let from = if may_grow { MANY } else { 0 };
        if let Some(page) = self.by_holes[from..].iter().rev().find_map(|pages| pages.last().copied())
            && let Some(at) = self.holes[page as usize].start_of_run()
        {
            return self.fill(page as usize, at, most);
        }
        let page = self.growing.or_else(|| self.absent.pop()).unwrap_or_else(|| {
            self.pages.push(Vec::new());
            self.holes.push(Holes::default());
            self.pages.len() as u32 - 1
        });
        self.growing = Some(page);
        self.grow(page as usize, most)
    }

    /// Takes holes from `at` on.
    #[inline]
    fn fill(&mut self, page: usize, at: usize, most: usize) -> (u32, usize) {
        let holes = &mut self.holes[page];
        let len = holes.run_at(at, most);
        holes.mark(at, len, false);
        let count = holes.count - len as u32;
        self.set_holes(page, count);
        self.live += len;
        (joined(page as u32, at), len)
    }

    /// Takes slots of the page that is not used to its end.
    #[inline]
    fn grow(&mut self, page: usize, most: usize) -> (u32, usize) {
        let slots = &mut self.pages[page];
        let at = slots.len();
        let len = most.min(PAGE - at);
        if at + len > slots.capacity() {
            // A first page grows with what it holds; later ones are filled soon.
            let room = if self.live < PAGE { at.max(ROOM_MIN).max(len) } else { PAGE };
            slots.reserve_exact(room.min(PAGE - at));
        }
        slots.resize_with(at + len, T::default);
        self.live += len;
        self.slots += len;
        if at + len == PAGE {
            self.growing = None;
        }
        (joined(page as u32, at), len)
    }

    /// Changes how many holes a page has.
    #[inline]
    fn set_holes(&mut self, page: usize, count: u32) {
        let holes = &mut self.holes[page];
        let old = holes.class();
        holes.count = count;
        let new = holes.class();
        if old == new {
            return;
        }
        if let Some(class) = old {
            let at = holes.at;
            self.by_holes[class].swap_remove(at as usize);
            if let Some(moved) = self.by_holes[class].get(at as usize) {
                self.holes[*moved as usize].at = at;
            }
        }
        if let Some(class) = new {
            self.holes[page].at = self.by_holes[class].len() as u32;
            self.by_holes[class].push(page as u32);
        }
    }

    /// Frees a slot that is in use, and gives what stood there.
    pub(super) fn remove(&mut self, slot: u32) -> T {
        let value = std::mem::take(self.get_mut(slot));
        self.give_back(slot, 1);
        value
    }

    /// Frees slots of one page that follow one another, that are in use and hold the default already.
    #[inline]
    pub(super) fn give_back(&mut self, slot: u32, len: usize) {
        let (page, at) = split(slot);
        let used = self.pages[page].len();
        let holes = &mut self.holes[page];
        self.live -= len;
        let count = holes.count + len as u32;
        if (count as usize) < used {
            holes.mark(at, len, true);
            return self.set_holes(page, count);
        }
        holes.bits = [0; WORDS];
        self.set_holes(page, 0);
        self.slots -= used;
        if self.growing == Some(page as u32) {
            // Its room stays: what comes next goes there.
            self.pages[page].clear();
        } else {
            self.pages[page] = Vec::new();
            self.absent.push(page as u32);
        }
    }

    /// Frees a slot that is in use and holds the default already, at the latest with [`Pages::flush`]: slots that
    /// follow one another are freed together.
    #[inline]
    pub(super) fn give_back_soon(&mut self, freed: &mut Freed, slot: u32) {
        if freed.len > 0 && slot.wrapping_add(1) == freed.first && freed.first as usize & MASK != 0 {
            freed.first = slot;
            freed.len += 1;
            return;
        }
        self.flush(freed);
        *freed = Freed { first: slot, len: 1 };
    }

    /// Frees the slots that are to be freed soon.
    pub(super) fn flush(&mut self, freed: &mut Freed) {
        if freed.len > 0 {
            self.give_back(freed.first, freed.len);
            freed.len = 0;
        }
    }

    /// Whether more than half of the memory is for slots that are free, so that moving all slots together is worth
    /// it: that takes as long as it took to free them.
    pub(super) fn is_sparse(&self) -> bool {
        self.slots + 16 * self.pages.len() > 2 * self.live + 8 * PAGE
    }

    /// Bytes on the heap, without what the values own.
    pub(super) fn heap_bytes(&self) -> usize {
        let slots: usize = self.pages.iter().map(Vec::capacity).sum();
        let listed: usize = self.by_holes.iter().map(Vec::capacity).sum();
        slots * size_of::<T>()
            + self.pages.capacity() * size_of::<Vec<T>>()
            + self.holes.capacity() * size_of::<Holes>()
            + (self.absent.capacity() + listed) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// What is done to pages, by what is in use at the time.
    #[derive(Clone, Debug)]
    enum Step {
        /// So many slots after the one of that rank among those in use.
        Claim(usize, usize),
        /// Frees that many, from the one of that rank downward.
        Free(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (any::<usize>(), 1..80_usize).prop_map(|(rank, most)| Step::Claim(rank, most)),
            (any::<usize>(), 1..150_usize).prop_map(|(rank, most)| Step::Free(rank, most)),
        ]
    }

    proptest! {
        #[test]
        fn slots_keep_what_they_hold_and_free_ones_hold_nothing(steps in vec(step(), 1..300)) {
            let mut pages = Pages::<u64>::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut next = 1;
            for step in steps {
                match step {
                    Step::Claim(rank, most) => {
                        let before = model.keys().nth(rank % (model.len() + 1)).copied().unwrap_or(u32::MAX);
                        let (first, len) = pages.claim_after(before, most);
                        prop_assert!((1..=most).contains(&len));
                        for slot in first..first + len as u32 {
                            prop_assert_eq!(*pages.get(slot), 0);
                            *pages.get_mut(slot) = next;
                            prop_assert_eq!(model.insert(slot, next), None);
                            next += 1;
                        }
                    }
                    Step::Free(rank, most) => {
                        let from = rank % (model.len() + 1);
                        let slots: Vec<u32> = model.keys().skip(from).take(most).rev().copied().collect();
                        let mut freed = Freed::default();
                        for slot in slots {
                            *pages.get_mut(slot) = 0;
                            pages.give_back_soon(&mut freed, slot);
                            model.remove(&slot);
                        }
                        pages.flush(&mut freed);
                    }
                }
                prop_assert_eq!(pages.len(), model.len());
                let found: BTreeMap<u32, u64> = pages.iter().map(|(slot, value)| (slot, *value)).collect();
                prop_assert_eq!(&found, &model);
                let all = 0..pages.end();
                prop_assert!(all.clone().all(|slot| pages.is_live(slot) == model.contains_key(&slot)));
                let free = all.filter(|slot| !model.contains_key(slot));
                prop_assert!(free.filter_map(|slot| pages.peek(slot)).all(|value| *value == 0));
            }
            let slots: Vec<u32> = model.keys().rev().copied().collect();
            for slot in slots {
                prop_assert_eq!(Some(pages.remove(slot)), model.remove(&slot));
            }
            prop_assert_eq!((pages.len(), pages.pages.iter().filter(|page| !page.is_empty()).count()), (0, 0));
        }
    }

    #[test]
    fn chains_stay_together_while_they_come_and_go() {
        let mut pages = Pages::<u64>::default();
        let mut chains = std::collections::VecDeque::new();
        let mut pieces = 0;
        for round in 0..20_000_usize {
            // Chains of 5 to 30 blocks, the oldest dropped once there are 1,000.
            let mut left = 5 + round * 7 % 26;
            let mut chain = Vec::new();
            while left > 0 {
                let (first, len) = pages.claim_after(chain.last().copied().unwrap_or(u32::MAX), left);
                chain.extend(first..first + len as u32);
                left -= len;
                pieces += 1;
            }
            chains.push_back(chain);
            if chains.len() > 1_000 {
                let mut freed = Freed::default();
                for slot in chains.pop_front().into_iter().flatten().rev() {
                    pages.give_back_soon(&mut freed, slot);
                }
                pages.flush(&mut freed);
            }
        }
        assert!(pieces < 2 * 20_000, "{pieces} pieces of 20,000 chains");
        assert!(pages.slots < pages.len() + pages.len() / 4, "{} slots for {}", pages.slots, pages.len());
    }
}
