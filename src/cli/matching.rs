//! `match`: how many leading blocks of a prompt each rank holds, now or earlier, and why.

use std::io::{Read, Write, stdin, stdout};

use serde_json::json;

use crate::engine::{Namespace, tokens_hash};
use crate::event::{EventData, EventId, TokensHash};
use crate::index::{MatchOptions, StreamMatch};
use crate::journal::JournalView;

use super::args::{Format, MatchArgs};
use super::explain::{Explained, Trace};
use super::fold::{Folded, fold, ranks};
use super::log::LOCK_WAIT;
use super::output::table;
use super::{Failure, Outcome};

/// Longest list that is read: a prompt of a million tokens fits several times.
const LIST_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The answer for one rank.
struct Answer {
    folded: Folded,
    found: StreamMatch,
    explained: Vec<Explained>,
}

pub(super) fn run(args: MatchArgs, format: Format) -> Result<Outcome, Failure> {
    let prompt = Prompt::read(&args)?;
    let view = JournalView::open(&args.dir.dir, LOCK_WAIT)?;
    let hashes = prompt.hashes(&args, &view)?;
    let mut answers = Vec::new();
    for rank in ranks(&view, args.rank) {
        let horizon = view.rank(rank)?.horizon;
        let mut trace = Trace::new(if args.explain { &hashes } else { &[] });
        let folded = fold(&view, rank, args.at, |id, data| trace.see(id, data))?;
        let found = folded.index.find_matches(&hashes, MatchOptions::default()).into_iter().next();
        let nothing = StreamMatch { stream: folded.stream, ..StreamMatch::default() };
        let explained = if args.explain { trace.explain(&hashes, horizon) } else { Vec::new() };
        answers.push(Answer { folded, found: found.unwrap_or(nothing), explained });
    }
    match format {
        Format::Json => print_json(&hashes, &answers)?,
        Format::Text => print_text(&hashes, &answers)?,
    }
    Ok(Outcome::Fine)
}

/// The prompt as it was typed.
enum Prompt {
    Tokens(Vec<u32>),
    Hashes(Vec<TokensHash>),
}

impl Prompt {
    fn read(args: &MatchArgs) -> Result<Self, Failure> {
        if let Some(list) = &args.tokens {
            let tokens = parse_list(list, "token", |item| item.parse().ok())?;
            return Ok(Self::Tokens(tokens));
        }
        let hash = |item: &str| match item.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => item.parse().ok(),
        };
        let hashes = parse_list(args.hashes.as_deref().unwrap_or_default(), "tokens hash", hash)?;
        Ok(Self::Hashes(hashes.into_iter().map(TokensHash).collect()))
    }

    fn hashes(self, args: &MatchArgs, view: &JournalView) -> Result<Vec<TokensHash>, Failure> {
        let tokens = match self {
            Self::Hashes(hashes) => return Ok(hashes),
            Self::Tokens(tokens) => tokens,
        };
        let size = match args.block_size {
            Some(size) => size.get(),
            None => block_size(view, args)?,
        } as usize;
        let namespace = Namespace::new(args.lora.as_deref(), args.salt.as_deref());
        if tokens.len() < size {
            let what =
                format!("{} tokens are less than one block of {size}: nothing can match", tokens.len());
            return Err(Failure::Input(what));
        }
        Ok(tokens.chunks_exact(size).map(|block| tokens_hash(namespace, block, None)).collect())
    }
}

/// Numbers separated by commas or blanks, also as a JSON array; `-` stands for stdin.
fn parse_list<T>(list: &str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Failure> {
    let mut typed = String::new();
    let list = if list == "-" {
        let cannot = |e: std::io::Error| Failure::Input(format!("stdin cannot be read: {e}"));
        stdin().lock().take(LIST_BYTES_MAX + 1).read_to_string(&mut typed).map_err(cannot)?;
        if typed.len() as u64 > LIST_BYTES_MAX {
            return Err(Failure::Input(format!("the list on stdin is longer than {LIST_BYTES_MAX} bytes")));
        }
        typed.trim()
    } else {
        list.trim()
    };
    let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(list);
    let items = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|item| !item.is_empty());
    let parsed = items.enumerate().map(|(index, item)| {
        parse(item).ok_or_else(|| Failure::Input(format!("'{item}' (number {}) is no {what}", index + 1)))
    });
    let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
    if parsed.is_empty() {
        return Err(Failure::Input(format!("the list of each {what} is empty")));
    }
    Ok(parsed)
}

/// The block size that the newest event with one says.
fn block_size(view: &JournalView, args: &MatchArgs) -> Result<u32, Failure> {
    let mut newest = None;
    for rank in ranks(view, args.rank) {
        let see = |_: EventId, data: &EventData| {
            if let EventData::Stored(stored) = data {
                newest = stored.block_size.filter(|size| *size > 0).or(newest);
            }
        };
        fold(view, rank, args.at, see)?;
    }
    newest.ok_or_else(|| Failure::Input("no event says how many tokens a block has: use --block-size".into()))
}

fn print_json(hashes: &[TokensHash], answers: &[Answer]) -> Result<(), Failure> {
    for Answer { folded, found, explained } in answers {
        let mut line = json!({
            "worker_id": folded.stream.worker_id,
            "dp_rank": folded.stream.dp_rank,
            "at": folded.at,
            "prompt_blocks": hashes.len(),
            "device": found.device,
            "host_pinned": found.host_pinned,
            "disk": found.disk,
            "external": found.external,
            "total": found.total(),
        });
        if !explained.is_empty() {
            line["blocks"] = explained.iter().map(Explained::to_json).collect();
        }
        writeln!(stdout(), "{line}")?;
    }
    Ok(())
}

fn print_text(hashes: &[TokensHash], answers: &[Answer]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let mut rows = table(&["rank", "at event", "held", "of", "device", "host", "disk", "external"]);
    for Answer { folded, found, .. } in answers {
        let counts = [found.device, found.host_pinned, found.disk, found.external];
        let mut row = vec![
            folded.stream.dp_rank.to_string(),
            folded.at.to_string(),
            found.total().to_string(),
            hashes.len().to_string(),
        ];
        row.extend(counts.iter().map(u32::to_string));
        rows.add_row(row);
    }
    writeln!(out, "{rows}")?;
    for Answer { folded, explained, .. } in answers.iter().filter(|answer| !answer.explained.is_empty()) {
        let mut rows = table(&["block", "tokens hash", "block hash", "state"]);
        for block in explained {
            rows.add_row(block.to_row());
        }
        writeln!(out, "\nrank {}:\n{rows}", folded.stream.dp_rank)?;
    }
    Ok(())
}
