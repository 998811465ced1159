//! A cursor over msgpack that trusts no length: nothing is allocated for what the bytes do not back, and nesting is
//! followed with a bounded stack.

use rmp::Marker;

/// Deepest nesting that is followed. Engines nest five deep.
pub(super) const DEPTH_MAX: usize = 64;

/// One value, or the head of one that holds others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Nil,
    Bool,
    /// The two's complement bits, and whether the number is below zero.
    Int {
        bits: u64,
        negative: bool,
    },
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext,
    Array(usize),
    Map(usize),
}

/// Why bytes are no msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within a value.
    #[error("the bytes end within a value")]
    Cut,
    /// A length that the bytes cannot back.
    #[error("{claimed} values are claimed, {left} bytes are left")]
    Length {
        /// Values that are claimed.
        claimed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Nested too deep.
    #[error("nested deeper than {DEPTH_MAX}")]
    Depth,
    /// The byte 0xc1, which msgpack never uses.
    #[error("a byte 0xc1")]
    Reserved,
}

/// Where reading is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads one value or head.
    pub(super) fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let marker = Marker::from_u8(self.be::<1>()?[0]);
        let positive = |bits| Token::Int { bits, negative: false };
        let signed = |value: i64| Token::Int { bits: value as u64, negative: value < 0 };
        Ok(match marker {
            Marker::Null => Token::Nil,
            Marker::True | Marker::False => Token::Bool,
            Marker::FixPos(value) => positive(u64::from(value)),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => positive(u64::from(u8::from_be_bytes(self.be()?))),
            Marker::U16 => positive(u64::from(u16::from_be_bytes(self.be()?))),
            Marker::U32 => positive(u64::from(u32::from_be_bytes(self.be()?))),
            Marker::U64 => positive(u64::from_be_bytes(self.be()?)),
            Marker::I8 => signed(i64::from(i8::from_be_bytes(self.be()?))),
            Marker::I16 => signed(i64::from(i16::from_be_bytes(self.be()?))),
            Marker::I32 => signed(i64::from(i32::from_be_bytes(self.be()?))),
            Marker::I64 => signed(i64::from_be_bytes(self.be()?)),
            Marker::F32 => Token::Float(f64::from(f32::from_be_bytes(self.be()?))),
            Marker::F64 => Token::Float(f64::from_be_bytes(self.be()?)),
            Marker::FixStr(len) => Token::Str(self.take(usize::from(len))?),
            Marker::Str8 => Token::Str(self.sized::<1>()?),
            Marker::Str16 => Token::Str(self.sized::<2>()?),
            Marker::Str32 => Token::Str(self.sized::<4>()?),
            Marker::Bin8 => Token::Bin(self.sized::<1>()?),
            Marker::Bin16 => Token::Bin(self.sized::<2>()?),
            Marker::Bin32 => Token::Bin(self.sized::<4>()?),
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.sized_ext::<1>()?,
            Marker::Ext16 => self.sized_ext::<2>()?,
            Marker::Ext32 => self.sized_ext::<4>()?,
            Marker::FixArray(len) => Token::Array(self.backed(usize::from(len), 1)?),
            Marker::Array16 => Token::Array(self.len::<2>().and_then(|len| self.backed(len, 1))?),
            Marker::Array32 => Token::Array(self.len::<4>().and_then(|len| self.backed(len, 1))?),
            Marker::FixMap(len) => Token::Map(self.backed(usize::from(len), 2)?),
            Marker::Map16 => Token::Map(self.len::<2>().and_then(|len| self.backed(len, 2))?),
            Marker::Map32 => Token::Map(self.len::<4>().and_then(|len| self.backed(len, 2))?),
            Marker::Reserved => return Err(Malformed::Reserved),
        })
    }

    /// Passes over one whole value and gives its bytes.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        // Values still to pass at each depth; a bounded stack instead of recursion.
        let mut open = [0_usize; DEPTH_MAX];
        let mut depth = 0;
        loop {
            let inside = match self.token()? {
                Token::Array(len) => len,
                Token::Map(len) => len * 2,
                _ => 0,
            };
            if inside > 0 {
                depth += 1;
                *open.get_mut(depth - 1).ok_or(Malformed::Depth)? = inside;
            } else {
                while depth > 0 && open[depth - 1] == 1 {
                    depth -= 1;
                }
                if depth == 0 {
                    return Ok(&self.bytes[start..self.at]);
                }
                open[depth - 1] -= 1;
            }
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len()).ok_or(Malformed::Cut)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn be<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    fn len<const N: usize>(&mut self) -> Result<usize, Malformed> {
        Ok(self.take(N)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))
    }

    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.len::<N>()?;
        self.take(len)
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        self.take(len + 1).map(|_| Token::Ext)
    }

    fn sized_ext<const N: usize>(&mut self) -> Result<Token<'a>, Malformed> {
        let len = self.len::<N>()?;
        self.ext(len)
    }

    /// Each value takes a byte at least.
    fn backed(&self, len: usize, values_each: usize) -> Result<usize, Malformed> {
        let left = self.left();
        if len.saturating_mul(values_each) > left {
            return Err(Malformed::Length { claimed: len, left });
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_passed_over_whole_and_no_further() {
        // {"a": [1, nil, {"b": bin(2)}], "c": "x"} 7
        let bytes = b"\x82\xa1a\x93\x01\xc0\x81\xa1b\xc4\x02\x00\x00\xa1c\xa1x\x07";
        let mut cursor = Cursor::new(bytes);
        assert_eq!(cursor.skip().unwrap(), &bytes[..bytes.len() - 1]);
        assert_eq!(cursor.token(), Ok(Token::Int { bits: 7, negative: false }));
        assert_eq!(cursor.token(), Err(Malformed::Cut));
    }

    #[test]
    fn lies_about_length_and_depth_are_seen_at_once() {
        assert_eq!(
            Cursor::new(b"\xdd\xff\xff\xff\xff\x00").token(),
            Err(Malformed::Length { claimed: u32::MAX as usize, left: 1 })
        );
        assert_eq!(Cursor::new(&[0x91; 100_000]).skip(), Err(Malformed::Depth));
        assert_eq!(Cursor::new(b"\xc1").skip(), Err(Malformed::Reserved));
        assert_eq!(Cursor::new(b"\xdb\x00\x00\x00\x09abc").skip(), Err(Malformed::Cut));
    }
}
