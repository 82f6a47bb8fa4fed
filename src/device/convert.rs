//! The machine's conversions of elements, and elements as bytes.

use oxccl_plans::element::{DataType, Element};

use oxccl_kernels::HostExecutor;

/// Rounds f32s, as bytes, to as many elements of a small float type.
pub(crate) fn narrow(data_type: DataType, from: &[u8], to: &mut [u8]) {
    let count = from.len() / 4;
    assert_eq!(to.len(), count * data_type.len_bytes());
    // SAFETY: both hold so many elements, and are bytes of elements, so they are aligned.
    unsafe {
        HostExecutor::detect().convert_elements(
            data_type,
            false,
            from.as_ptr(),
            to.as_mut_ptr(),
            count,
        );
    }
}

/// The f32s, as bytes, of as many elements of a small float type.
pub(crate) fn widen(data_type: DataType, from: &[u8], to: &mut [u8]) {
    let count = to.len() / 4;
    assert_eq!(from.len(), count * data_type.len_bytes());
    // SAFETY: as in `narrow`.
    unsafe {
        HostExecutor::detect().convert_elements(
            data_type,
            true,
            from.as_ptr(),
            to.as_mut_ptr(),
            count,
        );
    }
}

/// The elements' bytes.
pub(crate) fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The elements' bytes.
pub(crate) fn bytes_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`; any bits are an element.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
