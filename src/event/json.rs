//! The JSON form of an event: Dynamo's `KvCacheEvent`, with what it has no place for beside `data`.
//!
//! `{"event_id":7,"data":{"removed":{"block_hashes":[1]}},"dp_rank":0}` is a whole event,
//! `{"removed":{"block_hashes":[1]}}` is bare data; both are read, whole events are written. A `tokens_hash` that
//! is not known is `null`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{Deserialize, Serialize};

use super::{
    Block, BlockHash, ClearReason, Cleared, DpRank, EngineTime, EventData, EventId, Placement, Removed,
    StorageTier, Stored, Unknown,
};

/// An event as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonEvent {
    /// The id, if the line named one.
    pub event_id: Option<EventId>,
    /// The rank, 0 if the line named none.
    pub dp_rank: DpRank,
    /// What the event says.
    pub data: EventData,
    /// The engine's time.
    pub engine_time: Option<EngineTime>,
    /// The engine's own bytes, as base64 in `payload`.
    pub payload: Option<Vec<u8>>,
}

impl JsonEvent {
    /// Reads one line: a whole event or bare data.
    ///
    /// # Errors
    /// What `serde_json` found wrong, with its column.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        // Two passes over at most one line: an untagged enum would hide which field is wrong.
        let whole = line.trim_start().starts_with('{') && {
            #[derive(Deserialize)]
            struct Probe {
                #[serde(default)]
                data: Option<serde::de::IgnoredAny>,
            }
            serde_json::from_str::<Probe>(line)?.data.is_some()
        };
        let raw = if whole {
            serde_json::from_str::<Raw>(line)?
        } else {
            Raw { data: Some(serde_json::from_str::<RawData>(line)?), ..Raw::default() }
        };
        raw.try_into().map_err(serde::de::Error::custom)
    }

    /// The event as one line of JSON, without the line's end.
    pub fn to_line(&self) -> String {
        serde_json::to_string(&Raw::from(self)).expect("plain maps, strings and numbers always serialize")
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Raw {
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<EventId>,
    data: Option<RawData>,
    #[serde(default)]
    dp_rank: DpRank,
    #[serde(default, skip_serializing_if = "Placement::is_default")]
    placement: Placement,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lora: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    refresh: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<ClearReason>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<StorageTier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    engine_time: Option<EngineTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawData {
    Stored {
        #[serde(default)]
        parent_hash: Option<BlockHash>,
        #[serde(default)]
        start_position: Option<u32>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<BlockHash>,
    },
    Cleared,
    Unknown {
        tag: String,
    },
}

impl TryFrom<Raw> for JsonEvent {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let payload = match raw.payload {
            None => None,
            Some(text) => Some(BASE64_STANDARD.decode(text).map_err(|e| format!("payload: {e}"))?),
        };
        let data = match raw.data.ok_or("the event has no data")? {
            RawData::Stored { parent_hash, start_position, blocks } => EventData::Stored(Stored {
                parent: parent_hash,
                start_position,
                blocks,
                placement: raw.placement,
                lora: raw.lora,
                salt: raw.salt,
                block_size: raw.block_size,
                refresh: raw.refresh,
            }),
            RawData::Removed { block_hashes } => {
                EventData::Removed(Removed { block_hashes, placement: raw.placement })
            }
            RawData::Cleared => {
                EventData::Cleared(Cleared { reason: raw.reason.unwrap_or_default(), tiers: raw.tiers })
            }
            RawData::Unknown { tag } => EventData::Unknown(Unknown { tag }),
        };
        Ok(Self { event_id: raw.event_id, dp_rank: raw.dp_rank, data, engine_time: raw.engine_time, payload })
    }
}

impl From<&JsonEvent> for Raw {
    fn from(event: &JsonEvent) -> Self {
        let mut raw = Raw {
            event_id: event.event_id,
            dp_rank: event.dp_rank,
            engine_time: event.engine_time,
            payload: event.payload.as_ref().map(|bytes| BASE64_STANDARD.encode(bytes)),
            ..Raw::default()
        };
        raw.data = Some(match event.data.clone() {
            EventData::Stored(s) => {
                raw.placement = s.placement;
                raw.lora = s.lora;
                raw.salt = s.salt;
                raw.block_size = s.block_size;
                raw.refresh = s.refresh;
                RawData::Stored { parent_hash: s.parent, start_position: s.start_position, blocks: s.blocks }
            }
            EventData::Removed(r) => {
                raw.placement = r.placement;
                RawData::Removed { block_hashes: r.block_hashes }
            }
            EventData::Cleared(c) => {
                raw.reason = Some(c.reason).filter(|r| *r != ClearReason::default());
                raw.tiers = c.tiers;
                RawData::Cleared
            }
            EventData::Unknown(u) => RawData::Unknown { tag: u.tag },
        });
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{MmInfo, MmObject, TokensHash};

    #[test]
    fn dynamo_s_three_forms_are_written_as_dynamo_writes_them() {
        let stored = JsonEvent::parse(
            r#"{"event_id":7,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}"#,
        )
        .unwrap();
        assert_eq!(stored.event_id, Some(7));
        assert_eq!(
            stored.to_line(),
            r#"{"event_id":7,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}"#
        );
        let removed = JsonEvent::parse(r#"{"removed":{"block_hashes":[18446744073709551615]}}"#).unwrap();
        assert_eq!(
            removed.to_line(),
            r#"{"data":{"removed":{"block_hashes":[18446744073709551615]}},"dp_rank":0}"#
        );
        let cleared = JsonEvent::parse(r#""cleared""#).unwrap();
        assert_eq!(cleared.to_line(), r#"{"data":"cleared","dp_rank":0}"#);
    }

    #[test]
    fn what_dynamo_has_no_place_for_stands_beside_data_and_comes_back() {
        let event = JsonEvent {
            event_id: Some(9),
            dp_rank: DpRank(3),
            data: EventData::Stored(Stored {
                parent: Some(BlockHash(0)),
                start_position: Some(4),
                blocks: vec![Block {
                    block_hash: BlockHash(u64::MAX),
                    tokens_hash: Some(TokensHash(5)),
                    mm: Some(Box::new(MmInfo {
                        mm_objects: vec![MmObject { mm_hash: 6, offsets: vec![(1, 3)] }],
                    })),
                }],
                placement: Placement {
                    medium: Some("cpu".into()),
                    group: Some(1),
                    kind: Some("mamba".into()),
                    locality: Some("REMOTE".into()),
                    ownership: Some("other".into()),
                },
                lora: Some("a".into()),
                salt: Some("s".into()),
                block_size: Some(16),
                refresh: true,
            }),
            engine_time: Some(EngineTime::from_seconds(f64::NAN)),
            payload: Some(vec![0, 255]),
        };
        assert_eq!(JsonEvent::parse(&event.to_line()).unwrap(), event);
        let cleared = JsonEvent {
            data: EventData::Cleared(Cleared {
                reason: ClearReason::EngineRestart,
                tiers: vec![StorageTier::Device, StorageTier::HostPinned],
            }),
            ..event
        };
        assert!(cleared.to_line().contains(r#""reason":"engine_restart","tiers":["device","host_pinned"]"#));
        assert_eq!(JsonEvent::parse(&cleared.to_line()).unwrap(), cleared);
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        for (line, says) in [
            (r#"{"event_id":1}"#, "unknown variant"),
            (r#"{"data":{"stored":{}}}"#, "missing field `blocks`"),
            (r#"{"data":"cleared","payload":"*"}"#, "payload"),
            (r#"{"removed":{"block_hashes":[-1]}}"#, "-1"),
            ("", "EOF"),
        ] {
            let error = JsonEvent::parse(line).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
