//! The training on a GPU: kernels compute in one stream, and the calls are in another. With gates
//! the kernels themselves mark buckets ready, and go on with them when they have been reduced
//! (`oxccl/device.h`).

use super::{LEARNING_RATE, Options, Outcome, Trainer, Way, sides};
use cudarc::driver::{result, sys};
use oxccl::bucket::GradientBuckets;
use oxccl::cuda::{
    DeviceCommunicator, DeviceParameter, DeviceShape, DoneWords, Event, ReadyWord, Stream,
};
use oxccl::{Collectives, Communicator, DeviceBuffer, ReduceOp};
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::path::Path;

/// Thread blocks of each kernel, and threads of these.
const BLOCKS: u32 = 8;
const THREADS: u32 = 512;

/// A rank's part of the training, on its GPU.
pub(crate) struct Gpu<'a> {
    comm: &'a Communicator,
    compute: Stream,
    calls: Stream,
    device: DeviceCommunicator,
    kernels: Kernels,
    sides: Vec<(usize, usize)>,
    batch: usize,
    buckets: GradientBuckets<f32>,
    /// By bucket, as the gradients lie there.
    parameters: Vec<DeviceBuffer<f32>>,
}

impl<'a> Gpu<'a> {
    pub(crate) fn new(
        comm: &'a Communicator,
        options: &Options,
        kernels: &Path,
    ) -> Outcome<Gpu<'a>> {
        let sides = sides(options)?;
        let counts: Vec<usize> = sides.iter().map(|(rows, columns)| rows * columns).collect();
        let mut buckets = GradientBuckets::with_capacity(comm, &counts, options.capacity)?;
        let mut parameters = Vec::new();
        for at in 0..buckets.buckets() {
            let count = buckets.bucket_mut(at).map_or(0, |bucket| bucket.len());
            let mut own = comm.alloc::<f32>(count)?;
            own.write(&vec![0.5; count])?;
            parameters.push(own);
        }
        let context = comm.context().ok_or("the communicator is not on a GPU")?;
        let (compute, calls) = (Stream::new(&context)?, Stream::new(&context)?);
        let device = comm.device_communicator(DeviceShape { blocks: BLOCKS as usize, lines: 1 })?;
        let kernels = Kernels::load(&compute, kernels)?;
        let batch = options.batch;
        Ok(Gpu { comm, compute, calls, device, kernels, sides, batch, buckets, parameters })
    }

    /// Everything in one stream.
    fn afterwards(&mut self) -> Outcome<()> {
        for parameter in (0..self.sides.len()).rev() {
            self.compute(parameter, self.buckets.address(parameter)?)?;
        }
        let mut works = Vec::new();
        for bucket in 0..self.parameters.len() {
            let gradients = self.buckets.bucket_mut(bucket).ok_or("no such bucket")?;
            let on = self.comm.on(&self.compute);
            works.push(on.all_reduce_in_place(gradients, ReduceOp::Avg)?);
        }
        for bucket in 0..self.parameters.len() {
            self.descend(bucket)?;
        }
        works.into_iter().try_for_each(|work| work.wait())?;
        Ok(self.compute.synchronize()?)
    }

    /// Launches a bucket's reduction behind its last gradient, in the other stream.
    fn with_buckets(&mut self) -> Outcome<()> {
        let mut works = Vec::new();
        for parameter in (0..self.sides.len()).rev() {
            self.compute(parameter, self.buckets.address(parameter)?)?;
            let bucket = self.buckets.place(parameter)?.bucket;
            if parameter > 0 && self.buckets.place(parameter - 1)?.bucket == bucket {
                continue;
            }
            let computed = Event::new(self.compute.context())?;
            computed.record(&self.compute)?;
            computed.hold(&self.calls)?;
            let gradients = self.buckets.bucket_mut(bucket).ok_or("no such bucket")?;
            let on = self.comm.on(&self.calls);
            works.push(on.all_reduce_in_place(gradients, ReduceOp::Avg)?);
        }
        for (bucket, work) in works.iter().enumerate() {
            work.wait_on(&self.compute)?;
            self.descend(bucket)?;
        }
        works.into_iter().try_for_each(|work| work.wait())?;
        Ok(self.compute.synchronize()?)
    }

    /// Launches everything first. Kernels mark buckets and wait for them; the host does neither.
    fn with_gates(&mut self) -> Outcome<()> {
        let Gpu { comm, compute, calls, device, kernels, sides, batch, buckets, parameters } = self;
        let mut step = buckets.launch(comm, &*calls, ReduceOp::Avg)?;
        for parameter in (0..sides.len()).rev() {
            let of = gradient(sides[parameter], *batch, parameter, comm.rank());
            kernels.gradient.launch(compute, BLOCKS, &of.at(step.address(parameter)?))?;
            for bucket in step.ready_in_kernel(parameter)? {
                kernels.mark.launch(compute, 1, &Mark { comm: device.parameter(), bucket })?;
            }
        }
        let group = step.finish();
        for (bucket, parameters) in parameters.iter().enumerate() {
            let done = group.bucket(bucket).ok_or("no such bucket")?.done_words()?;
            let gradients = buckets.bucket_mut(bucket).ok_or("no such bucket")?.as_ptr();
            let (comm, descent) = (device.parameter(), Descent::of(parameters, gradients));
            kernels.descend_gated.launch(compute, BLOCKS, &GatedDescent { comm, done, descent })?;
        }
        compute.synchronize()?;
        group.wait()?;
        Ok(())
    }

    fn compute(&self, parameter: usize, at: *mut f32) -> Outcome<()> {
        let of = gradient(self.sides[parameter], self.batch, parameter, self.comm.rank());
        self.kernels.gradient.launch(&self.compute, BLOCKS, &of.at(at))
    }

    fn descend(&mut self, bucket: usize) -> Outcome<()> {
        let gradients = self.buckets.bucket_mut(bucket).ok_or("no such bucket")?.as_ptr();
        let of = Descent::of(&self.parameters[bucket], gradients);
        self.kernels.descend.launch(&self.compute, BLOCKS, &of)
    }
}

impl Drop for Gpu<'_> {
    fn drop(&mut self) {
        let _ = self.compute.synchronize();
        let unloaded: Outcome<()> = self.compute.context().scope(|| {
            // SAFETY: loaded by this object, and nothing of it runs any more.
            Ok(unsafe { result::module::unload(self.kernels.module) }?)
        });
        // A context that has failed takes it along.
        let _ = unloaded;
    }
}

impl Trainer for Gpu<'_> {
    fn step(&mut self, way: Way) -> Outcome<()> {
        match way {
            Way::Afterwards => self.afterwards(),
            Way::Buckets => self.with_buckets(),
            Way::Gates => self.with_gates(),
        }
    }

    fn parameters(&self) -> Outcome<Vec<Vec<f32>>> {
        let read = |buffer: &DeviceBuffer<f32>| {
            let mut values = vec![0.0; buffer.len()];
            buffer.read(&mut values).map(|()| values)
        };
        Ok(self.parameters.iter().map(read).collect::<Result<_, _>>()?)
    }
}

/// `GradientArguments` of `examples/device/overlap.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Gradient {
    gradient: *mut f32,
    rows: u32,
    columns: u32,
    batch: u32,
    seed: u32,
}

impl Gradient {
    fn at(self, gradient: *mut f32) -> Gradient {
        Gradient { gradient, ..self }
    }
}

/// As on the host: see `Work` there.
fn gradient(sides: (usize, usize), batch: usize, parameter: usize, rank: usize) -> Gradient {
    let (rows, columns) = (sides.0 as u32, sides.1 as u32);
    let (batch, seed) = (batch as u32, (parameter * 31 + rank * 7) as u32);
    Gradient { gradient: std::ptr::null_mut(), rows, columns, batch, seed }
}

/// `MarkArguments`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Mark {
    comm: DeviceParameter,
    bucket: ReadyWord,
}

/// `DescentArguments`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descent {
    parameters: *mut f32,
    gradients: *const f32,
    count: u64,
    rate: f32,
}

/// `GatedDescentArguments`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GatedDescent {
    comm: DeviceParameter,
    done: DoneWords,
    descent: Descent,
}

impl Descent {
    fn of(parameters: &DeviceBuffer<f32>, gradients: *const f32) -> Descent {
        let count = parameters.len() as u64;
        Descent { parameters: parameters.as_ptr(), gradients, count, rate: LEARNING_RATE }
    }
}

/// A kernel, by what its one parameter is.
struct Kernel<T> {
    function: sys::CUfunction,
    parameter: PhantomData<T>,
}

impl<T: Copy> Kernel<T> {
    fn launch(&self, stream: &Stream, blocks: u32, argument: &T) -> Outcome<()> {
        let mut parameters = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        let (grid, threads) = ((blocks, 1, 1), (THREADS, 1, 1));
        stream.context().scope(|| {
            // SAFETY: the kernel has this parameter. What it leads to lives until the stream has
            // been waited for.
            let launched = unsafe {
                result::launch_kernel(
                    self.function,
                    grid,
                    threads,
                    0,
                    stream.raw(),
                    &mut parameters,
                )
            };
            Ok(launched?)
        })
    }
}

/// Those of `examples/device/overlap.cu`.
struct Kernels {
    module: sys::CUmodule,
    gradient: Kernel<Gradient>,
    mark: Kernel<Mark>,
    descend: Kernel<Descent>,
    descend_gated: Kernel<GatedDescent>,
}

impl Kernels {
    fn load(stream: &Stream, path: &Path) -> Outcome<Kernels> {
        let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = CString::new(text)?;
        stream.context().scope(|| {
            // SAFETY: the driver is loaded, the context current, and the text ends with a zero.
            let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
            Ok(Kernels {
                module,
                gradient: Kernel::find(module, c"overlap_gradient")?,
                mark: Kernel::find(module, c"overlap_mark")?,
                descend: Kernel::find(module, c"overlap_descend")?,
                descend_gated: Kernel::find(module, c"overlap_descend_gated")?,
            })
        })
    }
}

impl<T> Kernel<T> {
    fn find(module: sys::CUmodule, name: &CStr) -> Outcome<Kernel<T>> {
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, name.to_owned()) }?;
        Ok(Kernel { function, parameter: PhantomData })
    }
}
