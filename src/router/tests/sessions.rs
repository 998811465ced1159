//! What a session does about pages, answers, silence and two that speak.

use std::time::Duration;

use crate::codec::{Page, Refusal, ReplayRequest};
use crate::event::EventId;

use super::super::{Action, Freshness, Limits, Session};
use super::{answer, frame, heartbeat, nonce, of, page, place};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What actions there were, in short.
fn told(actions: Vec<Action>) -> Vec<String> {
    let word = |action| match action {
        Action::Clear => "clear".into(),
        Action::Apply(page, after) => format!("apply {} after {after}", page.header.next - 1),
        Action::Ask(request, _) => format!("ask {}", request.from),
        Action::Compare(id, digest) => format!("compare {id} {digest}"),
        Action::Tell(notice) => format!("{notice:?}"),
    };
    actions.into_iter().map(word).collect()
}

/// A session that holds all up to an id, and heard so at time 0.
fn caught_up(id: EventId) -> Session {
    let mut session = Session::at(Limits::default(), Some(place(3, id)));
    assert_eq!(session.freshness(), Freshness::Stale, "nothing was heard yet");
    assert_eq!(told(session.live(at(0), heartbeat(id))), ["Up"]);
    assert_eq!(session.freshness(), Freshness::Exact);
    session
}

/// The question that a session asks when it learns that it lags.
fn lagging(session: &mut Session, now: u64, head: EventId) -> (ReplayRequest, u64) {
    match session.live(at(now), heartbeat(head)).pop() {
        Some(Action::Ask(request, number)) => (request, number),
        other => panic!("no question but {other:?}"),
    }
}

#[test]
fn a_new_stream_is_rebuilt_and_what_came_meanwhile_follows() {
    let mut session = Session::new(Limits::default());
    assert_eq!((session.freshness(), session.next_tick()), (Freshness::Reset, None));
    assert_eq!(told(session.live(at(0), of(100..=110))), ["Up", "ask 0"]);
    assert_eq!(told(session.live(at(10), of(111..=120))), [""; 0], "one question at a time");
    let mut first = answer(page(vec![frame(2, 3..=9, 0)], 10), true, false);
    first.header.generation = 2;
    let mut actions = session.answered(at(20), 0, 1, Some(Ok(first)));
    let Some(Action::Ask(request, 2)) = actions.pop() else { panic!("it goes on") };
    assert_eq!((request.from, request.epoch, request.nonce), (10, Some(3), Some(nonce(3))));
    assert_eq!(request.generation, Some(2));
    assert_eq!(told(actions), ["clear", "Reset", "apply 9 after 0"]);
    assert_eq!(session.freshness(), Freshness::Reset, "half a state is none");
    let mut last = answer(page(vec![frame(0, 100..=105, 99)], 106), false, true);
    last.header.digest = Some((105, 5));
    let actions = session.answered(at(30), 0, 2, Some(Ok(last)));
    assert_eq!(
        told(actions),
        ["apply 105 after 9", "compare 105 5", "apply 110 after 105", "apply 120 after 110", "CaughtUp"]
    );
    assert_eq!((session.freshness(), session.place()), (Freshness::Exact, Some(place(3, 120))));
}

#[test]
fn a_gap_is_asked_for_from_where_the_follower_is() {
    let mut session = caught_up(99);
    assert_eq!(told(session.live(at(10), of(111..=120))), ["Gap", "ask 100"]);
    assert_eq!(session.freshness(), Freshness::CatchingUp);
    let missed = answer(of(100..=110), false, true);
    assert_eq!(
        told(session.answered(at(20), 0, 7, Some(Ok(missed.clone())))),
        [""; 0],
        "to another question"
    );
    let actions = session.answered(at(20), 0, 1, Some(Ok(missed)));
    assert_eq!(told(actions), ["apply 110 after 99", "apply 120 after 110", "CaughtUp"]);
}

#[test]
fn answers_that_do_not_come_are_asked_for_again_ever_more_slowly() {
    let limits = Limits::default();
    let mut session = caught_up(99);
    let (_, mut number) = lagging(&mut session, 1, 200);
    let mut now = at(1);
    let mut pauses = Vec::new();
    for chance in [0, 1023, 0, 0, 0, 0, 0, 0, 0, 0] {
        session.live(now, heartbeat(200));
        let failed = Refusal::Failed { message: "x".into(), retry: true };
        assert_eq!(told(session.answered(now, chance, number, Some(Err(failed)))), [""; 0]);
        let due = session.ask_due().expect("it asks again");
        pauses.push((due - now).as_millis());
        session.live(due, heartbeat(200));
        number += 1;
        now = due;
    }
    assert_eq!(pauses, [100, 100, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
    // No answer at all counts as one that failed.
    assert!(told(session.tick(now + limits.answer_wait_max - at(1), 0)).is_empty());
    session.live(now + limits.answer_wait_max, heartbeat(200));
    session.tick(now + limits.answer_wait_max, 0);
    assert_eq!(session.ask_due(), Some(now + limits.answer_wait_max + limits.pause_max));
}

#[test]
fn a_busy_worker_is_asked_when_it_says_and_one_that_knows_less_is_asked_for_all() {
    let mut session = caught_up(99);
    let (_, number) = lagging(&mut session, 1, 200);
    session.answered(at(10), 0, number, Some(Err(Refusal::Busy { retry_after_ms: 700 })));
    assert_eq!(session.ask_due(), Some(at(710)));
    assert_eq!(told(session.tick(at(710), 0)), ["ask 100"]);
    session.answered(at(720), 0, number + 1, Some(Err(Refusal::Ahead { head: 50 })));
    let due = session.ask_due().unwrap();
    assert_eq!(told(session.tick(due, 0)), ["ask 0"]);
}

#[test]
fn silence_makes_a_stream_stale_and_then_gone() {
    let mut session = caught_up(99);
    assert_eq!(session.next_tick(), Some(at(5_000)));
    assert!(session.tick(at(4_999), 0).is_empty());
    assert_eq!(told(session.tick(at(5_000), 0)), ["Stale"]);
    assert_eq!((session.freshness(), session.next_tick()), (Freshness::Stale, Some(at(60_000))));
    assert!(session.tick(at(59_999), 0).is_empty());
    assert_eq!(told(session.live(at(59_999), heartbeat(99))), ["Up"]);
    assert_eq!(told(session.tick(at(119_999), 0)), ["clear", "Gone"]);
    assert_eq!((session.place(), session.freshness()), (None, Freshness::Reset));
    assert_eq!(told(session.live(at(130_000), heartbeat(99))), ["Up", "ask 0"], "from nothing");
}

#[test]
fn what_is_kept_while_an_answer_is_waited_for_has_a_limit() {
    let size = of(201..=201).len();
    let limits = Limits { kept_bytes_max: 3 * size, ..Limits::default() };
    let mut session = Session::at(limits, Some(place(3, 199)));
    assert_eq!(told(session.live(at(0), of(201..=201))), ["Up", "Gap", "ask 200"]);
    for id in 202..=210 {
        session.live(at(1), of(id..=id));
    }
    // The oldest went: what lies between is asked for.
    let actions = session.answered(at(2), 0, 1, Some(Ok(answer(of(200..=205), false, true))));
    assert_eq!(told(actions), ["apply 205 after 199", "Gap", "ask 206"]);
    let actions = session.answered(at(3), 0, 2, Some(Ok(answer(of(206..=210), false, true))));
    assert_eq!(told(actions).last().map(String::as_str), Some("CaughtUp"));
}

#[test]
fn two_that_speak_side_by_side_are_not_believed_until_one_is_silent() {
    let mut session = caught_up(99);
    let other = || {
        let mut page = heartbeat(99);
        page.header.nonce = 1;
        page
    };
    let mut seen = Vec::new();
    for second in 1..=4 {
        seen.extend(told(session.live(at(1_000 * second), heartbeat(99))));
        seen.extend(told(session.live(at(1_000 * second + 1), other())));
    }
    assert!(seen.ends_with(&["clear".into(), "Conflict".into()]), "{seen:?}");
    assert_eq!((session.freshness(), session.place()), (Freshness::Reset, None));
    assert!(session.live(at(5_000), heartbeat(99)).is_empty());
    assert!(session.live(at(9_000), heartbeat(99)).is_empty());
    assert_eq!(told(session.live(at(9_001), heartbeat(99))), ["ask 0"]);
}

#[test]
fn a_state_that_is_not_the_worker_s_is_rebuilt() {
    let mut session = caught_up(99);
    let mut beat = heartbeat(99);
    beat.header.digest = Some((99, 7));
    assert_eq!(told(session.live(at(1), beat.clone())), ["compare 99 7"]);
    beat.header.digest = Some((98, 7));
    assert_eq!(told(session.live(at(2), beat)), [""; 0], "of another event");
    assert_eq!(told(session.mismatch(at(3))), ["Mismatch", "ask 0"]);
    let wrong = |page: Page| answer(page, false, true);
    assert_eq!(told(session.answered(at(4), 0, 1, Some(Ok(wrong(of(100..=110)))))), ["Misfit"], "no reset");
}
