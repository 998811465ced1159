//! The table: a line a figure, printed as soon as it is known. The index's peers print theirs with it, too.
#![allow(unreachable_pub, clippy::print_stdout, reason = "a module of two programs, which print for people")]
#![allow(missing_docs, clippy::must_use_candidate, clippy::new_without_default, reason = "not a library's")]

use std::fmt::Write;

/// What a figure has to reach.
#[derive(Clone, Copy)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// There is none: it is for the reader.
    None,
}

pub struct Table {
    json: bool,
    rounds: usize,
    headed: bool,
}

impl Table {
    pub fn new(json: bool, rounds: usize) -> Self {
        Self { json, rounds, headed: false }
    }

    /// Prints a figure of at least one round.
    pub fn row(&mut self, name: &str, bar: Bar, mut values: Vec<f64>) {
        let [q1, median, q3] = [0.25, 0.5, 0.75].map(|share| quantile(&mut values, share));
        let (bar, met) = match bar {
            Bar::AtLeast(least) => (format!(">= {least}"), Some(median >= least)),
            Bar::AtMost(most) => (format!("<= {most}"), Some(median <= most)),
            Bar::None => (String::new(), None),
        };
        let rounds = values.len();
        if self.json {
            println!(
                "{}",
                serde_json::json!({"name": name, "q1": q1, "median": median, "q3": q3, "bar": bar, "met": met,
                    "rounds": rounds})
            );
            return;
        }
        if !self.headed {
            println!("{:<62} {:>9} {:>9} {:>9}", format!("{} rounds", self.rounds), "q1", "median", "q3");
            self.headed = true;
        }
        let mut line = format!("{name:<62} {q1:>9.3} {median:>9.3} {q3:>9.3}  {bar:<7}");
        if let Some(met) = met {
            let _ = write!(line, " {}", if met { "met" } else { "MISSED" });
        }
        println!("{}", line.trim_end());
    }
}

/// Of at least one value; NaN of none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}
