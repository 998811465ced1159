//! `verify`: whether all that should be there is there, and right.

use std::io::{Write, stdout};

use serde_json::json;

use crate::error::Damage;
use crate::journal::{Verified, verify};

use super::args::{Format, VerifyArgs};
use super::log::LOCK_WAIT;
use super::output::{escape, human_bytes, note, progress_bytes};
use super::{Failure, Outcome};

pub(super) fn run(args: VerifyArgs, format: Format) -> Result<Outcome, Failure> {
    let verified = verify(&args.dir.dir, LOCK_WAIT, progress_bytes())?;
    match format {
        Format::Json => writeln!(stdout(), "{}", to_json(&verified))?,
        Format::Text => {
            let Verified { frames, events, bytes, payload_bytes, damage } = &verified;
            let (bytes, payloads) = (human_bytes(*bytes), human_bytes(*payload_bytes));
            writeln!(stdout(), "{events} events in {frames} frames are right: {bytes}, payloads {payloads}")?;
            for damage in damage {
                writeln!(stdout(), "{}", escape(&damage.to_string()))?;
            }
        }
    }
    if verified.damage.is_empty() {
        return Ok(Outcome::Fine);
    }
    note("hint: `kvjournal repair` saves what can be saved; leave the files as they are until then");
    Ok(Outcome::Damaged)
}

fn to_json(verified: &Verified) -> serde_json::Value {
    let damage = |damage: &Damage| {
        json!({
            "dp_rank": damage.rank,
            "ids": damage.ids.as_ref().map(|ids| [ids.start(), ids.end()]),
            "what": damage.what,
        })
    };
    json!({
        "frames": verified.frames,
        "events": verified.events,
        "bytes": verified.bytes,
        "payload_bytes": verified.payload_bytes,
        "damage": verified.damage.iter().map(damage).collect::<Vec<_>>(),
    })
}
