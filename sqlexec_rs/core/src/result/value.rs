//! A SQLite value and its equality.
//!
//! Every rule uses **Python equality**, like the published scorers: `1 == 1.0`, `'1' != 1`, `NULL == NULL`, bytes
//! differ from text, and an integer equals a float only if the float is exactly that integer.

use std::hash::{Hash, Hasher};

/// A value returned by SQLite. Text keeps its bytes, valid UTF-8 or not.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// A 64-bit signed integer.
    Integer(i64),
    /// A double. SQLite never returns NaN (it becomes NULL).
    Real(f64),
    /// Text as bytes, which may be invalid UTF-8 in a hostile or damaged database.
    Text(&'a [u8]),
    /// A blob.
    Blob(&'a [u8]),
}

impl Value<'_> {
    /// Returns whether the two values are equal in Python.
    #[inline]
    pub fn equals(self, other: Value<'_>) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Integer(a), Value::Integer(b)) => a == b,
            (Value::Real(a), Value::Real(b)) => a == b,
            (Value::Integer(i), Value::Real(r)) | (Value::Real(r), Value::Integer(i)) => exact_integer(r) == Some(i),
            (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => a == b,
            _ => false,
        }
    }

    /// Returns whether the two values have the same type and bits.
    #[inline]
    pub fn is_identical(self, other: Value<'_>) -> bool {
        match (self, other) {
            (Value::Real(a), Value::Real(b)) => a.to_bits() == b.to_bits(),
            (Value::Integer(_), Value::Real(_)) | (Value::Real(_), Value::Integer(_)) => false,
            _ => self.equals(other),
        }
    }
}

/// Equal values have equal hashes (1 and 1.0, 0.0 and -0.0).
impl Hash for Value<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match *self {
            Value::Null => state.write_u8(0),
            Value::Integer(i) => state.write_i64(i),
            Value::Real(r) => match exact_integer(r) {
                Some(i) => state.write_i64(i),
                None => state.write_u64(r.to_bits()),
            },
            Value::Text(bytes) => state.write(bytes),
            Value::Blob(bytes) => {
                state.write(bytes);
                state.write_u8(0);
            }
        }
    }
}

/// Returns the 64-bit integer that equals a float, if there is one.
#[inline]
pub fn exact_integer(r: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0; // 2^63, itself outside
    if is_fraction(r.to_bits()) {
        return None;
    }
    let i = r as i64;
    (i as f64 == r && r < LIMIT).then_some(i)
}

/// Returns whether a fractional bit is set, which identifies most floats that are not integers.
#[inline]
fn is_fraction(bits: u64) -> bool {
    let n_before_point = (bits >> 52 & 0x7ff).wrapping_sub(1023);
    // Below one, the number of bits before the point wraps and is large.
    if n_before_point < 52 { bits << (12 + n_before_point) != 0 } else { n_before_point > 1024 && bits << 1 != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::row_hash::hash_one;

    #[test]
    fn equality_matches_python() {
        assert!(Value::Integer(1).equals(Value::Real(1.0)));
        assert!(Value::Null.equals(Value::Null));
        assert!(Value::Real(0.0).equals(Value::Real(-0.0)));
        assert!(!Value::Integer(1).equals(Value::Text(b"1")));
        assert!(!Value::Text(b"a").equals(Value::Blob(b"a")));
        assert!(!Value::Null.equals(Value::Integer(0)));
        // 2^53 + 1 rounds to 2^53 as a float. Python compares exactly, so they differ.
        let big = (1_i64 << 53) + 1;
        assert!(!Value::Integer(big).equals(Value::Real(big as f64)));
        assert!(!Value::Integer(i64::MAX).equals(Value::Real(i64::MAX as f64)));
        assert!(Value::Integer(i64::MIN).equals(Value::Real(i64::MIN as f64)));
    }

    #[test]
    fn integral_floats_are_detected() {
        for i in [0, 1, -1, 2, -3, 255, (1 << 52) - 1, 1 << 52, (1 << 53) - 1, -(1 << 62), i64::MIN] {
            assert_eq!(exact_integer(i as f64), Some(i));
        }
        let mut fraction = 0.5;
        while fraction > 0.0 {
            assert_eq!(
                (exact_integer(fraction), exact_integer(-1.0 - fraction)),
                (None, (fraction < 2e-16).then_some(-1))
            );
            fraction /= 2.0;
        }
        for r in [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e300, 9.3e18, (1_i64 << 51) as f64 + 0.5, f64::MIN_POSITIVE]
        {
            assert_eq!(exact_integer(r), None, "{r}");
        }
    }

    #[test]
    fn identity_distinguishes_types_and_signs() {
        assert!(Value::Real(1.0).is_identical(Value::Real(1.0)));
        assert!(!Value::Real(1.0).is_identical(Value::Integer(1)));
        assert!(!Value::Real(0.0).is_identical(Value::Real(-0.0)));
    }

    #[test]
    fn equal_values_have_equal_hashes() {
        for i in [0, 1, -1, 1 << 53, i64::MIN] {
            assert_eq!(hash_one(Value::Integer(i)), hash_one(Value::Real(i as f64)));
        }
        assert_eq!(hash_one(Value::Real(0.0)), hash_one(Value::Real(-0.0)));
        assert_ne!(hash_one(Value::Text(b"a")), hash_one(Value::Blob(b"a")));
        assert_ne!(hash_one(Value::Real(0.5)), hash_one(Value::Real(0.25)));
    }
}
