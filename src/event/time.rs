//! The engine's clock, kept as it came: it may be a float or an integer, not a number, and go backwards, so it
//! is never used to order anything.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The time an engine wrote on a batch of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineTime {
    /// Seconds since 1970 as the bits of an f64 (vLLM, SGLang, TensorRT-LLM). Bits, since a NaN has to come out
    /// as it went in.
    #[serde(rename = "seconds_bits")]
    Seconds(u64),
    /// Milliseconds since 1970 (Mooncake).
    Millis(i64),
}

impl EngineTime {
    /// The time of a batch that came with a float.
    pub fn from_seconds(seconds: f64) -> Self {
        Self::Seconds(seconds.to_bits())
    }

    /// The time in seconds; NaN where the engine wrote that.
    pub fn as_seconds(self) -> f64 {
        match self {
            Self::Seconds(bits) => f64::from_bits(bits),
            Self::Millis(millis) => millis as f64 / 1e3,
        }
    }
}
