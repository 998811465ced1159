//! Where a follower is, and what pages mean there.

use super::super::{Observed, Place};
use super::{JOURNAL, answer, frame, heartbeat, of, page, place};

#[test]
fn only_what_goes_on_exactly_where_the_follower_is_is_taken() {
    let at = |id| place(3, id);
    assert_eq!(at(99).observe(&of(100..=110)), Observed::Contiguous(at(110)));
    assert_eq!(at(104).observe(&of(100..=110)), Observed::Contiguous(at(110)), "a part of it is known");
    assert_eq!(at(110).observe(&of(100..=110)), Observed::Nothing(at(110)), "it came twice");
    assert_eq!(at(200).observe(&of(100..=110)), Observed::Nothing(at(200)), "it was late");
    assert_eq!(at(98).observe(&of(100..=110)), Observed::Gap { until: 110 });
    let broken = page(vec![frame(0, 100..=105, 99), frame(0, 107..=110, 106)], 111);
    assert_eq!(at(99).observe(&broken), Observed::Gap { until: 110 });
    assert_eq!(at(110).observe(&heartbeat(110)), Observed::Nothing(at(110)));
    assert_eq!(at(109).observe(&heartbeat(110)), Observed::Gap { until: 110 });
    assert_eq!(at(111).observe(&heartbeat(110)), Observed::Nothing(at(111)));
    // Ids jump where some were given up; the chain of frames says so.
    let jump = page(vec![frame(0, 1_000..=1_001, 110)], 1_002);
    assert_eq!(at(110).observe(&jump), Observed::Contiguous(at(1_001)));
    assert_eq!(at(109).observe(&jump), Observed::Gap { until: 1_001 });
}

#[test]
fn a_follower_of_an_earlier_epoch_goes_on_only_with_what_was_kept() {
    let ids = || of(81..=90);
    assert_eq!(place(2, 80).observe(&ids()), Observed::Contiguous(place(3, 90)));
    assert_eq!(place(2, 81).observe(&ids()), Observed::OtherEpoch, "it saw an event that was lost");
    assert_eq!(place(1, 50).observe(&ids()), Observed::Gap { until: 90 }, "the rest may be asked for");
    assert_eq!(place(1, 51).observe(&ids()), Observed::OtherEpoch);
    assert_eq!(place(4, 10).observe(&ids()), Observed::OtherEpoch, "an older folder came back");
    let other_nonce = Place { nonce: 1, ..place(2, 80) };
    assert_eq!(other_nonce.observe(&ids()), Observed::OtherEpoch);
    let other_journal = Place { journal: [8; 16], ..place(3, 80) };
    assert_eq!(other_journal.observe(&ids()), Observed::OtherEpoch);
}

#[test]
fn answers_go_on_where_the_follower_is_or_are_refused() {
    let log = |reset, done| answer(of(100..=110), reset, done);
    assert_eq!(place(2, 99).advance(&log(false, true)), Ok(place(3, 110)));
    assert_eq!(place(3, 99).advance(&answer(page(Vec::new(), 100), false, true)), Ok(place(3, 99)));
    for (have, page) in [
        (98, log(false, true)),
        (110, log(false, true)),
        // Events that are not in it are not passed over.
        (99, answer(page(Vec::new(), 111), false, true)),
        (99, answer(page(vec![frame(0, 100..=105, 99)], 111), false, true)),
    ] {
        let misfit = place(3, have).advance(&page).unwrap_err();
        assert_eq!(misfit.have, have);
    }
    let other_journal = Place { journal: [8; 16], ..place(3, 99) };
    assert!(other_journal.advance(&log(false, true)).is_err());
}

#[test]
fn a_reset_leads_through_the_history_to_the_log() {
    let mut first = answer(page(vec![frame(5, 3..=4, 0)], 5), true, false);
    first.header.generation = 5;
    let rebuilding = |id| Place { rebuilding: Some(5), ..place(3, id) };
    assert_eq!(Place::reset(&first), Ok(rebuilding(4)));
    let history = page(vec![frame(5, 9..=9, 4), frame(0, 101..=110, 100)], 111);
    assert_eq!(rebuilding(4).advance(&answer(history.clone(), false, false)), Ok(rebuilding(110)));
    assert_eq!(rebuilding(4).advance(&answer(history.clone(), false, true)), Ok(place(3, 110)));
    assert!(
        rebuilding(3).advance(&answer(history.clone(), false, true)).is_err(),
        "one of the history is missing"
    );
    assert!(place(3, 4).advance(&answer(history, false, true)).is_err(), "it did not ask for a history");
    // All was removed: nothing is left of what was compacted.
    let empty = answer(page(Vec::new(), 101), true, true);
    assert_eq!(Place::reset(&empty), Ok(Place { journal: JOURNAL, ..place(3, 100) }));
}
