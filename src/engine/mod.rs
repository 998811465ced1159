//! Engine payloads and events: what vLLM, SGLang, TensorRT-LLM and Mooncake say, decoded by the rules of
//! [`rules`], with each event's own bytes kept.

mod batch;
mod cut;
mod encode;
mod fields;
mod frames;
mod hash;
mod msgpack;
pub mod rules;
pub mod sim;

pub use batch::{BATCH_BYTES_MAX, Batch, BatchError, BatchFault, DecodedEvent, EVENTS_MAX, decode_batch};
pub use cut::{cut_removed, cut_stored, payload_blocks};
pub use encode::{EncodedForm, RawEvent, encode_batch};
pub use fields::EventProblem;
pub use frames::{FramesError, Message, Reply, decode_message, decode_reply};
pub use hash::{Namespace, tokens_hash};
pub use msgpack::Malformed;
