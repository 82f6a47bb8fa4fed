//! The sizes of a sweep.

/// How sizes grow.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// By so many bytes.
    Bytes(usize),
    /// So many times.
    Factor(usize),
}

/// All sizes from `min` to `max`, both included if the steps meet them.
///
/// # Errors
/// Says what would make it endless or empty.
pub(crate) fn progression(min: usize, max: usize, step: Step) -> Result<Vec<usize>, String> {
    if min > max {
        return Err(format!("--minbytes is {min}, which is more than --maxbytes, {max}"));
    }
    if min == max {
        return Ok(vec![min]);
    }
    match step {
        Step::Bytes(0) => return Err("--stepbytes must be above 0".to_owned()),
        Step::Factor(0 | 1) => return Err("--stepfactor must be at least 2".to_owned()),
        Step::Factor(_) if min == 0 => {
            return Err("--minbytes must be above 0 where sizes are multiplied: use -i".to_owned());
        }
        _ => {}
    }
    let next = |size: &usize| match step {
        Step::Bytes(bytes) => size.checked_add(bytes),
        Step::Factor(factor) => size.checked_mul(factor),
    };
    Ok(std::iter::successors(Some(min), next).take_while(|size| *size <= max).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_to_the_end() {
        assert_eq!(progression(8, 64, Step::Factor(2)), Ok(vec![8, 16, 32, 64]));
        assert_eq!(progression(8, 70, Step::Factor(4)), Ok(vec![8, 32]));
        assert_eq!(progression(0, 20, Step::Bytes(8)), Ok(vec![0, 8, 16]));
        assert_eq!(progression(5, 5, Step::Factor(1)), Ok(vec![5]));
        assert_eq!(progression(1, usize::MAX, Step::Factor(2)).map(|s| s.len()), Ok(64));
    }

    #[test]
    fn endless_sweeps_are_refused() {
        for (min, max, step) in [
            (9, 8, Step::Factor(2)),
            (8, 64, Step::Factor(1)),
            (0, 64, Step::Factor(2)),
            (8, 64, Step::Bytes(0)),
        ] {
            assert!(progression(min, max, step).is_err(), "{min} {max} {step:?}");
        }
    }
}
