//! Gradients and parameters in buckets, in memory of GPUs: made, marked ready and used in streams,
//! beside the groups that move them.

use oxccl::bucket::{DeviceShard, GradientBuckets, ShardedBuckets};
use oxccl::cuda::{copy, fill};
use oxccl::{Collectives, Communicator, Error, ReduceOp};

const PARAMETERS: [usize; 5] = [3000, 7, 129, 20_000, 64];

/// Gradients in buckets, written and marked ready in a stream of the GPU, beside the group that
/// reduces them.
pub(crate) fn gradients(comm: Communicator) {
    let [stream, compute] = [(); 2].map(|()| crate::calls::stream(&comm));
    let mut buckets = GradientBuckets::<f32>::with_capacity(&comm, &PARAMETERS, 16_000).unwrap();
    for turn in 0..3u8 {
        let mut step = buckets.launch(&comm, &stream, ReduceOp::Sum).unwrap();
        for parameter in (0..PARAMETERS.len()).rev() {
            let (to, count) = (step.address(parameter).unwrap(), PARAMETERS[parameter]);
            let value = 0x40 + turn + parameter as u8;
            // SAFETY: the gradient is this rank's until it is marked ready, in the same stream.
            unsafe { fill(&compute, to.cast(), value, count * 4) }.unwrap();
            step.ready_on(parameter, &compute).unwrap();
        }
        step.finish().wait().unwrap();
        for (parameter, count) in PARAMETERS.into_iter().enumerate() {
            let one = f32::from_ne_bytes([0x40 + turn + parameter as u8; 4]);
            let place = buckets.place(parameter).unwrap();
            let bucket = buckets.bucket_mut(place.bucket).unwrap();
            let mut found = vec![0.0; bucket.len()];
            bucket.read(&mut found).unwrap();
            let sum = (0..comm.world_size()).fold(0.0, |sum, _| sum + one);
            assert!(found[place.offset..][..count].iter().all(|found| *found == sum));
        }
    }
    assert_eq!(comm.plans(), 1);
    comm.barrier().unwrap();
}

/// A distributed optimizer's steps without the host: gradients are reduced to shares, a stream
/// makes parameters of these, which are gathered.
pub(crate) fn sharded(comm: Communicator) {
    let [stream, compute] = [(); 2].map(|()| crate::calls::stream(&comm));
    let mut buckets =
        ShardedBuckets::<f32, f32>::with_capacity(&comm, &PARAMETERS, 16_000).unwrap();
    for turn in 0..3u8 {
        let mut step = buckets.launch_gradients(&comm, &stream, ReduceOp::Sum).unwrap();
        for parameter in (0..PARAMETERS.len()).rev() {
            let (to, count) = (step.address(parameter).unwrap(), PARAMETERS[parameter]);
            let value = 0x40 + turn + parameter as u8;
            // SAFETY: the gradient is this rank's until it is marked ready, in the same stream.
            unsafe { fill(&compute, to.cast(), value, count * 4) }.unwrap();
            step.ready_on(parameter, &compute).unwrap();
        }
        let reduced = step.finish();
        let mut update = buckets.launch_parameters(&comm, &stream).unwrap();
        assert!(matches!(update.update(0, |_, _| ()), Err(Error::MemoryOfGpu)));
        let last = update_all(&mut update, &compute);
        assert!(matches!(
            update.update_on(last, &compute, |_| Ok(())),
            Err(Error::Bucket { bucket, .. }) if bucket == last
        ));
        let gathered = update.finish();
        reduced.wait().unwrap();
        gathered.wait().unwrap();
        assert!(matches!(buckets.parameter(0), Err(Error::MemoryOfGpu)));
        for (parameter, count) in PARAMETERS.into_iter().enumerate() {
            let one = f32::from_ne_bytes([0x40 + turn + parameter as u8; 4]);
            let place = buckets.place(parameter).unwrap();
            let bucket = buckets.bucket(place.bucket).unwrap();
            let at = bucket.as_ptr().wrapping_add(place.offset).cast_const();
            assert_eq!(buckets.address(parameter).unwrap(), at);
            let mut found = vec![0.0; bucket.len()];
            bucket.read(&mut found).unwrap();
            let sum = (0..comm.world_size()).fold(0.0, |sum, _| sum + one);
            assert!(found[place.offset..][..count].iter().all(|found| *found == sum));
        }
    }
    assert_eq!(comm.plans(), 2);
    comm.barrier().unwrap();
}

/// An optimizer whose parameters are the gradients, in a stream. The last bucket.
fn update_all(
    step: &mut oxccl::bucket::ParameterStep<'_, f32, f32>,
    compute: &oxccl::cuda::Stream,
) -> usize {
    let mut bucket = 0;
    loop {
        let updated = step.update_on(bucket, compute, |share: DeviceShard<f32, f32>| {
            let (to, from) = (share.parameters.cast(), share.gradients.cast());
            // SAFETY: both are this rank's share, of `count` elements, until the bucket is marked
            // ready, in the same stream.
            Ok(unsafe { copy(compute, to, from, share.count * 4) }?)
        });
        match updated {
            Ok(()) => bucket += 1,
            Err(Error::Bucket { bucket: beyond, buckets }) if beyond == buckets => {
                return bucket - 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
