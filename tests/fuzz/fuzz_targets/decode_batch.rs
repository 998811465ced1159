//! Any bytes have an answer, and what is read of them lies in them.
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
