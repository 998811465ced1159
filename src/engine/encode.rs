//! Writing batches as engines do, for the simulator and for tests.

use rmp::encode::{self as mp, ValueWriteError};

/// In which form events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedForm {
    /// Maps with their tag under `type` (vLLM 0.24 and later).
    #[default]
    Map,
    /// Arrays of seven, and of three for removals (vLLM 0.10.2 to 0.13).
    Array,
    /// Arrays of six, and of two for removals, without a medium (vLLM 0.9.0 to 0.10.1, SGLang up to 0.5.8).
    Array6,
}

/// One event as an engine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawEvent {
    /// Blocks were stored on the device.
    Stored {
        /// The block before the first.
        parent: Option<u64>,
        /// The blocks.
        block_hashes: Vec<u64>,
        /// The tokens of all blocks.
        token_ids: Vec<u32>,
        /// Tokens in a block.
        block_size: u32,
    },
    /// Blocks were evicted.
    Removed {
        /// The blocks.
        block_hashes: Vec<u64>,
    },
    /// The cache was reset.
    Cleared,
}

/// Writes a batch `[ts, [events], dp_rank]`.
pub fn encode_batch(form: EncodedForm, seconds: f64, rank: u32, events: &[RawEvent]) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, form, seconds, rank, events).expect("writing to memory does not fail");
    out
}

fn write(
    out: &mut Vec<u8>,
    form: EncodedForm,
    seconds: f64,
    rank: u32,
    events: &[RawEvent],
) -> Result<(), ValueWriteError> {
    mp::write_array_len(out, 3)?;
    mp::write_f64(out, seconds)?;
    mp::write_array_len(out, events.len() as u32)?;
    for event in events {
        match form {
            EncodedForm::Map => write_map(out, event)?,
            EncodedForm::Array => write_array(out, event, true)?,
            EncodedForm::Array6 => write_array(out, event, false)?,
        }
    }
    mp::write_uint(out, u64::from(rank))?;
    Ok(())
}

fn write_map(out: &mut Vec<u8>, event: &RawEvent) -> Result<(), ValueWriteError> {
    let fields = match event {
        RawEvent::Stored { .. } => 7,
        RawEvent::Removed { .. } => 3,
        RawEvent::Cleared => 1,
    };
    mp::write_map_len(out, fields)?;
    mp::write_str(out, "type")?;
    mp::write_str(out, tag(event))?;
    match event {
        RawEvent::Stored { parent, block_hashes, token_ids, block_size } => {
            mp::write_str(out, "block_hashes")?;
            write_numbers(out, block_hashes.iter().copied())?;
            mp::write_str(out, "parent_block_hash")?;
            write_parent(out, *parent)?;
            mp::write_str(out, "token_ids")?;
            write_numbers(out, token_ids.iter().map(|token| u64::from(*token)))?;
            mp::write_str(out, "block_size")?;
            mp::write_uint(out, u64::from(*block_size))?;
            mp::write_str(out, "medium")?;
            mp::write_str(out, "GPU")?;
            mp::write_str(out, "group_idx")?;
            mp::write_uint(out, 0)?;
        }
        RawEvent::Removed { block_hashes } => {
            mp::write_str(out, "block_hashes")?;
            write_numbers(out, block_hashes.iter().copied())?;
            mp::write_str(out, "medium")?;
            mp::write_str(out, "GPU")?;
        }
        RawEvent::Cleared => {}
    }
    Ok(())
}

fn write_array(out: &mut Vec<u8>, event: &RawEvent, medium: bool) -> Result<(), ValueWriteError> {
    let more = u32::from(medium);
    match event {
        RawEvent::Stored { parent, block_hashes, token_ids, block_size } => {
            mp::write_array_len(out, 6 + more)?;
            mp::write_str(out, tag(event))?;
            write_numbers(out, block_hashes.iter().copied())?;
            write_parent(out, *parent)?;
            write_numbers(out, token_ids.iter().map(|token| u64::from(*token)))?;
            mp::write_uint(out, u64::from(*block_size))?;
            mp::write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?;
            write_medium(out, medium)?;
        }
        RawEvent::Removed { block_hashes } => {
            mp::write_array_len(out, 2 + more)?;
            mp::write_str(out, tag(event))?;
            write_numbers(out, block_hashes.iter().copied())?;
            write_medium(out, medium)?;
        }
        RawEvent::Cleared => {
            mp::write_array_len(out, 1)?;
            mp::write_str(out, tag(event))?;
        }
    }
    Ok(())
}

fn write_medium(out: &mut Vec<u8>, medium: bool) -> Result<(), ValueWriteError> {
    if medium {
        mp::write_str(out, "GPU")?;
    }
    Ok(())
}

fn tag(event: &RawEvent) -> &'static str {
    match event {
        RawEvent::Stored { .. } => "BlockStored",
        RawEvent::Removed { .. } => "BlockRemoved",
        RawEvent::Cleared => "AllBlocksCleared",
    }
}

fn write_parent(out: &mut Vec<u8>, parent: Option<u64>) -> Result<(), ValueWriteError> {
    match parent {
        Some(parent) => mp::write_uint(out, parent).map(drop),
        None => mp::write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite),
    }
}

fn write_numbers(
    out: &mut Vec<u8>,
    numbers: impl ExactSizeIterator<Item = u64>,
) -> Result<(), ValueWriteError> {
    mp::write_array_len(out, numbers.len() as u32)?;
    for number in numbers {
        mp::write_uint(out, number)?;
    }
    Ok(())
}
