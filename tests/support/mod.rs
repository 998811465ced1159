//! What the tests share. Each test file uses a part of it.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod child;
pub mod churn;
pub mod cut_verb;
pub mod events;
pub mod files;
pub mod kill;
pub mod powerfs;
pub mod random;
pub mod rows;
pub mod skip;
pub mod told;
