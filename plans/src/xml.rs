//! XML of others.

use roxmltree::{Document, Error};

/// Reads it.
///
/// # Errors
/// The line, counted from 1, and what is wrong there.
pub(crate) fn document(text: &str) -> Result<Document<'_>, (usize, String)> {
    Document::parse(text).map_err(|error| match error {
        // Of which it does not say where.
        Error::UnexpectedEndOfStream | Error::UnclosedRootNode => {
            (text.lines().count().max(1), "the file ends in the middle".to_owned())
        }
        _ => (error.pos().row as usize, error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_ends_in_its_last_line() {
        let wrong = |text| document(text).unwrap_err();
        assert_eq!(wrong("<algo>\n  <gpu id=\"0\">\n    <tb").0, 3);
        assert_eq!(wrong("<algo>\n  <gpu id=\"0\">\n").0, 2);
        assert_eq!(wrong("").0, 1);
        let (line, fault) = wrong("<algo>\n</gpu>");
        assert!(line == 2 && fault.contains("gpu"), "{line}: {fault}");
    }
}
