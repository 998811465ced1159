//! What a reader asks a worker for, and why it may get no page. From the network, so nothing of it is trusted.

use serde::{Deserialize, Serialize};

use crate::event::EventId;

use super::header::FRAME_BYTES_MAX;
use super::page_header::{EPOCH_BYTES, PAGE_BYTES_MAX, PAGE_EPOCHS_MAX, PAGE_HEADER_BYTES};

/// Longest request.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Fewest bytes that a page may be asked to keep to: a head with all its epochs, and the longest frame.
pub const PAGE_BYTES_MIN: usize = PAGE_HEADER_BYTES + EPOCH_BYTES * PAGE_EPOCHS_MAX + FRAME_BYTES_MAX;

/// A request for a page, as JSON: `{"from":12,"epoch":3,"nonce":99}`. Fields that are not known are passed over, so that
/// newer readers can ask older workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayRequest {
    /// The next id that the reader wants: 1 above the last one that it has, or what the page before said. Without an
    /// epoch all is sent, whatever it is.
    #[serde(default)]
    pub from: EventId,
    /// Number of the epoch of the page that the reader had last. None: it has nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Nonce of that epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// While the reader rebuilds the stream after a reset: the generation that the page with the reset named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Longest page that it takes, [`PAGE_BYTES_MIN`] or more. Default: as long as the worker makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<usize>,
    /// The form of the page.
    #[serde(default, skip_serializing_if = "ReplayFormat::is_pages")]
    pub format: ReplayFormat,
}

/// The form of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayFormat {
    /// As the document of the format says.
    #[default]
    Pages,
    /// As JSON, for people.
    Json,
}

impl ReplayFormat {
    fn is_pages(&self) -> bool {
        *self == Self::Pages
    }
}

impl ReplayRequest {
    /// The epoch that the reader is in, its number and nonce, and the last id that it has; `None` if it has nothing.
    ///
    /// # Errors
    /// `Malformed` if the fields do not go together, `TooSmall`.
    pub fn cursor(&self) -> Result<Option<(u64, u64, EventId)>, Refusal> {
        if let Some(bytes) = self.max_bytes
            && bytes < PAGE_BYTES_MIN
        {
            return Err(Refusal::TooSmall { least: PAGE_BYTES_MIN });
        }
        let malformed = |what: &str| Err(Refusal::Malformed { message: what.into() });
        match (self.epoch, self.nonce) {
            (None, None) if self.generation.is_none() => Ok(None),
            (None, None) => malformed("a generation without the epoch that it was told in"),
            (Some(_), None) | (None, Some(_)) => malformed("an epoch has a number and a nonce"),
            (Some(_), Some(_)) if self.from == 0 => malformed("ids start at 1"),
            (Some(epoch), Some(nonce)) => Ok(Some((epoch, nonce, self.from - 1))),
        }
    }

    /// Bytes that the page may have, given those that the worker allows.
    pub fn page_bytes(&self, allowed: usize) -> usize {
        self.max_bytes.unwrap_or(allowed).min(allowed).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// `Malformed`, `TooLarge`.
    pub fn parse(json: &[u8]) -> Result<Self, Refusal> {
        if json.len() > REQUEST_BYTES_MAX {
            return Err(Refusal::TooLarge { most: REQUEST_BYTES_MAX });
        }
        let malformed = |e: serde_json::Error| Refusal::Malformed { message: e.to_string() };
        // Through an object, since a list would do as well otherwise.
        let fields: serde_json::Map<_, _> = serde_json::from_slice(json).map_err(malformed)?;
        serde_json::from_value(fields.into()).map_err(malformed)
    }
}

/// Why a reader gets no page, as JSON: `{"error":"ahead","head":7}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The request makes no sense.
    #[error("malformed request: {message}")]
    Malformed {
        /// What is wrong.
        message: String,
    },
    /// The request is too long.
    #[error("a request has at most {most} bytes")]
    TooLarge {
        /// Longest one.
        most: usize,
    },
    /// The page would be too short for a frame.
    #[error("max_bytes has to be {least} or more")]
    TooSmall {
        /// Fewest bytes.
        least: usize,
    },
    /// The worker has no such stream, or nothing in it yet.
    #[error("no such stream: {message}")]
    NoStream {
        /// Which.
        message: String,
    },
    /// The reader has an id that was not given yet: wait for it.
    #[error("id {head} is the newest")]
    Ahead {
        /// Newest id that may be shown.
        head: EventId,
    },
    /// Too many ask: come again.
    #[error("busy, ask again in {retry_after_ms} ms")]
    Busy {
        /// When, in milliseconds.
        retry_after_ms: u64,
    },
    /// The journal cannot be read now.
    #[error("the journal cannot be read: {message}")]
    Failed {
        /// Why.
        message: String,
        /// Whether it helps to ask again.
        retry: bool,
    },
}

impl Refusal {
    /// The code that goes with it, as those of HTTP.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed { .. } | Self::TooSmall { .. } => 400,
            Self::NoStream { .. } => 404,
            Self::Ahead { .. } => 409,
            Self::TooLarge { .. } => 413,
            Self::Busy { .. } => 429,
            Self::Failed { retry: false, .. } => 500,
            Self::Failed { retry: true, .. } => 503,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(json: &str) -> Result<Option<(u64, u64, EventId)>, Refusal> {
        ReplayRequest::parse(json.as_bytes())?.cursor()
    }

    #[test]
    fn requests_are_read_and_written_as_documented() {
        let request = ReplayRequest { from: 12, epoch: Some(3), nonce: Some(99), ..ReplayRequest::default() };
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"from":12,"epoch":3,"nonce":99}"#);
        for given in ["", r#","generation":0,"later":[1]"#] {
            let json = format!(r#"{{"from":12,"epoch":3,"nonce":99{given}}}"#);
            assert_eq!(asked(&json), Ok(Some((3, 99, 11))));
        }
        for all in ["{}", r#"{"from":0}"#, r#"{"from":7,"format":"json"}"#] {
            assert_eq!(asked(all), Ok(None));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for json in [
            "",
            "[]",
            "{\"from\":-1}",
            "{\"from\":1.5}",
            "{\"format\":\"xml\"}",
            "{\"epoch\":1}",
            "{\"nonce\":1}",
            "{\"generation\":1}",
            "{\"from\":0,\"epoch\":1,\"nonce\":1}",
        ] {
            let refusal = asked(json).unwrap_err();
            assert!(matches!(refusal, Refusal::Malformed { .. }), "{json}: {refusal}");
            assert_eq!(refusal.code(), 400);
        }
        let long = format!("{{\"later\":\"{}\"}}", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(asked(&long), Err(Refusal::TooLarge { most: REQUEST_BYTES_MAX }));
        let small = format!("{{\"max_bytes\":{}}}", PAGE_BYTES_MIN - 1);
        assert_eq!(asked(&small), Err(Refusal::TooSmall { least: PAGE_BYTES_MIN }));
    }

    #[test]
    fn refusals_are_read_as_they_were_written() {
        let refusals = [
            (Refusal::Ahead { head: 7 }, r#"{"error":"ahead","head":7}"#, 409),
            (Refusal::Busy { retry_after_ms: 50 }, r#"{"error":"busy","retry_after_ms":50}"#, 429),
            (
                Refusal::Failed { message: "x".into(), retry: true },
                r#"{"error":"failed","message":"x","retry":true}"#,
                503,
            ),
        ];
        for (refusal, json, code) in refusals {
            assert_eq!(serde_json::to_string(&refusal).unwrap(), json);
            assert_eq!(serde_json::from_str::<Refusal>(json).unwrap(), refusal);
            assert_eq!(refusal.code(), code);
        }
    }
}
