//! From rounds to figures and rows, and the two forms they are printed in. Pure: no clock, no disk.

use std::fmt::Write;

use serde::Serialize;

use crate::jetstream::Publishing;
use crate::rounds::{Entrant, LATENCY_SYNCS_MAX, Round, Subject, Trial};
use crate::server::SyncInterval;
use crate::stats::{Quartiles, median};

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Wished for; missing it is no failure.
    Aim(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) | Self::Aim(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// A figure with its bar, if it has one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Over the rounds.
    pub(crate) value: Quartiles,
    pub(crate) bar: Option<Bar>,
    /// Whether the median meets the bar.
    pub(crate) met: Option<bool>,
}

/// The medians of one log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) window: u64,
    /// In tuning, with whichever window gave most, whatever the latency.
    pub(crate) untuned_events_per_second: f64,
    pub(crate) medians: Trial,
}

/// All that a run found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) server: String,
    pub(crate) rounds: usize,
    pub(crate) run_seconds_max: f64,
    pub(crate) event_bytes_mean: f64,
    pub(crate) sync_seconds: Quartiles,
    pub(crate) raw_bytes_per_second: Quartiles,
    pub(crate) figures: Vec<Figures>,
    pub(crate) rows: Vec<Row>,
}

/// What a report says about the run beside its rounds.
pub(crate) struct About {
    pub(crate) server: String,
    pub(crate) run_seconds_max: f64,
    pub(crate) event_bytes_mean: f64,
}

impl Report {
    /// Of at least one round.
    pub(crate) fn new(about: About, entrants: &[Entrant], rounds: &[Round]) -> Self {
        let figures = entrants.iter().enumerate().map(|(index, entrant)| Figures {
            name: entrant.subject.name(),
            window: entrant.window,
            untuned_events_per_second: entrant.untuned_events_per_second,
            medians: medians(rounds, index),
        });
        Self {
            server: about.server,
            rounds: rounds.len(),
            run_seconds_max: about.run_seconds_max,
            event_bytes_mean: about.event_bytes_mean,
            sync_seconds: Quartiles::of(rounds.iter().map(|round| round.disk.sync_seconds)),
            raw_bytes_per_second: Quartiles::of(rounds.iter().map(|round| round.disk.raw_bytes_per_second)),
            figures: figures.collect(),
            rows: rows(entrants, rounds),
        }
    }

    /// Whether no bar was missed; an aim is none.
    pub(crate) fn passed(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.bar, None | Some(Bar::Aim(_))) || row.met == Some(true))
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{} rounds of at most {} s a log, {:.0} bytes an event, {}",
            self.rounds, self.run_seconds_max, self.event_bytes_mean, self.server
        )?;
        writeln!(
            out,
            "disk: write of 4 KiB + fdatasync {:.3} ms, writes of 256 KiB + fdatasync {:.0} MB/s (medians)\n",
            self.sync_seconds.median * 1e3,
            self.raw_bytes_per_second.median / 1e6
        )?;
        writeln!(
            out,
            "{:<37} {:>6} {:>11} {:>11} {:>9} {:>9} {:>9} {:>10}",
            "medians", "window", "events/s", "any window", "p50 ms", "p99 ms", "CPU s/M", "written/M"
        )?;
        for Figures { name, window, untuned_events_per_second, medians } in &self.figures {
            writeln!(
                out,
                "{name:<37} {window:>6} {:>11.0} {untuned_events_per_second:>11.0} {:>9.2} {:>9.2} {:>9.2} {:>7.0} MB",
                medians.events_per_second,
                medians.ack_p50_seconds * 1e3,
                medians.ack_p99_seconds * 1e3,
                medians.cpu_seconds_per_million,
                medians.written_bytes_per_million / 1e6
            )?;
        }
        writeln!(out, "\n{:<66} {:>8} {:>8} {:>8}  bar", "ratios", "q1", "median", "q3")?;
        for Row { name, value: Quartiles { q1, median, q3 }, bar, met } in &self.rows {
            let bar = match bar {
                None => String::new(),
                Some(Bar::AtLeast(least)) => format!(">= {least}"),
                Some(Bar::AtMost(most)) => format!("<= {most}"),
                Some(Bar::Aim(aim)) => format!("aim {aim}"),
            };
            let met = met.map_or("", |met| if met { "met" } else { "MISSED" });
            writeln!(out, "{name:<66} {q1:>8.2} {median:>8.2} {q3:>8.2}  {bar:<8} {met}")?;
        }
        Ok(())
    }
}

fn medians(rounds: &[Round], index: usize) -> Trial {
    let of = |field: fn(&Trial) -> f64| {
        median(&rounds.iter().map(|round| field(&round.trials[index])).collect::<Vec<_>>())
    };
    Trial {
        events_per_second: of(|trial| trial.events_per_second),
        bytes_per_second: of(|trial| trial.bytes_per_second),
        ack_p50_seconds: of(|trial| trial.ack_p50_seconds),
        ack_p99_seconds: of(|trial| trial.ack_p99_seconds),
        cpu_seconds_per_million: of(|trial| trial.cpu_seconds_per_million),
        written_bytes_per_million: of(|trial| trial.written_bytes_per_million),
    }
}

/// The bar of the throughput of the product against a peer.
fn throughput_bar(peer: Subject) -> Option<Bar> {
    use Publishing::{FastIngest, Pipelined};
    match peer {
        Subject::Events(SyncInterval::Always, Pipelined) => Some(Bar::AtLeast(50.0)),
        Subject::Events(SyncInterval::Default, Pipelined) => Some(Bar::AtLeast(2.0)),
        Subject::Frames(SyncInterval::Default) => Some(Bar::Aim(1.0)),
        Subject::Frames(SyncInterval::Always) | Subject::Events(_, FastIngest) | Subject::Product => None,
    }
}

fn rows(entrants: &[Entrant], rounds: &[Round]) -> Vec<Row> {
    let Some(product) = entrants.iter().position(|entrant| entrant.subject == Subject::Product) else {
        return Vec::new();
    };
    let row = |name: String, bar: Option<Bar>, value: &dyn Fn(&Round) -> f64| {
        let value = Quartiles::of(rounds.iter().map(value));
        Row { name, value, bar, met: bar.map(|bar| bar.is_met(value.median)) }
    };
    let mut rows = Vec::new();
    for (index, peer) in entrants.iter().enumerate().filter(|(index, _)| *index != product) {
        let name = format!("events/s, times {}", peer.subject.name());
        rows.push(row(name, throughput_bar(peer.subject), &|round| {
            round.trials[product].events_per_second / round.trials[index].events_per_second
        }));
    }
    // Both sides with the window that is best for them, whatever the latency: as found in tuning, one value.
    for (index, peer) in entrants.iter().enumerate().filter(|(index, _)| *index != product) {
        let name = format!("the same with any window, times {}", peer.subject.name());
        let ratio = entrants[product].untuned_events_per_second / entrants[index].untuned_events_per_second;
        rows.push(row(name, None, &|_| ratio));
    }
    rows.push(row("bytes/s, share of raw 256 KiB + fdatasync".into(), Some(Bar::AtLeast(0.4)), &|round| {
        round.trials[product].bytes_per_second / round.disk.raw_bytes_per_second
    }));
    // One yardstick for the whole run: that of a single round would let a hiccup in the probe move the bar.
    let sync = median(&rounds.iter().map(|round| round.disk.sync_seconds).collect::<Vec<_>>());
    for (index, entrant) in entrants.iter().enumerate() {
        let bar = (index == product).then_some(Bar::AtMost(LATENCY_SYNCS_MAX));
        let name = format!("ack p99, in fdatasyncs, {}", entrant.subject.name());
        rows.push(row(name, bar, &|round| round.trials[index].ack_p99_seconds / sync));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Disk;

    fn trial(events_per_second: f64) -> Trial {
        Trial {
            events_per_second,
            bytes_per_second: events_per_second * 272.0,
            ack_p50_seconds: 0.001,
            ack_p99_seconds: 0.005,
            cpu_seconds_per_million: 1.0,
            written_bytes_per_million: 3e8,
        }
    }

    fn report(product: f64, peer: f64) -> Report {
        let entrant = |subject| Entrant { subject, window: 1, untuned_events_per_second: 0.0 };
        let entrants = [
            entrant(Subject::Product),
            entrant(Subject::Events(SyncInterval::Always, Publishing::Pipelined)),
            entrant(Subject::Frames(SyncInterval::Default)),
        ];
        let disk = Disk { sync_seconds: 0.001, raw_bytes_per_second: 100.0 * 272.0 };
        let round = Round { disk, trials: vec![trial(product), trial(peer), trial(product * 2.0)] };
        let about = About { server: "none".into(), run_seconds_max: 1.0, event_bytes_mean: 272.0 };
        Report::new(about, &entrants, &[round])
    }

    #[test]
    fn a_missed_bar_fails_a_report_and_a_missed_aim_does_not() {
        let fine = report(60.0, 1.0);
        let aims: Vec<_> = fine.rows.iter().filter(|row| matches!(row.bar, Some(Bar::Aim(_)))).collect();
        assert_eq!(aims.len(), 1);
        assert_eq!(aims[0].met, Some(false));
        assert!(fine.passed());
        assert!(!report(49.0, 1.0).passed());
    }

    #[test]
    fn text_says_which_bar_was_missed() {
        let text = report(49.0, 1.0).text();
        let row = text.lines().find(|line| line.starts_with("events/s, times JetStream, sync always "));
        assert!(row.is_some_and(|row| row.contains(">= 50") && row.ends_with("MISSED")), "{text}");
    }
}
