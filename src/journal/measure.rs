//! Where a log's bytes and times lie: what a limit means as an id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::event::EventId;
use crate::store::{LOG, Store, Tree};

use super::clock::now_us;
use super::rank::Rank;
use super::reader::Reader;
use super::recover::parse_frame;
use super::retention::{Marks, Retention};
use super::rows::frame_key;

/// Measures a rank's log, from what is compacted up to an id.
pub(crate) fn measure(
    store: &Arc<dyn Store>,
    rank: &Arc<Rank>,
    up_to: EventId,
    stop: &AtomicBool,
) -> Result<Marks> {
    let mut marks = Marks::default();
    let base = rank.view().base;
    let mut reader = Reader::new(Arc::clone(store), Arc::clone(rank), base + 1, true);
    while reader.position() <= up_to
        && !stop.load(Ordering::Relaxed)
        && let Some(frame) = reader.next_frame()?
    {
        let header = frame.frame().header();
        marks.push(header.last, frame.frame().as_bytes().len() as u64 + u64::from(header.payload_len));
    }
    Ok(marks)
}

/// The last id of the newest frame that was appended longer ago than `age`, if `slack` more than that has passed since
/// the oldest one that is kept.
pub(crate) fn older_than(
    store: &dyn Store,
    rank: &Rank,
    age: Duration,
    slack: Duration,
) -> Result<Option<EventId>> {
    let tree = Tree::Events { rank: rank.id().0, generation: LOG };
    let ago = |age: Duration| now_us().saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
    let limit = ago(age);
    let at = |id: EventId| -> Result<Option<(EventId, EventId, u64)>> {
        let Some((_, row)) = store.at_or_below(tree, &frame_key(id))? else { return Ok(None) };
        let frame = parse_frame(rank.id(), row)?;
        Ok(Some((frame.header().previous, frame.header().last, frame.header().appended_us)))
    };
    let (base, head) = (rank.view().base, rank.durable.get());
    let Some(oldest) = store.scan(tree, &frame_key(base + 1)).next().transpose()? else {
        return Ok(None);
    };
    let oldest = parse_frame(rank.id(), oldest.1)?;
    if oldest.header().appended_us > ago(age.saturating_add(slack)) {
        return Ok(None);
    }
    // Frames are in the order of their time, as far as clocks are.
    let (mut old, mut new) = (oldest.header().last, head + 1);
    while new - old > 1 {
        let middle = old + (new - old) / 2;
        match at(middle)? {
            Some((_, last, appended)) if appended <= limit => old = last.max(middle).min(new - 1),
            Some((previous, ..)) => new = (previous + 1).clamp(old + 1, middle),
            None => new = middle,
        }
    }
    Ok(Some(old))
}

/// The id up to which to compact so that no more than this is kept one by one; 0: all may stay.
pub(crate) fn horizon_for(store: &Arc<dyn Store>, rank: &Arc<Rank>, keep: &Retention) -> Result<EventId> {
    let head = rank.durable.get();
    let by_events = keep.keep_events.map(|keep| head.saturating_sub(keep));
    let by_age =
        keep.keep_age.map(|age| older_than(&**store, rank, age, Duration::ZERO)).transpose()?.flatten();
    let by_bytes = match keep.keep_bytes {
        Some(bytes) => measure(store, rank, head, &AtomicBool::new(false))?.up_to(bytes),
        None => None,
    };
    Ok(by_events.max(by_age).max(by_bytes).unwrap_or(0))
}
