//! What calls take as their buffers: memory of the host or of the communicator, for as long as a
//! call needs it.
//!
//! | | blocking calls and groups | calls on a stream | groups on a stream |
//! | --- | --- | --- | --- |
//! | `[T]`, `[T; N]`, `Vec<T>`, `Box<[T]>`, [`HostRegistration`] | yes | | |
//! | [`HostBuffer`], [`DeviceBuffer`], [`DeviceSlice`] | yes | yes | yes |
//! | [`Unready`](crate::Unready) | | | yes |
//!
//! What returns before its call has ended must keep the memory: a borrow cannot, so streams take no
//! slices.

mod allocator;
mod marks;
mod registered;
mod slice;
mod usage;

pub use allocator::{HeapAllocator, HeapAllocatorUse};
pub(crate) use marks::Marks;
pub use registered::HostRegistration;
pub use slice::DeviceSlice;
pub use usage::MemoryUse;

use crate::call::Memory;
pub use crate::device::Buffer;
use crate::device::{DeviceBuffer, HostBuffer, InFlight};
use crate::error::Error;
use crate::target::Device;
use oxccl_plans::element::Element;

/// How long memory is needed, which says what memory will do.
pub trait Access {
    /// What is kept of an argument.
    #[doc(hidden)]
    type Hold<'b>;

    /// Of memory that nobody has to keep.
    #[doc(hidden)]
    fn unheld<'b>() -> Self::Hold<'b>;

    /// Of a buffer of a communicator.
    #[doc(hidden)]
    fn hold<'b, T: Element>(buffer: &DeviceBuffer<T>) -> Self::Hold<'b>;
}

/// Memory is needed until the call or the group returns.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed;

/// Memory is needed until a stream has carried out the call.
#[derive(Clone, Copy, Debug)]
pub struct Streamed;

/// Memory is needed until a stream has carried out the group, which may begin before it is ready.
#[derive(Clone, Copy, Debug)]
pub struct Grouped;

/// Where the memory of an argument is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Where {
    /// Whoever gave it vouches for it.
    #[default]
    Vouched,
    /// The host's.
    Host,
    /// A GPU's.
    Gpu,
}

impl Where {
    /// Fails for memory that the communicator's device does not compute on.
    #[inline]
    pub(crate) fn check([input, output]: [Where; 2], device: Device) -> Result<(), Error> {
        let wrong = if device == Device::Host { Where::Gpu } else { Where::Host };
        let fits = input != wrong && output != wrong;
        if fits { Ok(()) } else { Err(Error::OtherMemory { device }) }
    }
}

impl Access for Borrowed {
    type Hold<'b> = Where;

    #[inline]
    fn unheld<'b>() -> Self::Hold<'b> {
        Where::Vouched
    }

    #[inline]
    fn hold<'b, T: Element>(buffer: &DeviceBuffer<T>) -> Self::Hold<'b> {
        buffer.land();
        if buffer.is_host() { Where::Host } else { Where::Gpu }
    }
}

impl Access for Streamed {
    type Hold<'b> = Option<InFlight>;

    fn unheld<'b>() -> Self::Hold<'b> {
        None
    }

    fn hold<'b, T: Element>(buffer: &DeviceBuffer<T>) -> Self::Hold<'b> {
        Some(buffer.fly())
    }
}

/// What a group on a stream keeps of an argument.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct GroupHold<'b> {
    pub(crate) buffer: Option<InFlight>,
    /// Whom to tell which bucket is to be marked, if it is not ready.
    pub(crate) marks: Option<&'b Marks>,
}

impl Access for Grouped {
    type Hold<'b> = GroupHold<'b>;

    fn unheld<'b>() -> Self::Hold<'b> {
        GroupHold::default()
    }

    fn hold<'b, T: Element>(buffer: &DeviceBuffer<T>) -> Self::Hold<'b> {
        GroupHold { buffer: Some(buffer.fly()), marks: None }
    }
}

/// Memory that a call can read: see [the table](self). Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the input of such a call",
    note = "blocking calls take slices and buffers; calls on streams take buffers, which stay alive: `HostBuffer`, `DeviceBuffer`, `DeviceSlice`"
)]
pub trait Input<T: Element, A: Access>: sealed::Sealed {
    /// Where it is, and what keeps it there.
    #[doc(hidden)]
    fn lend(&self) -> (Memory, A::Hold<'_>);
}

/// Memory that a call can write: see [the table](self). Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of such a call",
    note = "blocking calls take slices and buffers; calls on streams take buffers, which stay alive: `HostBuffer`, `DeviceBuffer`, `DeviceSlice`"
)]
pub trait Output<T: Element, A: Access>: Input<T, A> {
    /// Where it is, and what keeps it there.
    #[doc(hidden)]
    fn lend_mut(&mut self) -> (Memory, A::Hold<'_>) {
        <Self as Input<T, A>>::lend(self)
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<I: sealed::Sealed + ?Sized> sealed::Sealed for &I {}
impl<O: sealed::Sealed + ?Sized> sealed::Sealed for &mut O {}

impl<T: Element, A: Access, I: Input<T, A> + ?Sized> Input<T, A> for &I {
    #[inline]
    fn lend(&self) -> (Memory, A::Hold<'_>) {
        (**self).lend()
    }
}

impl<T: Element, A: Access, I: Input<T, A> + ?Sized> Input<T, A> for &mut I {
    #[inline]
    fn lend(&self) -> (Memory, A::Hold<'_>) {
        (**self).lend()
    }
}

impl<T: Element, A: Access, O: Output<T, A> + ?Sized> Output<T, A> for &mut O {
    #[inline]
    fn lend_mut(&mut self) -> (Memory, A::Hold<'_>) {
        (**self).lend_mut()
    }
}

/// Memory of the host that is borrowed as a slice.
macro_rules! slices {
    ($(($($generics:tt)*) $type:ty;)*) => {$(
        impl<$($generics)*> sealed::Sealed for $type {}

        impl<$($generics)*> Input<T, Borrowed> for $type {
            #[inline]
            fn lend(&self) -> (Memory, Where) {
                let address = self.as_ptr().cast_mut().cast();
                (Memory { address, count: self.len() }, Where::Host)
            }
        }

        impl<$($generics)*> Output<T, Borrowed> for $type {
            #[inline]
            fn lend_mut(&mut self) -> (Memory, Where) {
                (Memory { address: self.as_mut_ptr().cast(), count: self.len() }, Where::Host)
            }
        }
    )*};
}

slices! {
    (T: Element) [T];
    (T: Element, const N: usize) [T; N];
    (T: Element) Vec<T>;
    (T: Element) Box<[T]>;
}

/// Buffers of a communicator.
macro_rules! buffers {
    ($($type:ident)*) => {$(
        impl<T: Element> sealed::Sealed for $type<T> {}

        impl<T: Element, A: Access> Input<T, A> for $type<T> {
            #[inline]
            fn lend(&self) -> (Memory, A::Hold<'_>) {
                let buffer = self.device_buffer();
                (memory_of(buffer), A::hold(buffer))
            }
        }

        impl<T: Element, A: Access> Output<T, A> for $type<T> {}
    )*};
}

buffers! { HostBuffer DeviceBuffer }

/// All of a buffer.
pub(crate) fn memory_of<T: Element>(buffer: &DeviceBuffer<T>) -> Memory {
    Memory { address: buffer.as_ptr().cast(), count: buffer.len() }
}
