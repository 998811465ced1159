//! Traces in Mooncake's format: one request a line, its prompt as ids of blocks of 512 tokens.

use std::io::{BufRead, Read};

use serde::Deserialize;

/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// One request. An id always follows the same id, so that equal prefixes have equal ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Request {
    /// When it came, milliseconds from the start of the trace.
    #[serde(rename = "timestamp")]
    pub timestamp_ms: u64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The prompt's blocks.
    pub hash_ids: Vec<u64>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line that is no request.
    #[error("line {line}: {source}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A line that is too long.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    Long {
        /// Its number, from 1.
        line: u64,
    },
    /// The file cannot be read.
    #[error("line {line} cannot be read: {source}")]
    Io {
        /// Its number, from 1.
        line: u64,
        /// The file system's answer.
        source: std::io::Error,
    },
}

/// The requests of a trace, one by one; blank lines are passed over.
pub fn read_trace(mut input: impl BufRead) -> impl Iterator<Item = Result<Request, TraceError>> {
    let mut number = 0;
    std::iter::from_fn(move || {
        loop {
            number += 1;
            let mut line = String::new();
            match (&mut input).take(LINE_BYTES_MAX + 1).read_line(&mut line) {
                Err(source) => return Some(Err(TraceError::Io { line: number, source })),
                Ok(0) => return None,
                Ok(len) if len as u64 > LINE_BYTES_MAX => {
                    return Some(Err(TraceError::Long { line: number }));
                }
                Ok(_) if line.trim().is_empty() => {}
                Ok(_) => {
                    let parsed = serde_json::from_str(&line);
                    return Some(parsed.map_err(|source| TraceError::Line { line: number, source }));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_a_bad_line_is_named() {
        let text =
            "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [1, 2]}\n\n{\"x\"";
        let read: Vec<_> = read_trace(text.as_bytes()).collect();
        assert_eq!(read.len(), 2);
        let first = read[0].as_ref().unwrap();
        assert_eq!((first.timestamp_ms, &first.hash_ids[..]), (5, &[1, 2][..]));
        assert!(read[1].as_ref().unwrap_err().to_string().starts_with("line 3: "));
        let long = "x".repeat(LINE_BYTES_MAX as usize + 1);
        assert!(matches!(read_trace(long.as_bytes()).next(), Some(Err(TraceError::Long { line: 1 }))));
    }
}
