//! What a child process said it was told by its journal, and a journal held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use kvjournal::event::DpRank;
use kvjournal::journal::Journal;

use super::events::numbered;

/// Says something on stdout, on a line of its own whatever the test harness prints around it.
pub fn say(what: &str, rank: DpRank, id: u64) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{what} {rank} {id}").unwrap();
    out.flush().unwrap();
}

/// All that children of one journal said: the newest id of each kind.
#[derive(Debug, Default)]
pub struct Told {
    /// Ids that an append may have given: said before it, since a crash may keep what nobody was told of.
    pub appending: BTreeMap<DpRank, u64>,
    /// Ids that were shown to be kept.
    pub durable: BTreeMap<DpRank, u64>,
    pub horizon: BTreeMap<DpRank, u64>,
    /// Other words that were said.
    pub words: BTreeSet<String>,
}

impl Told {
    /// Takes a line of a child's output; what is not [said](say) is passed over.
    pub fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(what), Some(rank), Some(id)) = (words.next(), words.next(), words.next()) else { return };
        let (Ok(rank), Ok(id)) = (rank.parse(), id.parse()) else { return };
        let newest = match what {
            "appending" => &mut self.appending,
            "durable" => &mut self.durable,
            "horizon" => &mut self.horizon,
            word => {
                self.words.insert(word.to_owned());
                return;
            }
        };
        newest.insert(DpRank(rank), id);
    }

    /// Ids acknowledged, of all ranks.
    pub fn acknowledged(&self) -> u64 {
        self.durable.values().sum()
    }

    /// Holds a reopened journal, whose events are [numbered] by their ids, against what was told: says how many events
    /// it compared, or what is wrong.
    pub fn check(&self, journal: &Journal, ranks: &[DpRank]) -> Result<u64, String> {
        let mut compared = 0;
        for rank in ranks.iter().copied() {
            let at = |of: &BTreeMap<DpRank, u64>| of.get(&rank).copied().unwrap_or(0);
            let (head, durable, appending) = (journal.head(rank), at(&self.durable), at(&self.appending));
            if head < durable || head > appending {
                return Err(format!(
                    "rank {rank} ends at {head}: {durable} was acknowledged, {appending} appended"
                ));
            }
            if head == 0 {
                continue;
            }
            let horizon = journal.horizon(rank);
            if horizon < at(&self.horizon) {
                return Err(format!("rank {rank}: the horizon went back to {horizon}"));
            }
            let mut reader = journal.read(rank, 1).map_err(|e| e.to_string())?;
            let mut next = horizon + 1;
            while let Some(frame) = reader.next_frame().map_err(|e| e.to_string())? {
                for event in frame.events() {
                    let event = event.map_err(|e| e.to_string())?;
                    if event.id != next || event.data != numbered(event.id) {
                        return Err(format!("rank {rank}: event {} stands where {next} should", event.id));
                    }
                    next += 1;
                }
            }
            if next != head + 1 {
                return Err(format!("rank {rank} is kept up to {next}, its head is {head}"));
            }
            compared += head - horizon;
        }
        Ok(compared)
    }
}
