//! Following one stream: what comes in, what is to be done. Pure: time and chance come in as arguments.
//!
//! The owner does what the actions say, in their order, and tells what comes of it. A session asks one question at a
//! time. While it waits for an answer, pages that were sent to all are kept, up to a limit; what does not fit is asked for
//! later. An answer counts only if it is to the newest question.

use std::collections::VecDeque;
use std::time::Duration;

use crate::codec::{Page, Refusal, ReplayRequest};
use crate::event::EventId;

use super::place::{Observed, Place};
use super::speakers::Speakers;

/// Limits of a session. The defaults are those of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A stream that was not heard of for so long is stale. Default 5 s.
    pub stale_after: Duration,
    /// ... and gone: what it held is dropped, and where the follower was. Default 60 s.
    pub gone_after: Duration,
    /// Longest wait for an answer. Default 5 s.
    pub answer_wait_max: Duration,
    /// Pause after a question without an answer; doubled with each in a row, and up to half of it shorter by chance.
    /// Default 100 ms.
    pub pause_min: Duration,
    /// Longest pause. Default 10 s.
    pub pause_max: Duration,
    /// Bytes of pages that are kept while an answer is waited for. Default 4 MiB.
    pub kept_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stale_after: Duration::from_secs(5),
            gone_after: Duration::from_secs(60),
            answer_wait_max: Duration::from_secs(5),
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(10),
            kept_bytes_max: 4 * 1024 * 1024,
        }
    }
}

/// What the owner is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forget what the stream holds.
    Clear,
    /// Fold the events of the page above this id.
    Apply(Page, EventId),
    /// Ask the worker, and give the answer with this number.
    Ask(ReplayRequest, u64),
    /// Compare the digest of what is held now with this one, of the worker's; call [`Session::mismatch`] if they differ.
    Compare(EventId, u128),
    /// Tell whoever wants to know.
    Tell(Notice),
}

/// What happened to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Notice {
    /// It was heard of for the first time, or again after it was stale or gone.
    Up,
    /// It was not heard of for a while: what is known of it may be old.
    Stale,
    /// It was not heard of for so long that it was dropped.
    Gone,
    /// It is rebuilt from the start.
    Reset,
    /// All that the worker had shown is known.
    CaughtUp,
    /// Events were missed, and are asked for.
    Gap,
    /// Two journals speak under its name, and both are alive.
    Conflict,
    /// What is held is not what the worker holds: it is rebuilt.
    Mismatch,
    /// An answer did not fit the question, and was dropped.
    Misfit,
}

/// How fresh the answers about a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// All that the worker showed is known.
    Exact,
    /// Some is still to come.
    CatchingUp,
    /// The worker was not heard of for a while.
    Stale,
    /// The stream is being rebuilt: what is known of it is no state.
    Reset,
}

/// A question that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    at: Duration,
}

/// The state of following one stream.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    place: Option<Place>,
    heard: Option<Duration>,
    is_stale: bool,
    asked: Option<Asked>,
    /// When to ask, if that has to be done.
    ask_at: Option<Duration>,
    questions: u64,
    failures: u32,
    kept: VecDeque<Page>,
    kept_bytes: usize,
    speakers: Speakers,
    is_in_conflict: bool,
}

impl Session {
    /// Of a stream of which nothing is known.
    pub fn new(limits: Limits) -> Self {
        Self::at(limits, None)
    }

    /// Of a stream of which all up to a place is known.
    pub fn at(limits: Limits, place: Option<Place>) -> Self {
        Self {
            limits,
            place,
            heard: None,
            is_stale: false,
            asked: None,
            ask_at: None,
            questions: 0,
            failures: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            speakers: Speakers::default(),
            is_in_conflict: false,
        }
    }

    /// Where it is.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// How fresh what is known is.
    pub fn freshness(&self) -> Freshness {
        match self.place {
            None | Some(Place { rebuilding: Some(_), .. }) => Freshness::Reset,
            Some(_) if self.is_stale || self.heard.is_none() => Freshness::Stale,
            Some(_) if self.asked.is_some() || self.ask_at.is_some() => Freshness::CatchingUp,
            Some(_) => Freshness::Exact,
        }
    }

    #[cfg(test)]
    pub(super) fn ask_due(&self) -> Option<Duration> {
        self.ask_at
    }

    /// When [`Session::tick`] is to be called at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        let silence = self.heard.map(|heard| {
            heard + if self.is_stale { self.limits.gone_after } else { self.limits.stale_after }
        });
        let answer = self.asked.map(|asked| asked.at + self.limits.answer_wait_max);
        let ask = self.ask_at.filter(|_| self.asked.is_none());
        let conflict = self.speakers.next_forgotten(self.limits.stale_after).filter(|_| self.is_in_conflict);
        [silence, answer, ask, conflict].into_iter().flatten().min()
    }

    /// A page came that was sent to all.
    pub fn live(&mut self, now: Duration, page: Page) -> Vec<Action> {
        let mut actions = Vec::new();
        self.hear(now, &mut actions);
        self.speakers.hear(now, (page.header.journal, page.header.nonce));
        self.look_for_conflict(now, &mut actions);
        if self.is_in_conflict {
            return actions;
        }
        let is_rebuilding = self.place.is_some_and(|place| place.rebuilding.is_some());
        if self.asked.is_some() || self.ask_at.is_some() || is_rebuilding {
            self.keep(page);
        } else {
            self.observe(now, page, &mut actions);
        }
        self.ask_if_due(now, &mut actions);
        actions
    }

    /// An answer came, or there will be none (`None`). `chance` is any number, drawn anew.
    pub fn answered(
        &mut self,
        now: Duration,
        chance: u64,
        number: u64,
        answer: Option<Result<Page, Refusal>>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.asked.is_none_or(|asked| asked.number != number) {
            return actions;
        }
        self.asked = None;
        match answer {
            Some(Ok(page)) => {
                self.hear(now, &mut actions);
                self.take(now, chance, page, &mut actions);
            }
            // It has less than was seen of it: only a stream of its own explains that.
            Some(Err(Refusal::Ahead { .. })) => {
                self.place = None;
                self.retry(now, chance, None);
            }
            Some(Err(Refusal::Busy { retry_after_ms })) => {
                self.retry(now, chance, Some(Duration::from_millis(retry_after_ms)));
            }
            Some(Err(_)) | None => self.retry(now, chance, None),
        }
        self.ask_if_due(now, &mut actions);
        actions
    }

    /// Time went by. `chance` is any number, drawn anew.
    pub fn tick(&mut self, now: Duration, chance: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.asked.is_some_and(|asked| now >= asked.at + self.limits.answer_wait_max) {
            self.asked = None;
            self.retry(now, chance, None);
        }
        if let Some(heard) = self.heard {
            if now >= heard + self.limits.gone_after {
                // Questions are counted on, so that no old answer counts.
                *self = Self { questions: self.questions, ..Self::new(self.limits) };
                return vec![Action::Clear, Action::Tell(Notice::Gone)];
            }
            if !self.is_stale && now >= heard + self.limits.stale_after {
                self.is_stale = true;
                actions.push(Action::Tell(Notice::Stale));
            }
        }
        self.look_for_conflict(now, &mut actions);
        self.ask_if_due(now, &mut actions);
        actions
    }

    /// What is held is not what the worker holds.
    pub fn mismatch(&mut self, now: Duration) -> Vec<Action> {
        self.place = None;
        self.asked = None;
        self.ask_at = Some(now);
        let mut actions = vec![Action::Tell(Notice::Mismatch)];
        self.ask_if_due(now, &mut actions);
        actions
    }

    fn hear(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.heard.is_none() || self.is_stale {
            actions.push(Action::Tell(Notice::Up));
        }
        (self.heard, self.is_stale) = (Some(now), false);
    }

    /// Two journals under one name: neither is believed until one of them is silent.
    fn look_for_conflict(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.speakers.forget(now, self.limits.stale_after);
        let was = std::mem::replace(&mut self.is_in_conflict, self.speakers.are_in_conflict());
        if self.is_in_conflict && !was {
            (self.place, self.asked, self.ask_at) = (None, None, None);
            self.kept.clear();
            self.kept_bytes = 0;
            actions.extend([Action::Clear, Action::Tell(Notice::Conflict)]);
        } else if was && !self.is_in_conflict {
            self.ask_at = Some(now);
        }
    }

    fn observe(&mut self, now: Duration, page: Page, actions: &mut Vec<Action>) {
        let Some(place) = self.place else {
            self.ask_at = Some(now);
            return self.keep(page);
        };
        let digest = page.header.digest;
        match place.observe(&page) {
            Observed::Nothing(at) => self.place = Some(at),
            Observed::Contiguous(at) => {
                self.place = Some(at);
                actions.push(Action::Apply(page, place.id));
            }
            Observed::Gap { .. } => {
                actions.push(Action::Tell(Notice::Gap));
                self.ask_at = Some(now);
                self.keep(page);
            }
            Observed::OtherEpoch => {
                self.ask_at = Some(now);
                self.keep(page);
            }
        }
        self.compare(digest, actions);
    }

    fn compare(&self, digest: Option<(EventId, u128)>, actions: &mut Vec<Action>) {
        if let (Some(place), Some((id, digest))) = (self.place, digest)
            && place.id == id
            && place.rebuilding.is_none()
            && self.ask_at.is_none()
        {
            actions.push(Action::Compare(id, digest));
        }
    }

    /// Takes an answer.
    fn take(&mut self, now: Duration, chance: u64, page: Page, actions: &mut Vec<Action>) {
        let before = self.place.filter(|_| !page.header.flags.reset);
        let after = match before {
            Some(place) => place.advance(&page).ok(),
            None => Place::reset(&page).ok().filter(|_| page.header.flags.reset),
        };
        let Some(place) = after else {
            actions.push(Action::Tell(Notice::Misfit));
            self.place = None;
            return self.retry(now, chance, None);
        };
        self.failures = 0;
        if before.is_none() {
            actions.extend([Action::Clear, Action::Tell(Notice::Reset)]);
        }
        self.place = Some(place);
        let (is_done, digest) = (page.header.flags.done, page.header.digest);
        if !page.frames.is_empty() {
            actions.push(Action::Apply(page, before.map_or(0, |place| place.id)));
        }
        if !is_done {
            self.ask_at = Some(now);
            return;
        }
        self.compare(digest, actions);
        self.take_kept(now, actions);
        if self.ask_at.is_none() {
            actions.push(Action::Tell(Notice::CaughtUp));
        }
    }

    /// Takes the pages that were kept, up to the first that does not follow.
    fn take_kept(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while self.ask_at.is_none()
            && let Some(page) = self.kept.pop_front()
        {
            self.kept_bytes -= page.len();
            // One that was sent before the answer is no news, and no gap.
            if self.place.is_some_and(|place| place.observe(&page) == Observed::OtherEpoch) {
                continue;
            }
            self.observe(now, page, actions);
        }
    }

    /// Keeps a page for later. The oldest ones go if they are too many: what they held is in the answer.
    fn keep(&mut self, page: Page) {
        self.kept_bytes += page.len();
        self.kept.push_back(page);
        while self.kept_bytes > self.limits.kept_bytes_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.len();
        }
    }

    fn retry(&mut self, now: Duration, chance: u64, after: Option<Duration>) {
        let doubled = self.limits.pause_min.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let pause = doubled.min(self.limits.pause_max);
        let jittered = pause - pause.mul_f64((chance % 1024) as f64 / 2048.0);
        self.ask_at =
            Some(now + after.map_or(jittered, |after| after.max(jittered).min(self.limits.pause_max)));
    }

    fn ask_if_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.asked.is_some() || self.ask_at.is_none_or(|at| at > now) {
            return;
        }
        self.ask_at = None;
        self.questions += 1;
        self.asked = Some(Asked { number: self.questions, at: now });
        let request = match self.place {
            None => ReplayRequest::default(),
            Some(place) => ReplayRequest {
                from: place.id + 1,
                epoch: Some(place.epoch),
                nonce: Some(place.nonce),
                generation: place.rebuilding,
                ..ReplayRequest::default()
            },
        };
        actions.push(Action::Ask(request, self.questions));
    }
}
