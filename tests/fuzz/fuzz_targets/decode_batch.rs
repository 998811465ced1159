//! Any bytes have an answer, and what is read of them lies in them.
//!
//! With a stable compiler, from `tests/fuzz` (`--target` keeps the flags from build scripts):
//!
//! ```text
//! export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
//!   -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing"
//! cargo build --target x86_64-unknown-linux-gnu
//! mkdir -p corpus/decode_batch artifacts
//! target/x86_64-unknown-linux-gnu/debug/decode_batch -max_total_time=180 -artifact_prefix=artifacts/ \
//!   corpus/decode_batch ../fixtures/samples
//! ```
//!
//! With a nightly one and cargo-fuzz, from the root, which adds the address sanitizer:
//! `cargo +nightly fuzz run --fuzz-dir tests/fuzz decode_batch tests/fixtures/samples`.
#![no_main]

use kvjournal::engine::decode_batch;
use kvjournal::engine::rules::DecodeOptions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let read = match decode_batch(bytes, DecodeOptions::default()) {
        Ok(batch) => batch,
        Err(error) => {
            assert!(error.offset <= bytes.len());
            error.read
        }
    };
    for event in read.events {
        assert!(bytes.get(event.payload).is_some_and(|payload| !payload.is_empty()));
    }
});
