//! One rank on a GPU: what a communicator will set up.

use crate::processes::{deadline, on_hardware};
use oxccl::algorithms::Entry;
use oxccl::cuda::{Arguments, DeviceProgram, Image, Kernel, Kernels, Programs, Stream, Tables};
use oxccl::schedule::{Layout, Lowering, SLOTS, lower};
use oxccl::verify::verify;
use oxccl::{Collective, DataType, Kind, Order, StagingShape};
use oxccl_cuda_stand_in::control;
use oxccl_kernels::format::{Launch, Tokens};
use oxccl_kernels::{Fold, Scale};
use oxccl_transports::cuda::{Context, Device, DeviceRegion, Driver};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error, Offer, Region};
use std::sync::{Arc, LazyLock};

pub(crate) const CHANNELS: usize = 2;
pub(crate) const HEAP_BYTES: usize = 2 << 20;

pub(crate) struct Rank {
    pub(crate) stream: Stream,
    pub(crate) tables: Arc<Tables>,
    pub(crate) kernels: Kernels,
    pub(crate) heap: Arc<DeviceRegion>,
    /// All ranks', which windows lead to.
    _heaps: Vec<Arc<DeviceRegion>>,
    pub(crate) context: Context,
    shape: StagingShape,
    rank: usize,
    programs: std::cell::RefCell<Programs>,
    calls: std::cell::Cell<u64>,
}

/// The stand-in's image for these GPUs; on hardware, the one that was built in.
pub(crate) fn image(device: Device) -> Result<Image, CudaError> {
    if on_hardware() {
        return Image::embedded(device);
    }
    static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| control::image(&[80, 90, 100, 120]));
    // SAFETY: the stand-in reads it up to the zero that ends it; its kernels are this release's.
    Ok(unsafe { Image::from_bytes(&TEXT) })
}

/// This rank's GPU: ranks take turns with those there are.
pub(crate) fn gpu(rank: usize) -> Result<Context, Error> {
    let driver = Driver::load()?;
    Ok(Context::primary(driver.device(rank % driver.count()?.max(1))?)?)
}

impl Rank {
    /// Sets a rank up. All ranks do so together; one that fails tells the others.
    pub(crate) fn start(bootstrap: &mut dyn Bootstrap) -> Result<Rank, Error> {
        Rank::try_start(bootstrap, None).inspect_err(|error| {
            let cause = Cause::Aborted { rank: bootstrap.rank(), reason: error.to_string() };
            bootstrap.liveness().abort(cause);
        })
    }

    /// With windows that begin elsewhere than at the heaps.
    pub(crate) fn with_windows(bootstrap: &mut dyn Bootstrap, bases: &[*mut u8]) -> Rank {
        Rank::try_start(bootstrap, Some(bases)).unwrap()
    }

    fn try_start(bootstrap: &mut dyn Bootstrap, bases: Option<&[*mut u8]>) -> Result<Rank, Error> {
        let (rank, ranks) = (bootstrap.rank(), bootstrap.world());
        let shape = StagingShape {
            ranks,
            channels: CHANNELS,
            ll_slots: SLOTS.ll,
            ll_slot_bytes: 512,
            slots: SLOTS.slots,
            slot_bytes: 1024,
        };
        let context = gpu(rank)?;
        let kernels = Kernels::load(&context, image(context.device())?)?;
        let kernel = kernels.pick(DataType::F32, Fold::Sum)?;
        kernels.check_residency(kernel, ranks, CHANNELS)?;
        let stream = Stream::new(&context)?;
        let own = [
            Arc::new(DeviceRegion::create(&context, shape.len_bytes())?),
            Arc::new(DeviceRegion::create(&context, HEAP_BYTES)?),
        ];
        let control = Arc::new(Region::create("oxccl-control", Tables::control_bytes(&shape))?);
        let host = [control.clone()];
        let offer = Offer { host: &host, device: &own, context: Some(&context) };
        let all = bootstrap.exchange(&offer, deadline())?;
        let staging = all.iter().map(|shared| shared.device[0].clone()).collect();
        let heaps: Vec<_> = all.iter().map(|shared| shared.device[1].as_ptr()).collect();
        let bases = bases.unwrap_or(&heaps);
        let tables = Arc::new(Tables::new(&stream, shape, rank, staging, control, bases)?);
        let stopped = Arc::downgrade(&tables);
        bootstrap.liveness().on_stop(move || {
            if let Some(tables) = stopped.upgrade() {
                tables.abort();
            }
        });
        let [_, heap] = own;
        let heaps = all.into_iter().map(|shared| shared.device[1].clone()).collect();
        let programs = Programs::new(&stream)?.into();
        let calls = 0.into();
        Ok(Rank {
            stream,
            tables,
            kernels,
            heap,
            _heaps: heaps,
            context,
            shape,
            rank,
            programs,
            calls,
        })
    }

    /// The program of an all-reduce, on the GPU, and its kernel.
    pub(crate) fn all_reduce(
        &self,
        entry: &Entry,
        data_type: DataType,
        count: usize,
    ) -> Result<(DeviceProgram, Kernel), Error> {
        let collective = Collective::new(Kind::AllReduce, self.shape.ranks);
        let schedule = entry.schedule(collective, Order::Any, SLOTS);
        let (input, output) = (schedule.input, schedule.output);
        let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
        let align = 64 / data_type.len_bytes();
        let layout = Layout::even(&collective, input, output, count, align);
        let lowering = Lowering {
            data_type,
            fold: Fold::Sum,
            scale: Scale::None,
            channels: CHANNELS,
            first_connections: 0,
            tile_bytes: 512,
            stream: false,
        };
        let program = lower(&verified, self.rank, &layout, &lowering);
        let program = self.programs.borrow_mut().upload(&self.stream, &program)?;
        let kernel = self.kernels.pick(data_type, Fold::Sum)?;
        self.kernels.check_residency(kernel, self.shape.ranks, CHANNELS)?;
        Ok((program, kernel))
    }

    /// The launch block of a call with buffers in the heap, or at any other window base.
    pub(crate) fn launch(
        &self,
        program: &DeviceProgram,
        base: *mut u8,
        input: usize,
        output: usize,
    ) -> Launch {
        self.calls.set(self.calls.get() + 1);
        self.tables.launch(
            program,
            &Arguments {
                input: base.wrapping_add(input),
                output: base.wrapping_add(output),
                tokens: Tokens { input: input as u64, output: output as u64 },
                scale_bits: 0,
                call: self.calls.get(),
                signature: 0x5eed,
            },
        )
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}
