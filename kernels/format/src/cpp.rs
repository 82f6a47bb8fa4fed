//! How C++ declares what Rust has.

/// A type as C++ writes it: around the name of what is declared.
pub(crate) trait InCpp {
    fn declared(name: &str) -> String;
}

macro_rules! integers {
    ($($type:ty = $in_cpp:literal),+ $(,)?) => {
        $(impl InCpp for $type {
            fn declared(name: &str) -> String {
                format!(concat!($in_cpp, " {}"), name)
            }
        })+
    };
}

integers! {
    u8 = "uint8_t",
    u16 = "uint16_t",
    u32 = "uint32_t",
    u64 = "uint64_t",
    i32 = "int32_t",
    i64 = "int64_t",
    core::ffi::c_void = "void",
}

impl<T: InCpp> InCpp for *const T {
    fn declared(name: &str) -> String {
        T::declared(&format!("const* {name}"))
    }
}

impl<T: InCpp> InCpp for *mut T {
    fn declared(name: &str) -> String {
        T::declared(&format!("* {name}"))
    }
}

impl<A: InCpp, B: InCpp, R: InCpp> InCpp for Option<unsafe extern "C" fn(A, B) -> R> {
    fn declared(name: &str) -> String {
        R::declared(&format!("(*{name})({}, {})", A::declared(""), B::declared("")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_of_cpp() {
        assert_eq!(<*const *mut u8>::declared("at"), "uint8_t * const* at");
        assert_eq!(<*const crate::Header>::declared("program"), "Header const* program");
        type Poll = Option<unsafe extern "C" fn(*mut core::ffi::c_void, u32) -> u32>;
        assert_eq!(Poll::declared("poll"), "uint32_t (*poll)(void * , uint32_t )");
    }
}
