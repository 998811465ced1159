//! `simulate`: the events of an engine double, as JSON Lines or as engine payloads.

use std::io::{BufWriter, Write, stdout};
use std::path::Path;

use crate::engine::{EncodedForm, encode_batch};
use crate::event::{DpRank, JsonEvent};

use super::args::{Format, SimulateArgs};
use super::load::Stream;
use super::output::note;
use super::{Failure, Outcome};

/// Events in a batch of payloads; engines send what a scheduler step made.
const BATCH_EVENTS: usize = 32;

pub(super) fn run(args: SimulateArgs, format: Format) -> Result<Outcome, Failure> {
    let stream = Stream::new(&args.load, 16)?;
    match &args.payloads {
        Some(dir) => {
            let form = if args.arrays { EncodedForm::Array } else { EncodedForm::Map };
            let files = write_payloads(dir, form, stream, args.events)?;
            if format == Format::Text {
                note(&format!("{files} batches written to {}", dir.display()));
            }
        }
        None => {
            let mut out = BufWriter::new(stdout().lock());
            for (event, id) in stream.zip(1..=args.events) {
                let line = JsonEvent {
                    event_id: Some(id),
                    dp_rank: DpRank(0),
                    data: event.to_data(),
                    engine_time: None,
                    payload: None,
                };
                writeln!(out, "{}", line.to_line())?;
            }
            out.flush()?;
        }
    }
    Ok(Outcome::Fine)
}

fn write_payloads(dir: &Path, form: EncodedForm, stream: Stream, events: u64) -> Result<u64, Failure> {
    std::fs::create_dir_all(dir)?;
    let events: Vec<_> = stream.take(events as usize).collect();
    let mut files = 0;
    for (index, batch) in events.chunks(BATCH_EVENTS).enumerate() {
        // Time stands still, so that a seed always makes the same bytes.
        let bytes = encode_batch(form, index as f64, 0, batch);
        std::fs::write(dir.join(format!("{index:08}.msgpack")), bytes)?;
        files += 1;
    }
    Ok(files)
}
