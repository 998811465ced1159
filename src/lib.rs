//! kvjournal: a durable journal of KV-cache events for LLM inference workers.

pub mod event;
