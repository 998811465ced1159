//! What the differential tests and the figures share: streams of events and the requests that made them, and the same
//! events in Dynamo's types.

pub mod dynamo;
pub mod streams;
