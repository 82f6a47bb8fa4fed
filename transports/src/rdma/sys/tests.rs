//! Compares the declarations with `infiniband/verbs.h`: the C compiler checks what Rust computed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use super::*;

/// Asserts in C: that structs have the same size (a leading `..` leaves that out) and fields the
/// same offsets.
macro_rules! layouts {
    ($text:ident: $($rust:ident = $c:literal $size:tt { $($field:ident = $c_field:literal),* $(,)? })*) => {
        $(
            layouts!(@size $size $text $rust $c);
            $(writeln!(
                $text,
                "_Static_assert(offsetof({}, {}) == {}, \"{}.{}\");",
                $c, $c_field, offset_of!($rust, $field), stringify!($rust), $c_field
            ).unwrap();)*
        )*
    };
    (@size whole $text:ident $rust:ident $c:literal) => {
        writeln!($text, "_Static_assert(sizeof({}) == {}, \"size of {}\");", $c, size_of::<$rust>(), $c).unwrap();
    };
    (@size start $text:ident $rust:ident $c:literal) => {};
}

macro_rules! constants {
    ($text:ident: $($rust:ident = $c:literal),* $(,)?) => {
        $(writeln!($text, "_Static_assert((long){} == {}, \"{}\");", $c, $rust, $c).unwrap();)*
    };
}

#[test]
fn declarations_are_those_of_the_header() {
    let mut text = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    layouts! { text:
        Operations = "struct ibv_context_ops" whole {
            poll_cq = "poll_cq", req_notify_cq = "req_notify_cq", post_send = "post_send", post_recv = "post_recv",
        }
        Context = "struct ibv_context" start {
            device = "device", operations = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd",
        }
        CompletionChannel = "struct ibv_comp_channel" whole { context = "context", fd = "fd" }
        CompletionQueue = "struct ibv_cq" start { context = "context" }
        QueuePair = "struct ibv_qp" start { context = "context", qp_num = "qp_num" }
        MemoryRegion = "struct ibv_mr" whole { lkey = "lkey", rkey = "rkey" }
        Gid = "union ibv_gid" whole {}
        DeviceAttributes = "struct ibv_device_attr" whole {
            max_qp = "max_qp", max_qp_wr = "max_qp_wr", max_cqe = "max_cqe",
            max_qp_rd_atom = "max_qp_rd_atom", phys_port_cnt = "phys_port_cnt",
        }
        PortAttributes = "struct ibv_port_attr" whole {
            state = "state", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len", max_msg_sz = "max_msg_sz",
            lid = "lid", active_width = "active_width", active_speed = "active_speed", link_layer = "link_layer",
        }
        Capacity = "struct ibv_qp_cap" whole { max_inline_data = "max_inline_data" }
        QueuePairInit = "struct ibv_qp_init_attr" whole {
            send_cq = "send_cq", recv_cq = "recv_cq", cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all",
        }
        AddressVector = "struct ibv_ah_attr" whole {
            dgid = "grh.dgid", flow_label = "grh.flow_label", sgid_index = "grh.sgid_index",
            hop_limit = "grh.hop_limit", traffic_class = "grh.traffic_class", dlid = "dlid", sl = "sl",
            is_global = "is_global", port_num = "port_num",
        }
        QueuePairAttributes = "struct ibv_qp_attr" whole {
            path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn", dest_qp_num = "dest_qp_num",
            qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr", pkey_index = "pkey_index",
            max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic",
            min_rnr_timer = "min_rnr_timer", port_num = "port_num", timeout = "timeout",
            retry_cnt = "retry_cnt", rnr_retry = "rnr_retry", rate_limit = "rate_limit",
        }
        Piece = "struct ibv_sge" whole { addr = "addr", length = "length", lkey = "lkey" }
        SendRequest = "struct ibv_send_wr" whole {
            wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
            send_flags = "send_flags", imm_data = "imm_data", remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey",
        }
        ReceiveRequest = "struct ibv_recv_wr" whole { sg_list = "sg_list", num_sge = "num_sge" }
        Completion = "struct ibv_wc" whole {
            status = "status", opcode = "opcode", vendor_err = "vendor_err", byte_len = "byte_len",
            imm_data = "imm_data", qp_num = "qp_num", wc_flags = "wc_flags",
        }
        AsyncEvent = "struct ibv_async_event" whole { element = "element", event_type = "event_type" }
    }
    constants! { text:
        LINK_ETHERNET = "IBV_LINK_LAYER_ETHERNET",
        PORT_ACTIVE = "IBV_PORT_ACTIVE", QPT_RC = "IBV_QPT_RC", QPS_INIT = "IBV_QPS_INIT",
        QPS_RTR = "IBV_QPS_RTR", QPS_RTS = "IBV_QPS_RTS", QPS_ERR = "IBV_QPS_ERR",
        ACCESS_LOCAL_WRITE = "IBV_ACCESS_LOCAL_WRITE", ACCESS_REMOTE_WRITE = "IBV_ACCESS_REMOTE_WRITE",
        ACCESS_REMOTE_READ = "IBV_ACCESS_REMOTE_READ", QP_STATE = "IBV_QP_STATE",
        QP_ACCESS_FLAGS = "IBV_QP_ACCESS_FLAGS", QP_PKEY_INDEX = "IBV_QP_PKEY_INDEX", QP_PORT = "IBV_QP_PORT",
        QP_AV = "IBV_QP_AV", QP_PATH_MTU = "IBV_QP_PATH_MTU", QP_TIMEOUT = "IBV_QP_TIMEOUT",
        QP_RETRY_CNT = "IBV_QP_RETRY_CNT", QP_RNR_RETRY = "IBV_QP_RNR_RETRY", QP_RQ_PSN = "IBV_QP_RQ_PSN",
        QP_MAX_QP_RD_ATOMIC = "IBV_QP_MAX_QP_RD_ATOMIC", QP_MIN_RNR_TIMER = "IBV_QP_MIN_RNR_TIMER",
        QP_SQ_PSN = "IBV_QP_SQ_PSN", QP_MAX_DEST_RD_ATOMIC = "IBV_QP_MAX_DEST_RD_ATOMIC",
        QP_DEST_QPN = "IBV_QP_DEST_QPN", WR_RDMA_WRITE = "IBV_WR_RDMA_WRITE",
        WR_RDMA_WRITE_WITH_IMM = "IBV_WR_RDMA_WRITE_WITH_IMM", WR_SEND_WITH_IMM = "IBV_WR_SEND_WITH_IMM", WR_RDMA_READ = "IBV_WR_RDMA_READ",
        SEND_SIGNALED = "IBV_SEND_SIGNALED", SEND_INLINE = "IBV_SEND_INLINE", WC_SUCCESS = "IBV_WC_SUCCESS",
        WC_WR_FLUSH_ERR = "IBV_WC_WR_FLUSH_ERR", WC_RECV = "IBV_WC_RECV", WC_WITH_IMM = "IBV_WC_WITH_IMM",
        EVENT_DEVICE_FATAL = "IBV_EVENT_DEVICE_FATAL", EVENT_PORT_ERR = "IBV_EVENT_PORT_ERR",
    }
    if let Err(why) = compile("#include <infiniband/verbs.h>\n") {
        let _ = writeln!(std::io::stderr(), "skipped: declarations_are_those_of_the_header: {why}");
        return;
    }
    if let Err(said) = compile(&text) {
        panic!("{said}");
    }
    let wrong = format!("{text}_Static_assert(sizeof(struct ibv_wc) == 1, \"planted\");\n");
    assert!(compile(&wrong).is_err_and(|said| said.contains("planted")));
}

/// Lets the C compiler read a text; on failure, what it says.
fn compile(text: &str) -> Result<(), String> {
    let mut compiler = Command::new("cc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no C compiler (cc): {error}"))?;
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
