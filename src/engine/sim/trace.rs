//! Request traces in the form that Mooncake published: JSON Lines, one request a line, its prompt as ids of blocks
//! of 512 tokens.
//!
//! `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}`. An id stands for its block and
//! all before it, so equal prefixes have equal ids. The last id of a prompt usually stands for fewer tokens; the
//! double takes it as whole.

use std::io::{BufRead, Read};

use serde::Deserialize;

/// Longest line that is read, its end included: 1 MiB.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Most ids of one request: a prompt of 33 million tokens.
pub const IDS_MAX: usize = 65_536;

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Request {
    /// When it came, milliseconds from the start of the trace.
    #[serde(rename = "timestamp")]
    pub timestamp_ms: u64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The prompt's blocks of [`TRACE_BLOCK_TOKENS`](super::TRACE_BLOCK_TOKENS) tokens.
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
    /// A request of too many blocks.
    #[error("line {line}: {ids} hash_ids, the most are {IDS_MAX}")]
    Ids {
        /// Its number, from 1.
        line: u64,
        /// Ids it has.
        ids: usize,
    },
    /// The trace cannot be read.
    #[error("line {line} cannot be read: {source}")]
    Io {
        /// Its number, from 1.
        line: u64,
        /// What the reader said.
        source: std::io::Error,
    },
}

/// The requests of a trace, one by one; blank lines are passed over, and the first error is the last item.
///
/// # Errors
/// Each item may be a [`TraceError`] with the number of its line.
pub fn read_trace(mut input: impl BufRead) -> impl Iterator<Item = Result<Request, TraceError>> {
    let mut line = 0;
    let mut bytes = Vec::new();
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let next = next_request(&mut input, &mut bytes, &mut line).transpose();
        failed = matches!(next, Some(Err(_)));
        next
    })
}

fn next_request(
    input: &mut impl BufRead,
    bytes: &mut Vec<u8>,
    line: &mut u64,
) -> Result<Option<Request>, TraceError> {
    loop {
        *line += 1;
        let line = *line;
        bytes.clear();
        // One byte more than is allowed, so that a line that is too long is told from one that just fits.
        let mut limited = input.take(LINE_BYTES_MAX as u64 + 1);
        let len = limited.read_until(b'\n', bytes).map_err(|source| TraceError::Io { line, source })?;
        if len == 0 {
            return Ok(None);
        }
        if len > LINE_BYTES_MAX {
            return Err(TraceError::Long { line });
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let request: Request =
            serde_json::from_slice(bytes).map_err(|source| TraceError::Line { line, source })?;
        let ids = request.hash_ids.len();
        if ids > IDS_MAX {
            return Err(TraceError::Ids { line, ids });
        }
        return Ok(Some(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<Request, TraceError>> {
        read_trace(bytes).collect()
    }

    fn of_ids(count: usize) -> String {
        let ids = vec!["7"; count].join(",");
        format!(r#"{{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[{ids}]}}"#)
    }

    #[test]
    fn requests_are_read_past_blank_lines_and_without_a_last_line_end() {
        let read = read(
            b"{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [1, 2]}\r\n\n \n\
              {\"hash_ids\": [], \"output_length\": 0, \"input_length\": 0, \"timestamp\": 6, \"more\": {}}",
        );
        let read: Vec<Request> = read.into_iter().map(Result::unwrap).collect();
        let first = Request { timestamp_ms: 5, input_length: 600, output_length: 7, hash_ids: vec![1, 2] };
        assert_eq!(read, [first, Request { timestamp_ms: 6, ..Request::default() }]);
    }

    #[test]
    fn a_bad_line_is_named_and_ends_the_trace() {
        let good = of_ids(1);
        for bad in ["{\"x\"", "[]", "{}", "{\"timestamp\":-1}", "\u{0}", "null"] {
            let read = read(format!("{good}\n\n{bad}\n{good}\n").as_bytes());
            assert_eq!(read.len(), 2, "{bad}");
            let error = read[1].as_ref().unwrap_err();
            assert!(matches!(error, TraceError::Line { line: 3, .. }), "{bad}: {error}");
            assert!(error.to_string().starts_with("line 3: "), "{error}");
        }
        assert!(matches!(read(b"\xff\xfe\n")[..], [Err(TraceError::Line { line: 1, .. })]));
    }

    #[test]
    fn a_line_at_the_limit_is_read_and_one_byte_more_is_not() {
        let mut line = of_ids(2);
        line.push_str(&" ".repeat(LINE_BYTES_MAX - line.len()));
        assert!(matches!(read(line.as_bytes())[..], [Ok(_)]));
        line.push(' ');
        assert!(matches!(read(line.as_bytes())[..], [Err(TraceError::Long { line: 1 })]));
    }

    #[test]
    fn as_many_ids_as_allowed_are_read_and_one_more_is_not() {
        assert!(matches!(read(of_ids(IDS_MAX).as_bytes())[..], [Ok(_)]));
        let too_many = read(of_ids(IDS_MAX + 1).as_bytes());
        assert!(matches!(too_many[..], [Err(TraceError::Ids { line: 1, ids })] if ids == IDS_MAX + 1));
    }

    #[test]
    fn a_reader_that_fails_is_an_error_and_not_the_end() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("gone"))
            }
        }
        let read: Vec<_> = read_trace(std::io::BufReader::new(Broken)).collect();
        assert!(matches!(read[..], [Err(TraceError::Io { line: 1, .. })]));
    }
}
