//! Element types by the names and codes that Python's libraries have for them.

use crate::error::misuse;
use oxccl::{DataType, OpKind, bf16, f16};
use pyo3::prelude::*;

/// What an array holds, as the runtime moves and reduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// The name, as numpy and torch have it.
    pub(crate) name: &'static str,
    pub(crate) data_type: DataType,
    /// So many of the runtime's elements are one of the array's.
    pub(crate) lanes: usize,
    reduces: Reduces,
    /// numpy's code without the byte order; none where numpy has no such type.
    pub(crate) numpy: Option<&'static str>,
    /// DLPack's code and bits.
    pub(crate) dlpack: (u8, u8),
}

/// What can be reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduces {
    /// All that the data type can.
    All,
    /// Logical or and and, as sum and product, maximum and minimum.
    Bool,
    /// Sums and averages, which have two numbers a value.
    Complex,
    /// Nothing: it is moved as bytes.
    Nothing,
}

const fn plain(
    name: &'static str,
    data_type: DataType,
    numpy: Option<&'static str>,
    dlpack: (u8, u8),
) -> Element {
    Element { name, data_type, lanes: 1, reduces: Reduces::All, numpy, dlpack }
}

/// All there are.
const ELEMENTS: [Element; 17] = [
    plain("float32", DataType::F32, Some("f4"), (2, 32)),
    plain("float64", DataType::F64, Some("f8"), (2, 64)),
    plain("float16", DataType::F16, Some("f2"), (2, 16)),
    plain("bfloat16", DataType::BF16, None, (4, 16)),
    plain("float8_e4m3fn", DataType::F8E4M3, None, (10, 8)),
    plain("float8_e5m2", DataType::F8E5M2, None, (12, 8)),
    plain("int8", DataType::I8, Some("i1"), (0, 8)),
    plain("uint8", DataType::U8, Some("u1"), (1, 8)),
    plain("int32", DataType::I32, Some("i4"), (0, 32)),
    plain("uint32", DataType::U32, Some("u4"), (1, 32)),
    plain("int64", DataType::I64, Some("i8"), (0, 64)),
    plain("uint64", DataType::U64, Some("u8"), (1, 64)),
    Element { reduces: Reduces::Bool, ..plain("bool", DataType::U8, Some("b1"), (6, 8)) },
    Element {
        lanes: 2,
        reduces: Reduces::Complex,
        ..plain("complex64", DataType::F32, Some("c8"), (5, 64))
    },
    Element {
        lanes: 2,
        reduces: Reduces::Complex,
        ..plain("complex128", DataType::F64, Some("c16"), (5, 128))
    },
    Element {
        lanes: 2,
        reduces: Reduces::Nothing,
        ..plain("int16", DataType::U8, Some("i2"), (0, 16))
    },
    Element {
        lanes: 2,
        reduces: Reduces::Nothing,
        ..plain("uint16", DataType::U8, Some("u2"), (1, 16))
    },
];

impl Element {
    fn find(what: &str, fits: impl Fn(&Element) -> bool) -> PyResult<Element> {
        ELEMENTS.into_iter().find(fits).ok_or_else(|| {
            let names = ELEMENTS.map(|element| element.name).join(", ");
            misuse(format!("arrays of {what} cannot be communicated; there are {names}"))
        })
    }

    /// By its name, such as `float32` or `torch.float32`.
    pub(crate) fn named(name: &str) -> PyResult<Element> {
        let bare = name.rsplit('.').next().unwrap_or(name);
        Element::find(name, |element| element.name == bare)
    }

    /// By numpy's code, such as `<f4`.
    pub(crate) fn of_numpy(code: &str) -> PyResult<Element> {
        let bare = code.strip_prefix(['<', '|', '=']).unwrap_or(code);
        Element::find(code, |element| element.numpy == Some(bare))
    }

    /// By DLPack's.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> PyResult<Element> {
        let what = format!("DLPack type {code} of {bits} bits");
        Element::find(&what, |element| element.dlpack == (code, bits))
    }

    /// Bytes of one of the array's elements.
    pub(crate) fn len_bytes(self) -> usize {
        self.data_type.len_bytes() * self.lanes
    }

    /// The runtime's operation for one of this name.
    pub(crate) fn op(self, name: &str) -> PyResult<OpKind> {
        let op: OpKind = match name {
            "product" => OpKind::Prod,
            name => name.parse().map_err(misuse)?,
        };
        let fits = match (self.reduces, op) {
            (Reduces::All, op) => Some(op),
            (Reduces::Bool, OpKind::Sum | OpKind::Max | OpKind::BitOr) => Some(OpKind::Max),
            (Reduces::Bool, OpKind::Prod | OpKind::Min | OpKind::BitAnd) => Some(OpKind::Min),
            (Reduces::Complex, OpKind::Sum | OpKind::Avg) => Some(op),
            _ => None,
        };
        fits.ok_or_else(|| misuse(format!("{} cannot be reduced by {name}", self.name)))
    }

    /// A factor as the bytes of a value of this type.
    pub(crate) fn factor(self, value: f64) -> PyResult<Vec<u8>> {
        Ok(match self.data_type {
            DataType::F32 => (value as f32).to_ne_bytes().into(),
            DataType::F64 => value.to_ne_bytes().into(),
            DataType::F16 => f16::from_f64(value).to_ne_bytes().into(),
            DataType::BF16 => bf16::from_f64(value).to_ne_bytes().into(),
            DataType::I8 => (value as i8).to_ne_bytes().into(),
            DataType::U8 => (value as u8).to_ne_bytes().into(),
            DataType::I32 => (value as i32).to_ne_bytes().into(),
            DataType::U32 => (value as u32).to_ne_bytes().into(),
            DataType::I64 => (value as i64).to_ne_bytes().into(),
            DataType::U64 => (value as u64).to_ne_bytes().into(),
            _ => return Err(misuse(format!("{} has no factors", self.name))),
        })
    }
}
