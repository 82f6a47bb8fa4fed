//! Arithmetic on host memory.

use crate::answer::{INVALID_ARGUMENT, Refused};

/// Length of an element, by `ncclDataType_t`.
pub(crate) fn len_bytes(data_type: i32) -> Result<usize, Refused> {
    match data_type {
        0 | 1 | 10 | 11 => Ok(1),
        6 | 9 => Ok(2),
        2 | 3 | 7 => Ok(4),
        4 | 5 | 8 => Ok(8),
        _ => Err(Refused(INVALID_ARGUMENT, "there is no such element type")),
    }
}

/// Whether the stand-in can reduce elements of this type, and by this operation.
pub(crate) fn check(data_type: i32, op: i32) -> Result<(), Refused> {
    match (data_type, op) {
        (2 | 7 | 8, 0..=4) => Ok(()),
        (_, 0..=4) => {
            Err(Refused(INVALID_ARGUMENT, "the stand-in reduces int32, float and double"))
        }
        _ => Err(Refused(INVALID_ARGUMENT, "there is no such operation")),
    }
}

/// Reduces inputs of equal length, by rank.
pub(crate) fn reduce(data_type: i32, op: i32, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut output = match data_type {
        2 => fold(
            inputs,
            i32::from_ne_bytes,
            i32::to_ne_bytes,
            |a, b| match op {
                1 => a.wrapping_mul(b),
                2 => a.max(b),
                3 => a.min(b),
                _ => a.wrapping_add(b),
            },
            |sum| if op == 4 { sum / inputs.len() as i32 } else { sum },
        ),
        7 => fold(
            inputs,
            f32::from_ne_bytes,
            f32::to_ne_bytes,
            |a, b| match op {
                1 => a * b,
                2 => a.max(b),
                3 => a.min(b),
                _ => a + b,
            },
            |sum| if op == 4 { sum / inputs.len() as f32 } else { sum },
        ),
        _ => fold(
            inputs,
            f64::from_ne_bytes,
            f64::to_ne_bytes,
            |a, b| match op {
                1 => a * b,
                2 => a.max(b),
                3 => a.min(b),
                _ => a + b,
            },
            |sum| if op == 4 { sum / inputs.len() as f64 } else { sum },
        ),
    };
    let wrong = std::env::var("OXCCL_NCCL_STAND_IN_WRONG").is_ok_and(|value| value == "1");
    if let Some(last) = output.last_mut().filter(|_| wrong) {
        *last ^= 0x40;
    }
    output
}

fn fold<T: Copy, const N: usize>(
    inputs: &[Vec<u8>],
    read: fn([u8; N]) -> T,
    write: fn(T) -> [u8; N],
    combine: impl Fn(T, T) -> T,
    finish: impl Fn(T) -> T,
) -> Vec<u8> {
    let element = |input: &Vec<u8>, at: usize| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&input[at..at + N]);
        read(bytes)
    };
    let Some((first, others)) = inputs.split_first() else { return Vec::new() };
    let places = (0..first.len()).step_by(N);
    let reduced = places.flat_map(|at| {
        let all =
            others.iter().fold(element(first, at), |sum, next| combine(sum, element(next, at)));
        write(finish(all))
    });
    reduced.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn operations_are_what_they_are_called() {
        let inputs = [bytes(&[1.0, 5.0]), bytes(&[3.0, 2.0])];
        for (op, expected) in
            [(0, [4.0, 7.0]), (1, [3.0, 10.0]), (2, [3.0, 5.0]), (3, [1.0, 2.0]), (4, [2.0, 3.5])]
        {
            assert_eq!(reduce(7, op, &inputs), bytes(&expected), "op {op}");
        }
        assert!(check(7, 0).is_ok() && check(6, 0).is_err() && check(7, 9).is_err());
    }
}
