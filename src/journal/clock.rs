//! The wall clock and the machine's boot: read here only.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970; zero if the clock stands before that.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    since_1970().as_micros() as u64
}

/// The kernel's id of this boot (Linux); zero where there is none, which counts as another boot each time.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}
