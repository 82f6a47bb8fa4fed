//! Reliable connections between two ports.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::address::{LinkKind, QueuePairAddress};
use super::completion::{CompletionQueue, Failure};
use super::memory::{Domain, MemoryRegion};
use super::port::Port;
use super::{RdmaError, sys};

/// How many requests a queue pair holds.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Requests to send that have not completed.
    pub send: u32,
    /// Requests to receive that wait for the peer.
    pub receive: u32,
    /// The most bytes that a request may carry itself.
    pub inline_bytes: u32,
}

/// How long a queue pair tries before it gives the peer up.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// An answer is waited for 4.096 us times two to the power of this: at most 31.
    pub timeout_exponent: u8,
    /// How often it is tried again then: at most 7.
    pub retries: u8,
    /// How often it is tried again when the peer has posted nothing to receive; 7 is for ever.
    pub receiver_not_ready_retries: u8,
}

/// How switches and routers treat the packets of a queue pair. Zeros are the default class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The traffic class of the global route: of RoCE the IP header's DSCP, times four.
    pub traffic: u8,
    /// The service level: of InfiniBand the lane, of RoCE the priority of VLANs.
    pub service_level: u8,
}

impl Patience {
    /// The longest wait for an answer, of 4.3 s: a last packet that gets lost costs as much.
    const LONGEST_EXPONENT: u8 = 20;

    /// Tries for as long as the peer's machine may be silent, at most 34 s, at least as long as
    /// [`Patience::default`].
    pub fn lasting(silence: Duration) -> Patience {
        let least = Patience::default();
        let tries = u128::from(least.retries) + 1;
        let lasts = |exponent: &u8| tries * (4096u128 << exponent) >= silence.as_nanos();
        let exponents = least.timeout_exponent..Patience::LONGEST_EXPONENT;
        let timeout_exponent =
            exponents.into_iter().find(lasts).unwrap_or(Patience::LONGEST_EXPONENT);
        Patience { timeout_exponent, ..least }
    }
}

impl Default for Patience {
    /// Eight tries of 67 ms, and no patience with a receive queue that has run dry: credits keep it
    /// filled.
    fn default() -> Patience {
        Patience { timeout_exponent: 14, retries: 7, receiver_not_ready_retries: 3 }
    }
}

/// A queue pair: requests to send are carried out in order, and each byte comes once or the queue
/// pair fails.
pub struct QueuePair {
    raw: NonNull<sys::QueuePair>,
    port: Port,
    first_packet: u32,
    inline_bytes: u32,
    peer: String,
    domain: Arc<Domain>,
    _completions: Arc<CompletionQueue>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// A request to the adapter.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What its completion is numbered with.
    pub id: u64,
    /// What is to be done.
    pub operation: Operation,
    /// The bytes on this side.
    pub local: Local<'a>,
    /// Whether its success is reported. A failure always is. The send queue is freed only by
    /// completions: some of the requests that it holds must be signalled.
    pub signalled: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Writes into the peer's memory, which hears nothing of it.
    Write {
        /// Where to.
        to: u64,
        /// The key of the memory there.
        key: u32,
    },
    /// Writes into the peer's memory and completes one of its requests to receive, after the bytes
    /// have been written.
    WriteWithImmediate {
        /// Where to.
        to: u64,
        /// The key of the memory there.
        key: u32,
        /// What the peer is told.
        immediate: u32,
    },
    /// Sends into the buffer of the peer's next request to receive.
    Send {
        /// What the peer is told besides.
        immediate: u32,
    },
    /// Reads from the peer's memory.
    Read {
        /// Where from.
        from: u64,
        /// The key of the memory there.
        key: u32,
    },
}

/// The bytes on this side.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// None.
    Nothing,
    /// Copied into the request: they may change at once.
    Inline(&'a [u8]),
    /// Registered memory, which must stay as it is until the request has completed.
    Registered {
        /// The registration.
        region: &'a MemoryRegion,
        /// Where they begin.
        start: u64,
        /// How many there are.
        len_bytes: usize,
    },
}

impl QueuePair {
    /// A queue pair that knows no peer yet. Receive requests can be posted at once.
    ///
    /// # Errors
    /// [`RdmaError::Limit`], [`RdmaError::Verbs`].
    pub fn new(
        port: &Port,
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: Depth,
    ) -> Result<QueuePair, RdmaError> {
        let device = domain.device();
        let most = device.attributes().max_qp_wr as u32;
        if depth.send.max(depth.receive) > most {
            let asked = depth.send.max(depth.receive);
            let limit = format!("takes {most} requests in a queue, {asked} are asked for");
            return Err(RdmaError::Limit { device: device.name().to_owned(), limit });
        }
        let mut init = sys::QueuePairInit {
            qp_context: ptr::null_mut(),
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            srq: ptr::null_mut(),
            cap: sys::Capacity {
                max_send_wr: depth.send,
                max_recv_wr: depth.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: depth.inline_bytes,
            },
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain, queue and request are valid.
        let raw = NonNull::new(unsafe { (device.library.create_qp)(domain.raw(), &raw mut init) })
            .ok_or_else(|| device.error("ibv_create_qp"))?;
        let pair = QueuePair {
            raw,
            port: port.clone(),
            first_packet: first_packet(),
            inline_bytes: depth.inline_bytes,
            peer: "nobody yet".to_owned(),
            domain: Arc::clone(domain),
            _completions: Arc::clone(completions),
        };
        pair.initialise()?;
        Ok(pair)
    }

    /// Its own end, which the peer must be told.
    pub fn address(&self) -> QueuePairAddress {
        let port = self.port.address().clone();
        QueuePairAddress { port, number: self.number(), first_packet: self.first_packet }
    }

    /// Its number, which completions carry.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is valid, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Joins it with the peer's; `peer` names that in errors. What is sent before the peer has done
    /// the same is tried again.
    ///
    /// # Errors
    /// [`RdmaError::KindDiffers`], [`RdmaError::GidDiffers`], [`RdmaError::MtuDiffers`],
    /// [`RdmaError::Verbs`].
    pub fn connect(
        &mut self,
        to: &QueuePairAddress,
        peer: &str,
        patience: Patience,
        class: Class,
    ) -> Result<(), RdmaError> {
        self.port.address().fits(&to.port)?;
        self.peer = peer.to_owned();
        self.ready_to_receive(to, class)?;
        self.ready_to_send(patience)
    }

    /// Posts a request to send.
    ///
    /// # Errors
    /// [`RdmaError::OutOfRange`] for bytes that are not registered or too many for a request to
    /// carry; [`RdmaError::Verbs`] if the queue is full or the queue pair has failed.
    pub fn post(&self, request: Request<'_>) -> Result<(), RdmaError> {
        let (mut piece, inline) = self.piece(request.local)?;
        let mut raw = sys::SendRequest {
            wr_id: request.id,
            sg_list: piece.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            num_sge: i32::from(piece.is_some()),
            send_flags: inline | if request.signalled { sys::SEND_SIGNALED } else { 0 },
            ..Default::default()
        };
        match request.operation {
            Operation::Write { to, key } => {
                (raw.opcode, raw.remote_addr, raw.rkey) = (sys::WR_RDMA_WRITE, to, key);
            }
            Operation::WriteWithImmediate { to, key, immediate } => {
                (raw.opcode, raw.remote_addr, raw.rkey) = (sys::WR_RDMA_WRITE_WITH_IMM, to, key);
                raw.imm_data = immediate.to_be();
            }
            Operation::Send { immediate } => {
                (raw.opcode, raw.imm_data) = (sys::WR_SEND_WITH_IMM, immediate.to_be());
            }
            Operation::Read { from, key } => {
                (raw.opcode, raw.remote_addr, raw.rkey) = (sys::WR_RDMA_READ, from, key);
            }
        }
        let mut refused = ptr::null_mut();
        let device = self.domain.device();
        let post = device.operations().post_send;
        // SAFETY: the queue pair is valid; the provider copies request and piece, and inline bytes
        // with them.
        let answer = unsafe { post(self.raw.as_ptr(), &raw mut raw, &raw mut refused) };
        device.check("ibv_post_send", answer)
    }

    /// Posts a request to receive, numbered `id`. What is sent goes to `buffer`; what is written
    /// with immediate data does not.
    ///
    /// # Errors
    /// [`RdmaError::OutOfRange`], [`RdmaError::Verbs`].
    pub fn post_receive(
        &self,
        id: u64,
        buffer: Option<(&MemoryRegion, u64, usize)>,
    ) -> Result<(), RdmaError> {
        let piece = buffer.map(|(region, start, len_bytes)| region.piece(start, len_bytes));
        let mut piece = piece.transpose()?;
        let mut request = sys::ReceiveRequest {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: piece.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            num_sge: i32::from(piece.is_some()),
        };
        let mut refused = ptr::null_mut();
        let device = self.domain.device();
        let post = device.operations().post_recv;
        // SAFETY: the queue pair is valid; the provider copies request and piece.
        let answer = unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut refused) };
        device.check("ibv_post_recv", answer)
    }

    /// Gives it up: what is under way completes with a failure, here at once, at the peer once it
    /// tries to send.
    pub fn fail(&self) -> Result<(), RdmaError> {
        let mut attributes =
            sys::QueuePairAttributes { qp_state: sys::QPS_ERR, ..Default::default() };
        self.modify(&mut attributes, sys::QP_STATE)
    }

    /// The error that a failed request stands for.
    pub fn transfer_error(&self, operation: &'static str, failure: Failure) -> RdmaError {
        let device = self.domain.device();
        RdmaError::Transfer {
            operation,
            device: device.name().to_owned(),
            peer: self.peer.clone(),
            status: device.library.status_text(failure.status),
            status_code: failure.status,
            vendor_code: failure.vendor_code,
        }
    }

    /// The local bytes as the provider wants them, and the flag that goes with them.
    fn piece(&self, local: Local<'_>) -> Result<(Option<sys::Piece>, u32), RdmaError> {
        match local {
            Local::Nothing => Ok((None, 0)),
            Local::Inline(bytes) if bytes.len() <= self.inline_bytes as usize => {
                let (addr, length) = (bytes.as_ptr() as u64, bytes.len() as u32);
                Ok((Some(sys::Piece { addr, length, lkey: 0 }), sys::SEND_INLINE))
            }
            Local::Inline(bytes) => Err(RdmaError::OutOfRange {
                offset: 0,
                len_bytes: bytes.len(),
                registered_bytes: self.inline_bytes as usize,
            }),
            Local::Registered { region, start, len_bytes } => {
                Ok((Some(region.piece(start, len_bytes)?), 0))
            }
        }
    }

    fn initialise(&self) -> Result<(), RdmaError> {
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_INIT,
            port_num: self.port.number,
            qp_access_flags: (sys::ACCESS_LOCAL_WRITE
                | sys::ACCESS_REMOTE_WRITE
                | sys::ACCESS_REMOTE_READ) as u32,
            ..Default::default()
        };
        let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    fn ready_to_receive(&self, to: &QueuePairAddress, class: Class) -> Result<(), RdmaError> {
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_RTR,
            path_mtu: (to.port.mtu_bytes / 128).ilog2(),
            dest_qp_num: to.number,
            rq_psn: to.first_packet,
            max_dest_rd_atomic: 1,
            // 0.64 ms until the peer tries again to send what finds no request to receive.
            min_rnr_timer: 12,
            ah_attr: self.way_to(to, class),
            ..Default::default()
        };
        let mask = sys::QP_STATE
            | sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask)
    }

    fn ready_to_send(&self, patience: Patience) -> Result<(), RdmaError> {
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_RTS,
            sq_psn: self.first_packet,
            max_rd_atomic: 1,
            timeout: patience.timeout_exponent,
            retry_cnt: patience.retries,
            rnr_retry: patience.receiver_not_ready_retries,
            ..Default::default()
        };
        let mask = sys::QP_STATE
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask)
    }

    /// By global identifier over RoCE and between InfiniBand subnets, by local identifier inside
    /// one.
    fn way_to(&self, to: &QueuePairAddress, class: Class) -> sys::AddressVector {
        let subnet = |gid: &[u8; 16]| gid[..8].to_owned();
        let port = self.port.address();
        let global = port.kind == LinkKind::RoceV2 || subnet(&port.gid.0) != subnet(&to.port.gid.0);
        let way = sys::AddressVector {
            dlid: to.port.lid,
            sl: class.service_level,
            port_num: self.port.number,
            ..Default::default()
        };
        if !global {
            return way;
        }
        sys::AddressVector {
            is_global: 1,
            dgid: sys::Gid(to.port.gid.0),
            sgid_index: self.port.gid_index,
            hop_limit: 255,
            traffic_class: class.traffic,
            ..way
        }
    }

    fn modify(
        &self,
        attributes: &mut sys::QueuePairAttributes,
        mask: i32,
    ) -> Result<(), RdmaError> {
        let device = self.domain.device();
        // SAFETY: the queue pair and the attributes are valid.
        let answer = unsafe {
            (device.library.modify_qp)(self.raw.as_ptr(), ptr::from_mut(attributes), mask)
        };
        device.check("ibv_modify_qp", answer)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        unsafe { (self.domain.device().library.destroy_qp)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Where a queue pair's packet numbers begin: another place each time, so that packets of an
/// earlier one are not taken for this one's.
fn first_packet() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let seed = std::process::id().wrapping_mul(0x9e37_79b9);
    let step = LAST.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x0085_ebca);
    (seed ^ step) & 0xff_ffff
}
