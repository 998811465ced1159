//! A number that only rises and can be waited for, from threads and from tasks.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::event::EventId;

/// A watermark of one rank. Once stopped it rises no more, and whoever waits is told so.
#[derive(Debug)]
pub(crate) struct Watermark {
    level: Mutex<Level>,
    moved: Condvar,
    tasks: watch::Sender<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    id: EventId,
    stopped: bool,
}

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// The watermark is at or above the id.
    Yes,
    /// It will never be: the journal stopped.
    Stopped,
    /// It was not in time.
    TimedOut,
}

impl Watermark {
    pub(crate) fn new(id: EventId) -> Self {
        let level = Level { id, stopped: false };
        Self { level: Mutex::new(level), moved: Condvar::new(), tasks: watch::channel(level).0 }
    }

    pub(crate) fn get(&self) -> EventId {
        self.lock().id
    }

    pub(crate) fn raise(&self, id: EventId) {
        self.update(|level| level.id = level.id.max(id));
    }

    pub(crate) fn stop(&self) {
        self.update(|level| level.stopped = true);
    }

    fn update(&self, change: impl FnOnce(&mut Level)) {
        let mut level = self.lock();
        change(&mut level);
        // Under the lock, so that tasks see the levels in order too.
        self.tasks.send_replace(*level);
        self.moved.notify_all();
    }

    /// Blocks until the watermark is at or above `id`.
    pub(crate) fn wait(&self, id: EventId, timeout: Duration) -> Reached {
        let deadline = Instant::now() + timeout;
        let mut level = self.lock();
        loop {
            match *level {
                Level { id: at, .. } if at >= id => return Reached::Yes,
                Level { stopped: true, .. } => return Reached::Stopped,
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Reached::TimedOut;
            }
            level = self.moved.wait_timeout(level, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the watermark is at or above `id`, or stopped: never `TimedOut`.
    pub(crate) async fn reached(&self, id: EventId) -> Reached {
        let mut tasks = self.tasks.subscribe();
        match tasks.wait_for(|level| level.id >= id || level.stopped).await {
            Ok(level) if level.id >= id => Reached::Yes,
            _ => Reached::Stopped,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn threads_wait_for_the_level_they_need() {
        let mark = Arc::new(Watermark::new(4));
        assert_eq!(mark.wait(4, Duration::ZERO), Reached::Yes);
        assert_eq!(mark.wait(5, Duration::from_millis(1)), Reached::TimedOut);
        let waiter = std::thread::spawn({
            let mark = Arc::clone(&mark);
            move || mark.wait(7, Duration::from_secs(60))
        });
        mark.raise(6);
        mark.raise(5);
        assert_eq!(mark.get(), 6);
        mark.raise(7);
        assert_eq!(waiter.join().unwrap(), Reached::Yes);
        mark.stop();
        assert_eq!(mark.wait(8, Duration::from_secs(60)), Reached::Stopped);
        assert_eq!(mark.wait(7, Duration::ZERO), Reached::Yes);
    }

    #[tokio::test]
    async fn tasks_wait_for_the_level_they_need() {
        let mark = Arc::new(Watermark::new(0));
        let waiter = tokio::spawn({
            let mark = Arc::clone(&mark);
            async move { (mark.reached(2).await, mark.reached(3).await) }
        });
        mark.raise(1);
        mark.raise(2);
        mark.stop();
        assert_eq!(waiter.await.unwrap(), (Reached::Yes, Reached::Stopped));
    }
}
