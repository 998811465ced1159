//! Slots in pages of fixed size: growing copies nothing, neighbours stay neighbours, and a page that is empty goes
//! back to the allocator.
//!
//! A slot keeps its number until it is freed. Free slots are used before new ones are made, but the slot after a
//! given one is preferred where it is free, so that chains lie in order.

/// Slots of a page.
pub(super) const PAGE: usize = 512;
const SHIFT: u32 = PAGE.trailing_zeros();
const MASK: usize = PAGE - 1;
const WORDS: usize = PAGE / 64;

/// First room of a page, which doubles up to [`PAGE`]: a small index is not to take whole pages.
const ROOM_MIN: usize = 8;

#[derive(Debug)]
pub(super) struct Pages<T> {
    /// Each as long as it was used so far; empty if the page was given back.
    pages: Vec<Vec<T>>,
    holes: Vec<Holes>,
    /// Pages that may have holes.
    holed: Vec<u32>,
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
    /// Whether the page stands in `holed`.
    listed: bool,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            holes: Vec::new(),
            holed: Vec::new(),
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

    /// Whether a slot is in use.
    pub(super) fn is_live(&self, slot: u32) -> bool {
        let (page, at) = split(slot);
        self.pages.get(page).is_some_and(|page| at < page.len())
            && self.holes[page].bits[at / 64] >> (at % 64) & 1 == 0
    }

    /// The slots in use, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let used = |(page, slots): (usize, &'_ Vec<T>)| (page, slots.len());
        let pages: Vec<(usize, usize)> = self.pages.iter().enumerate().map(used).collect();
        pages.into_iter().flat_map(move |(page, len)| {
            (0..len).filter_map(move |at| {
                let is_hole = self.holes[page].bits[at / 64] >> (at % 64) & 1 == 1;
                (!is_hole).then(|| (joined(page as u32, at), &self.pages[page][at]))
            })
        })
    }

    /// Puts `value` in a free slot: the one after `before` if it is free.
    pub(super) fn add_after(&mut self, before: u32, value: T) -> u32 {
        let slot = before.wrapping_add(1);
        let (page, at) = split(slot);
        let Some(len) = self.pages.get(page).map(Vec::len) else { return self.add(value) };
        if at < len {
            if self.holes[page].bits[at / 64] >> (at % 64) & 1 == 0 {
                return self.add(value);
            }
            self.fill(page, at, value);
            return slot;
        }
        if at == len && self.growing == Some(page as u32) {
            return self.push(page, value);
        }
        self.add(value)
    }

    /// Puts `value` in a free slot.
    pub(super) fn add(&mut self, value: T) -> u32 {
        while let Some(page) = self.holed.last().copied() {
            let holes = &mut self.holes[page as usize];
            if let Some(word) = holes.bits.iter().position(|word| *word != 0) {
                let at = word * 64 + holes.bits[word].trailing_zeros() as usize;
                self.fill(page as usize, at, value);
                return joined(page, at);
            }
            holes.listed = false;
            self.holed.pop();
        }
        if let Some(page) = self.growing {
            return self.push(page as usize, value);
        }
        let page = self.absent.pop().unwrap_or_else(|| {
            self.pages.push(Vec::new());
            self.holes.push(Holes::default());
            self.pages.len() as u32 - 1
        });
        self.growing = Some(page);
        self.push(page as usize, value)
    }

    fn fill(&mut self, page: usize, at: usize, value: T) {
        let holes = &mut self.holes[page];
        holes.bits[at / 64] &= !(1 << (at % 64));
        holes.count -= 1;
        self.live += 1;
        self.pages[page][at] = value;
    }

    fn push(&mut self, page: usize, value: T) -> u32 {
        let slots = &mut self.pages[page];
        let at = slots.len();
        if at == slots.capacity() {
            // A first page grows with what it holds; later ones are filled soon.
            let room = if self.live < PAGE { at.max(ROOM_MIN) } else { PAGE };
            slots.reserve_exact(room.min(PAGE - at));
        }
        slots.push(value);
        self.live += 1;
        self.slots += 1;
        if slots.len() == PAGE {
            self.growing = None;
        }
        joined(page as u32, at)
    }

    /// Frees a slot that is in use, and gives what stood there.
    pub(super) fn remove(&mut self, slot: u32) -> T {
        let (page, at) = split(slot);
        let value = std::mem::take(&mut self.pages[page][at]);
        let len = self.pages[page].len();
        let holes = &mut self.holes[page];
        holes.bits[at / 64] |= 1 << (at % 64);
        holes.count += 1;
        self.live -= 1;
        if holes.count as usize == len {
            holes.bits = [0; WORDS];
            holes.count = 0;
            self.slots -= len;
            if self.growing == Some(page as u32) {
                // Its room stays: what comes next goes there.
                self.pages[page].clear();
            } else {
                self.pages[page] = Vec::new();
                self.absent.push(page as u32);
            }
        } else if !holes.listed {
            holes.listed = true;
            self.holed.push(page as u32);
        }
        value
    }

    /// Whether more than half of the memory is for slots that are free, so that moving all slots together is worth
    /// it: that takes as long as it took to free them.
    pub(super) fn is_sparse(&self) -> bool {
        self.slots + 16 * self.pages.len() > 2 * self.live + 8 * PAGE
    }

    /// Bytes on the heap, without what the values own.
    pub(super) fn heap_bytes(&self) -> usize {
        let slots: usize = self.pages.iter().map(Vec::capacity).sum();
        slots * size_of::<T>()
            + self.pages.capacity() * size_of::<Vec<T>>()
            + self.holes.capacity() * size_of::<Holes>()
            + (self.holed.capacity() + self.absent.capacity()) * size_of::<u32>()
    }
}
