//! A subscriber that kills its own process, with SIGKILL, at a chosen phase of the journal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Where to die: in the `nth` entry of `phase`, `delay` after it.
#[derive(Clone, Debug)]
pub struct KillAt {
    pub phase: String,
    pub nth: u64,
    pub delay: Duration,
}

impl KillAt {
    /// From `phase:nth:micros`.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.split(':');
        let phase = parts.next().expect("a phase").to_owned();
        let nth = parts.next().expect("a count").parse().expect("a number");
        let micros = parts.next().expect("a delay").parse().expect("a number");
        Self { phase, nth, delay: Duration::from_micros(micros) }
    }

    /// Makes this process die there.
    pub fn arm(self) {
        let killer = Killer { at: self, seen: AtomicU64::new(0) };
        tracing::subscriber::set_global_default(killer).expect("nobody else subscribes in this process");
    }
}

struct Killer {
    at: KillAt,
    seen: AtomicU64,
}

/// Ends this process as the kernel's memory killer would.
pub fn kill_self() {
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).expect("one may kill oneself");
}

impl Subscriber for Killer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "kvjournal::phase"
    }

    fn event(&self, event: &Event<'_>) {
        struct Found<'a>(&'a str, bool, bool);
        impl Visit for Found<'_> {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.1 |= field.name() == "phase" && value == self.0;
            }
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.2 |= field.name() == "message" && format!("{value:?}") == "enter";
            }
        }
        let mut found = Found(&self.at.phase, false, false);
        event.record(&mut found);
        if found.1 && found.2 && self.seen.fetch_add(1, Ordering::Relaxed) == self.at.nth {
            if self.at.delay.is_zero() {
                kill_self();
            }
            let delay = self.at.delay;
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                kill_self();
            });
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
