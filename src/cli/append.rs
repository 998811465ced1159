//! `append`: JSON Lines from stdin into the journal, with acknowledgements as ids become durable.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::event::{DpRank, JsonEvent};
use crate::journal::{Journal, NewEvent};

use super::args::{AppendArgs, Format};
use super::output::note;
use super::{Failure, Outcome};

/// Longest line that is read: the longest payload as base64, and the event around it.
pub(super) const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How often the acknowledger looks whether the input has ended.
const ACK_WAIT: Duration = Duration::from_millis(50);

pub(super) fn run(args: AppendArgs, format: Format) -> Result<Outcome, Failure> {
    let journal = Arc::new(Journal::open(args.config())?);
    let done = Arc::new(AtomicBool::new(false));
    let acks = args.ack.then(|| {
        let (journal, done) = (Arc::clone(&journal), Arc::clone(&done));
        std::thread::spawn(move || acknowledge(&journal, &done))
    });
    let appended = append_lines(&journal, args.rank(), stdin().lock());
    // Whatever ended the input, what was appended before is kept.
    let synced = journal.sync();
    done.store(true, Ordering::Release);
    let acknowledged = acks.map_or(Ok(()), |acks| acks.join().expect("the acknowledger does not panic"));
    if let Some(journal) = Arc::into_inner(journal) {
        journal.close()?;
    }
    let count = appended?;
    synced?;
    acknowledged?;
    if format == Format::Text {
        note(&format!("{count} events appended"));
    }
    Ok(Outcome::Fine)
}

fn append_lines(journal: &Journal, rank: DpRank, input: impl BufRead) -> Result<u64, Failure> {
    let mut count = 0;
    for_each_line(input, |number, line| {
        let event = JsonEvent::parse(line).map_err(|e| Failure::Input(format!("line {number}: {e}")))?;
        let to = if event.dp_rank == DpRank(0) { rank } else { event.dp_rank };
        let payload = event.payload.map(Into::into);
        journal.append(to, &[NewEvent { data: event.data, engine_time: event.engine_time, payload }])?;
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Calls `each` with the number and text of each line that is not blank.
pub(super) fn for_each_line(
    mut input: impl BufRead,
    mut each: impl FnMut(u64, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        let len = read.map_err(|e| Failure::Input(format!("line {number} cannot be read: {e}")))?;
        if len == 0 {
            break;
        }
        if len > LINE_BYTES_MAX {
            return Err(Failure::Input(format!("line {number} is longer than {LINE_BYTES_MAX} bytes")));
        }
        let text = std::str::from_utf8(&line);
        let text = text.map_err(|e| Failure::Input(format!("line {number} is not UTF-8: {e}")))?.trim();
        if !text.is_empty() {
            each(number, text)?;
        }
    }
    Ok(())
}

/// Prints ids as they become durable, until the input has ended and all of it is.
fn acknowledge(journal: &Journal, done: &AtomicBool) -> std::io::Result<()> {
    let mut told: BTreeMap<DpRank, u64> =
        journal.ranks().into_iter().map(|rank| (rank, journal.durable_head(rank))).collect();
    loop {
        let last = done.load(Ordering::Acquire);
        let mut news = false;
        for rank in journal.ranks() {
            let durable = journal.durable_head(rank);
            if durable > told.get(&rank).copied().unwrap_or(0) {
                told.insert(rank, durable);
                news = true;
                let line = match rank {
                    DpRank(0) => format!("{{\"durable\":{durable}}}\n"),
                    rank => format!("{{\"durable\":{durable},\"dp_rank\":{rank}}}\n"),
                };
                let mut out = stdout().lock();
                out.write_all(line.as_bytes())?;
                out.flush()?;
            }
        }
        if last {
            return Ok(());
        }
        if !news {
            // With one rank, as usual, this wakes with the ack; others are looked at as often as this times out.
            match journal.ranks().first() {
                Some(rank) => {
                    let next = told.get(rank).copied().unwrap_or(0) + 1;
                    if !matches!(
                        journal.wait_durable(*rank, next, ACK_WAIT),
                        Ok(()) | Err(crate::Error::Timeout(_))
                    ) {
                        std::thread::sleep(ACK_WAIT);
                    }
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
