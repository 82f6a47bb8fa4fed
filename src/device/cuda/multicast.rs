//! The heaps of a node's ranks behind one address, where an NVSwitch joins their GPUs.
//!
//! Whatever a rank cannot do, all ranks are told of before the next step, and then none has that
//! address: windows do what is asked for.

use oxccl_transports::cuda::{Context, Device, DeviceRegion, MulticastMemory, MulticastTeam};
use oxccl_transports::{Bootstrap, CudaError, Error, Offer};
use std::sync::Arc;
use std::time::Instant;

/// Whether a GPU can have its memory in it, as the driver says. The kernels' accesses need compute
/// capability 9.0.
pub(super) fn is_supported(device: Device) -> Result<bool, CudaError> {
    Ok(device.has_multicast()? && device.capability()?.0 >= 9)
}

/// The length of a heap that can be bound, from this length on.
pub(super) fn heap_bytes(context: &Context, ranks: usize, len_bytes: usize) -> Option<usize> {
    let unit = done(MulticastTeam::granularity(context, ranks, len_bytes));
    unit.map(|of| len_bytes.next_multiple_of(of))
}

/// Binds the heaps of a node's ranks, each of a GPU of its own. All ranks of all nodes do so
/// together; none if one of them cannot, or has no heap that can be bound.
pub(super) fn bind(
    bootstrap: &mut dyn Bootstrap,
    context: &Context,
    heap: Option<&Arc<DeviceRegion>>,
    deadline: Instant,
) -> Result<Option<MulticastMemory>, Error> {
    let rank = bootstrap.rank();
    let beside: Vec<usize> = bootstrap.nodes().beside(rank).collect();
    let make = |heap: &Arc<DeviceRegion>| {
        done(MulticastTeam::create(context, beside.len(), heap.len_bytes()))
    };
    let made = heap.filter(|_| beside[0] == rank).and_then(make).map(Arc::new);
    let offer = Offer { team: made.as_ref(), context: Some(context), ..Offer::default() };
    let all = bootstrap.exchange(&offer, deadline)?;
    let team = all.into_iter().flatten().find_map(|shared| shared.team);
    let joined = heap.zip(team).filter(|(_, team)| done(team.join(context)).is_some());
    let Some((heap, team)) = all_have(bootstrap, joined, deadline)? else {
        return Ok(None);
    };
    let bound = done(MulticastMemory::bind(context, team, heap.clone()));
    all_have(bootstrap, bound, deadline)
}

/// What came of a step; why nothing did goes to the log.
fn done<T>(step: Result<T, CudaError>) -> Option<T> {
    step.inspect_err(|error| tracing::warn!(%error, "no NVSwitch reduces for these ranks")).ok()
}

/// This rank's, if all ranks have theirs.
fn all_have<T>(
    bootstrap: &mut dyn Bootstrap,
    own: Option<T>,
    deadline: Instant,
) -> Result<Option<T>, Error> {
    let all = bootstrap.all_gather(&[u8::from(own.is_some())], deadline)?;
    Ok(own.filter(|_| all.iter().all(|has| has == &[1])))
}
