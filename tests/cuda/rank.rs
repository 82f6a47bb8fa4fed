//! One rank on a GPU, and all-reduces of it.

use crate::processes::{deadline, on_hardware};
use oxccl::cuda::{Arguments, Gpu, Image, Prepared, Reached, Setup, Stream};
use oxccl::plans::algorithms::Entry;
use oxccl::plans::lower::{Lowering, lower};
use oxccl::plans::schedule::{Layout, SLOTS};
use oxccl::plans::topology::Placement;
use oxccl::plans::verify::verify;
use oxccl::{Collective, DataType, Kind, Order, StagingShape};
use oxccl_cuda_stand_in::control;
use oxccl_kernels::format::{Status, Tokens};
use oxccl_kernels::{Fold, Scale};
use oxccl_transports::cuda::{Context, Device, Driver};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error};
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;

pub(crate) const CHANNELS: usize = 2;
pub(crate) const HEAP_BYTES: usize = 2 << 20;

pub(crate) struct Rank {
    pub(crate) stream: Stream,
    pub(crate) gpu: RefCell<Gpu>,
    pub(crate) context: Context,
    pub(crate) heap: *mut u8,
    ranks: usize,
    rank: usize,
    calls: Cell<u64>,
}

/// The stand-in's image for these GPUs; on hardware, the one that was built in.
pub(crate) fn image(device: Device) -> Result<Image, CudaError> {
    if on_hardware() {
        return Image::embedded(device);
    }
    Ok(stand_in_image())
}

pub(crate) fn stand_in_image() -> Image {
    static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| control::image(&[80, 90, 100, 120]));
    // SAFETY: the stand-in reads it up to the zero that ends it; its kernels are this release's.
    unsafe { Image::from_bytes(&TEXT) }
}

/// This rank's GPU: ranks take turns with those there are.
pub(crate) fn gpu(rank: usize) -> Result<Context, Error> {
    let driver = Driver::load()?;
    Ok(Context::primary(driver.device(rank % driver.count()?.max(1))?)?)
}

fn shape(ranks: usize, channels: usize) -> StagingShape {
    StagingShape {
        ranks,
        beside: ranks,
        to_itself: false,
        channels,
        message_sets: 1,
        message_channels: 1,
        ll_slots: SLOTS.ll,
        ll128_slots: SLOTS.ll128,
        ll_slot_bytes: 512,
        slots: SLOTS.slots,
        slot_bytes: 1024,
    }
}

impl Rank {
    /// Sets a rank up. All ranks do so together.
    pub(crate) fn start(bootstrap: &mut dyn Bootstrap) -> Result<Rank, Error> {
        Rank::start_with(bootstrap, CHANNELS, None)
    }

    /// With so many channels, and windows that may begin elsewhere than at the heaps.
    pub(crate) fn start_with(
        bootstrap: &mut dyn Bootstrap,
        channels: usize,
        windows: Option<Vec<*mut u8>>,
    ) -> Result<Rank, Error> {
        let (rank, ranks) = (bootstrap.rank(), bootstrap.world());
        let tell = |error: &Error| {
            let cause = Cause::Aborted { rank, reason: error.to_string() };
            bootstrap.liveness().abort(cause);
        };
        let context = gpu(rank).inspect_err(tell)?;
        let image = image(context.device()).map_err(Error::from).inspect_err(tell)?;
        let shape = shape(ranks, channels);
        let (heap_bytes, bulk_copies, separate) = (HEAP_BYTES, false, true);
        let setup = Setup {
            registered: None,
            context,
            image,
            shape,
            heap_bytes,
            heaps: Reached::New,
            windows,
            bulk_copies,
            zero_sm: false,
            separate,
        };
        let gpu = Gpu::start(bootstrap, &setup, deadline())?;
        let context = setup.context;
        let stream = Stream::new(&context).map_err(Error::from).inspect_err(|error| {
            let cause = Cause::Aborted { rank, reason: error.to_string() };
            bootstrap.liveness().abort(cause);
        })?;
        let heap = gpu.heap().as_ptr();
        Ok(Rank { stream, gpu: gpu.into(), context, heap, ranks, rank, calls: 0.into() })
    }

    /// An all-reduce, ready to be launched.
    pub(crate) fn all_reduce(
        &self,
        entry: &Entry,
        data_type: DataType,
        count: usize,
    ) -> Result<Prepared, Error> {
        self.folding(entry, data_type, [Fold::Sum; 2], count)
    }

    /// The same by another fold, which the type need not have, run by the kernel of a second one.
    pub(crate) fn folding(
        &self,
        entry: &Entry,
        data_type: DataType,
        [fold, of_kernel]: [Fold; 2],
        count: usize,
    ) -> Result<Prepared, Error> {
        let collective = Collective::new(Kind::AllReduce, self.ranks);
        let schedule =
            entry.schedule(collective, Placement::one_node(self.ranks), Order::Any, SLOTS).unwrap();
        let (input, output) = (schedule.input, schedule.output);
        let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
        let align = 64 / data_type.len_bytes();
        let layout = Layout::even(&collective, input, output, count, align).unwrap();
        let lowering = Lowering {
            data_type,
            fold,
            scale: Scale::None,
            channels: CHANNELS,
            first_connections: 0,
            most_channels: CHANNELS,
            tile_bytes: 512,
            stream: false,
            cma: false,
            virtual_bytes: None,
        };
        let program = lower(&verified, self.rank, &layout, &lowering).unwrap();
        Ok(self.gpu.borrow_mut().prepare(program, data_type, of_kernel, None)?)
    }

    /// Puts a call into a stream, with buffers at offsets from a window's base.
    pub(crate) fn put(
        &self,
        stream: &Stream,
        prepared: &Prepared,
        base: *mut u8,
        [input, output]: [usize; 2],
    ) -> Result<(), CudaError> {
        self.calls.set(self.calls.get() + 1);
        let arguments = Arguments {
            input: base.wrapping_add(input),
            output: base.wrapping_add(output),
            tokens: Tokens { input: input as u64, output: output as u64 },
            multicast: self.gpu.borrow().multicast(Some(input as u64), Some(output as u64)),
            scale_bits: 0,
            call: self.calls.get(),
            history: 0,
            signature: 0x5eed,
            slot: 0,
        };
        // SAFETY: whoever tests keeps the buffers, and waits before the next call. What is wrong on
        // purpose, the stand-in finds out.
        unsafe { self.gpu.borrow().launch(stream, prepared, &arguments) }
    }

    /// How the last call ended, once the stream is done.
    pub(crate) fn outcome(&self) -> Result<(), (usize, Status)> {
        self.gpu.borrow().tables().outcome(0, CHANNELS)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}
