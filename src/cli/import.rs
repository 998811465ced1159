//! `import`: JSON Lines with their ids, or files of engine payloads, into a new journal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::Path;

use bytes::Bytes;
use serde_json::json;

use crate::engine::rules::DecodeOptions;
use crate::engine::{BATCH_BYTES_MAX, Batch, decode_batch};
use crate::event::{DpRank, EventId, JsonEvent, WorkerId};
use crate::journal::{Config, Journal, NewEvent, Source};

use super::append::for_each_line;
use super::args::{Format, ImportArgs};
use super::output::{escape, note};
use super::{Failure, Outcome};

/// Events that are appended together.
const BATCH_EVENTS: usize = 256;

pub(super) fn run(args: ImportArgs, format: Format) -> Result<Outcome, Failure> {
    let mut config = Config::new(&args.dir.dir, args.worker_id.map(WorkerId));
    let mut import =
        Import { journal: None, next: BTreeMap::new(), pending: Vec::new(), events: 0, problems: 0 };
    refuse_existing(&args.dir.dir)?;
    if args.payloads {
        let journal = Journal::open(config)?;
        let options = DecodeOptions { block_size: args.block_size };
        for (sequence, path) in args.files.iter().enumerate() {
            import.payload_file(&journal, path, sequence as u64, options)?;
        }
        journal.close()?;
    } else {
        if args.files.is_empty() {
            import.lines(&mut config, stdin().lock())?;
        }
        for path in &args.files {
            let file = File::open(path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
            import.lines(&mut config, BufReader::new(file))?;
        }
        if let Some(journal) = import.journal.take() {
            journal.close()?;
        }
    }
    match format {
        Format::Json => {
            writeln!(stdout(), "{}", json!({ "events": import.events, "problems": import.problems }))?;
        }
        Format::Text => note(&format!("{} events imported, {} problems", import.events, import.problems)),
    }
    Ok(if import.problems == 0 { Outcome::Fine } else { Outcome::Problems })
}

/// Ids are kept, so there must be none yet.
fn refuse_existing(dir: &Path) -> Result<(), Failure> {
    if dir.join("CURRENT").exists() || dir.join("WITNESS").exists() {
        return Err(Failure::Input(format!(
            "{} holds a journal already: import into an empty folder",
            dir.display()
        )));
    }
    Ok(())
}

struct Import {
    journal: Option<Journal>,
    /// The id that each rank's next line must have.
    next: BTreeMap<DpRank, EventId>,
    pending: Vec<NewEvent>,
    events: u64,
    problems: u64,
}

impl Import {
    fn lines(&mut self, config: &mut Config, input: impl BufRead) -> Result<(), Failure> {
        let mut rank_of_pending = None;
        for_each_line(input, |number, line| {
            let bad = |what: String| Failure::Input(format!("line {number}: {what}"));
            let event = JsonEvent::parse(line).map_err(|e| bad(e.to_string()))?;
            let id = event.event_id.ok_or_else(|| bad("it has no event_id".into()))?;
            let rank = event.dp_rank;
            let journal = match &self.journal {
                Some(journal) => journal,
                None => {
                    config.first_id = id.max(1);
                    self.journal.insert(Journal::open(config.clone())?)
                }
            };
            let expected = match self.next.get(&rank) {
                Some(next) => *next,
                // Only the first rank's first id can be chosen: a journal's ranks start at one id.
                None => journal.head(rank).max(config.first_id - 1) + 1,
            };
            if id != expected {
                return Err(bad(format!("rank {rank} goes on at event {expected}, not at {id}")));
            }
            self.next.insert(rank, id + 1);
            if rank_of_pending.is_some_and(|pending| pending != rank) || self.pending.len() >= BATCH_EVENTS {
                append_pending(journal, rank_of_pending.unwrap_or(rank), &mut self.pending)?;
            }
            rank_of_pending = Some(rank);
            self.pending.push(NewEvent {
                data: event.data,
                engine_time: event.engine_time,
                payload: event.payload.map(Bytes::from),
            });
            self.events += 1;
            Ok(())
        })?;
        match (&self.journal, rank_of_pending) {
            (Some(journal), Some(rank)) => append_pending(journal, rank, &mut self.pending),
            _ => Ok(()),
        }
    }

    fn payload_file(
        &mut self,
        journal: &Journal,
        path: &Path,
        sequence: u64,
        options: DecodeOptions,
    ) -> Result<(), Failure> {
        let bad = |e: std::io::Error| Failure::Input(format!("{}: {e}", path.display()));
        let len = std::fs::metadata(path).map_err(bad)?.len();
        if len > BATCH_BYTES_MAX as u64 {
            return Err(Failure::Input(format!("{}: a batch of {len} bytes is too long", path.display())));
        }
        let bytes = Bytes::from(std::fs::read(path).map_err(bad)?);
        let batch = match decode_batch(&bytes, options) {
            Ok(batch) => batch,
            Err(damaged) => {
                self.problems += 1;
                note(&format!("{}: {}", path.display(), damaged));
                damaged.read
            }
        };
        self.append_batch(journal, path, &bytes, sequence, batch)
    }

    fn append_batch(
        &mut self,
        journal: &Journal,
        path: &Path,
        bytes: &Bytes,
        sequence: u64,
        batch: Batch,
    ) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(batch.events.len());
        for event in batch.events {
            if let Some(problem) = &event.problem {
                self.problems += 1;
                note(&format!("{}: kept, not applied: {}", path.display(), escape(&problem.to_string())));
            }
            let payload = Some(bytes.slice(event.payload));
            events.push(NewEvent { data: event.data, engine_time: batch.time, payload });
        }
        self.events += events.len() as u64;
        let hash = xxhash_rust::xxh3::xxh3_128(bytes);
        let source = Source { endpoint: "import".into(), sequence, hash };
        journal.append_batch(batch.rank.unwrap_or_default(), &source, &events)?;
        Ok(())
    }
}

fn append_pending(journal: &Journal, rank: DpRank, pending: &mut Vec<NewEvent>) -> Result<(), Failure> {
    if pending.is_empty() {
        return Ok(());
    }
    let ids = journal.append(rank, pending)?;
    let given = ids.map_or(0, |ids| ids.end() - ids.start() + 1);
    if given != pending.len() as u64 {
        let what = "an event is too long for one frame and would take more than its one id";
        return Err(Failure::Input(what.into()));
    }
    pending.clear();
    Ok(())
}
