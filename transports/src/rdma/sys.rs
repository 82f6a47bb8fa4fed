//! What is used of libibverbs, as its header `infiniband/verbs.h` declares it.
//!
//! Written by hand, since the crates that bind libibverbs link it, and this library must start
//! without it. The layouts are part of the library's binary interface (version 1.1, there has been
//! no other since 2007); a test compares them with the header where that is installed.
//!
//! What runs per message (posting, polling, arming) is no function of the library but one of the
//! device's provider, reached by the table in [`Context`].

use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_device`: only ever pointed to.
#[repr(C)]
pub(super) struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`.
#[repr(C)]
pub(super) struct Domain {
    _opaque: [u8; 0],
}

/// A function that is never called through the table.
type Unused = Option<unsafe extern "C" fn()>;

/// `struct ibv_context_ops`.
#[repr(C)]
pub(super) struct Operations {
    _before_poll: [Unused; 11],
    pub poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int,
    _before_send: [Unused; 12],
    pub post_send:
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    pub post_recv: unsafe extern "C" fn(
        *mut QueuePair,
        *mut ReceiveRequest,
        *mut *mut ReceiveRequest,
    ) -> c_int,
    _after_recv: [Unused; 5],
}

/// `struct ibv_context`, up to the last field that is used.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut Device,
    pub operations: Operations,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompletionChannel {
    pub context: *mut Context,
    pub fd: c_int,
    _refcnt: c_int,
}

/// `struct ibv_cq`, up to the last field that is used.
#[repr(C)]
pub(super) struct CompletionQueue {
    pub context: *mut Context,
}

/// `struct ibv_qp`, up to the last field that is used.
#[repr(C)]
pub(super) struct QueuePair {
    pub context: *mut Context,
    _pointers: [*mut c_void; 5],
    _handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct MemoryRegion {
    _context: *mut Context,
    _domain: *mut Domain,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Gid(pub [u8; 16]);

/// `struct ibv_device_attr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttributes {
    _identity: [u8; 64 + 4 * 8 + 3 * 4],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    _device_cap_flags: c_uint,
    _max_sge: [c_int; 2],
    _max_cq: c_int,
    pub max_cqe: c_int,
    _max_mr_pd: [c_int; 2],
    pub max_qp_rd_atom: c_int,
    _after: [c_int; 19],
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttributes {
    pub state: c_uint,
    _max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub max_msg_sz: u32,
    _counters: [u32; 2],
    _pkey_tbl_len: u16,
    pub lid: u16,
    _sm_lid: u16,
    _lmc_to_init_type: [u8; 5],
    pub active_width: u8,
    pub active_speed: u8,
    _phys_state: u8,
    pub link_layer: u8,
    _flags: u8,
    _port_cap_flags2: u16,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Capacity {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QueuePairInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut c_void,
    pub cap: Capacity,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with `struct ibv_global_route` in it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AddressVector {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QueuePairAttributes {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: Capacity,
    pub ah_attr: AddressVector,
    pub alt_ah_attr: AddressVector,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Piece {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`; of the unions the members for RDMA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub wr_id: u64,
    pub next: *mut SendRequest,
    pub sg_list: *mut Piece,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub _unions: [u32; 19],
}

impl Default for SendRequest {
    fn default() -> SendRequest {
        SendRequest {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            _unions: [0; 19],
        }
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ReceiveRequest {
    pub wr_id: u64,
    pub next: *mut ReceiveRequest,
    pub sg_list: *mut Piece,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order.
    pub imm_data: u32,
    pub qp_num: u32,
    _src_qp: u32,
    pub wc_flags: c_uint,
    _rest: [u16; 2],
    _sl: [u8; 2],
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AsyncEvent {
    /// A pointer to what the event is about, or the number of a port.
    pub element: u64,
    pub event_type: c_uint,
}

pub(super) const LINK_ETHERNET: u8 = 2;
pub(super) const PORT_ACTIVE: c_uint = 4;

pub(super) const QPT_RC: c_uint = 2;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERR: c_uint = 6;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;

pub(super) const QP_STATE: c_int = 1 << 0;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

pub(super) const WR_RDMA_WRITE: c_uint = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(super) const WR_SEND_WITH_IMM: c_uint = 3;
pub(super) const WR_RDMA_READ: c_uint = 4;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_INLINE: c_uint = 1 << 3;

pub(super) const WC_SUCCESS: c_uint = 0;
pub(super) const WC_WR_FLUSH_ERR: c_uint = 5;
pub(super) const WC_RECV: c_uint = 1 << 7;
pub(super) const WC_WITH_IMM: c_uint = 1 << 1;

pub(super) const EVENT_DEVICE_FATAL: c_uint = 8;
pub(super) const EVENT_PORT_ERR: c_uint = 10;

#[cfg(test)]
mod tests;
