//! Lengths: the one place where counts, lengths and sizes that come from a caller are added and
//! multiplied.
//!
//! Whatever becomes a buffer, an offset into one or a part of one goes through a [`Length`], which
//! no sum or product can wrap. Offsets inside of a length that has been made need no check of their
//! own: they are at most as large.

use thiserror::Error;

/// So many elements, whose bytes memory can have: at most `isize::MAX`, as of any slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    count: usize,
    size_bytes: usize,
}

/// What was asked for is longer than memory can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("more than {} bytes, the most that a buffer can have", isize::MAX)]
pub struct TooLong;

impl Length {
    /// So many elements of `size_bytes` each.
    #[inline]
    pub fn new(count: usize, size_bytes: usize) -> Result<Length, TooLong> {
        match count.checked_mul(size_bytes) {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(Length { count, size_bytes }),
            _ => Err(TooLong),
        }
    }

    /// So many bytes.
    #[inline]
    pub fn of_bytes(len_bytes: usize) -> Result<Length, TooLong> {
        Length::new(len_bytes, 1)
    }

    /// As many elements as all counts together.
    pub fn sum(
        counts: impl IntoIterator<Item = usize>,
        size_bytes: usize,
    ) -> Result<Length, TooLong> {
        let none = Length { count: 0, size_bytes };
        counts.into_iter().try_fold(none, Length::plus)
    }

    /// So many elements more.
    #[inline]
    pub fn plus(self, count: usize) -> Result<Length, TooLong> {
        Length::new(self.count.checked_add(count).ok_or(TooLong)?, self.size_bytes)
    }

    /// So many times as long.
    #[inline]
    pub fn times(self, factor: usize) -> Result<Length, TooLong> {
        Length::new(self.count.checked_mul(factor).ok_or(TooLong)?, self.size_bytes)
    }

    /// The next multiple of so many elements.
    #[inline]
    pub fn padded(self, unit: usize) -> Result<Length, TooLong> {
        Length::new(self.count.checked_next_multiple_of(unit).ok_or(TooLong)?, self.size_bytes)
    }

    /// Number of elements.
    #[inline]
    pub fn count(self) -> usize {
        self.count
    }

    /// Their bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.count * self.size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = isize::MAX as usize;

    #[test]
    fn nothing_wraps() {
        assert_eq!(Length::new(MOST / 4, 4).map(Length::bytes), Ok(MOST / 4 * 4));
        for (count, size_bytes) in
            [(MOST / 4 + 1, 4), (usize::MAX, 1), (usize::MAX, 8), (1 << 62, 4)]
        {
            assert_eq!(Length::new(count, size_bytes), Err(TooLong), "{count} of {size_bytes}");
        }
        assert_eq!(Length::sum([8, usize::MAX - 3], 1), Err(TooLong));
        assert_eq!(Length::sum([MOST, 1], 1), Err(TooLong));
        assert_eq!(Length::sum([MOST - 1, 1, 0], 1).map(Length::count), Ok(MOST));
        let half = Length::new(MOST / 8, 4).unwrap();
        assert!(half.times(2).is_ok());
        assert_eq!(half.times(3), Err(TooLong));
        assert_eq!(half.times(usize::MAX), Err(TooLong));
        assert_eq!(half.plus(usize::MAX), Err(TooLong));
    }

    #[test]
    fn padding_is_checked() {
        assert_eq!(Length::of_bytes(5).unwrap().padded(4).map(Length::bytes), Ok(8));
        assert_eq!(Length::of_bytes(MOST).unwrap().padded(4096), Err(TooLong));
        assert_eq!(Length::of_bytes(usize::MAX), Err(TooLong));
    }
}
