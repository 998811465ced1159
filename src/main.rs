//! The `kvjournal` binary.

fn main() {}
