//! Compaction: a history replaced by the least of it that leaves the same state.

mod hold;
mod plan;
mod planner;
mod reading;
mod run;
mod slots;
#[cfg(test)]
mod tests;

#[cfg(test)]
use plan::Plan;
#[cfg(test)]
use planner::Planner;
pub(crate) use reading::Reading;
pub(crate) use run::{Outcome, Run};
