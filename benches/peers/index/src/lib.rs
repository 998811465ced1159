//! What the differential tests and the figures share: streams of events and the requests that made them, the same
//! events in Dynamo's types, and the table that the package's own figures are printed in.

pub mod dynamo;
pub mod streams;
#[path = "../../../figures/table.rs"]
pub mod table;
