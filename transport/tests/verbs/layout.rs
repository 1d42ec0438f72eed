//! Structures passed to libibverbs and librdmacm have the layout of their C headers. A C program
//! compiled with this machine's headers prints sizes and offsets, which are compared with Rust's.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use tickcast_transport::verbs::rdma_sys as sys;

/// Name in C, size, and for each field its name in C and its offset.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layout {
    ($rust:ident, $c:literal, { $($field:literal: $($path:tt).+),* $(,)? }) => {
        ($c, size_of::<sys::$rust>(), vec![$(($field, offset_of!(sys::$rust, $($path).+))),*])
    };
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(ibv_sge, "struct ibv_sge", { "addr": addr, "length": length, "lkey": lkey }),
        layout!(ibv_send_wr, "struct ibv_send_wr", {
            "wr_id": wr_id, "next": next, "sg_list": sg_list, "num_sge": num_sge, "opcode": opcode,
            "send_flags": send_flags, "imm_data": imm_data_invalidated_rkey_union, "wr": wr,
            "wr.ud.ah": wr.ud.ah, "wr.ud.remote_qpn": wr.ud.remote_qpn,
            "wr.ud.remote_qkey": wr.ud.remote_qkey, "wr.rdma.remote_addr": wr.rdma.remote_addr,
            "wr.rdma.rkey": wr.rdma.rkey, "wr.atomic.remote_addr": wr.atomic.remote_addr,
            "wr.atomic.compare_add": wr.atomic.compare_add,
            "wr.atomic.swap": wr.atomic.swap, "wr.atomic.rkey": wr.atomic.rkey,
            "bind_mw": bind_mw_tso_union, "bind_mw.mw": bind_mw_tso_union.bind_mw.mw,
            "bind_mw.rkey": bind_mw_tso_union.bind_mw.rkey,
            "bind_mw.bind_info": bind_mw_tso_union.bind_mw.bind_info,
            "invalidate_rkey": imm_data_invalidated_rkey_union,
        }),
        layout!(ibv_mw, "struct ibv_mw", {
            "context": context, "pd": pd, "rkey": rkey, "handle": handle, "type": type_,
        }),
        layout!(ibv_mw_bind_info, "struct ibv_mw_bind_info", {
            "mr": mr, "addr": addr, "length": length, "mw_access_flags": mw_access_flags,
        }),
        layout!(ibv_recv_wr, "struct ibv_recv_wr", {
            "wr_id": wr_id, "next": next, "sg_list": sg_list, "num_sge": num_sge,
        }),
        layout!(ibv_wc, "struct ibv_wc", {
            "wr_id": wr_id, "status": status, "opcode": opcode, "vendor_err": vendor_err,
            "byte_len": byte_len, "imm_data": imm_data_invalidated_rkey_union, "qp_num": qp_num,
            "src_qp": src_qp, "wc_flags": wc_flags,
        }),
        layout!(ibv_qp_init_attr, "struct ibv_qp_init_attr", {
            "send_cq": send_cq, "recv_cq": recv_cq, "srq": srq, "cap": cap, "qp_type": qp_type,
            "sq_sig_all": sq_sig_all,
        }),
        layout!(ibv_qp_cap, "struct ibv_qp_cap", {
            "max_send_wr": max_send_wr, "max_recv_wr": max_recv_wr, "max_send_sge": max_send_sge,
            "max_recv_sge": max_recv_sge, "max_inline_data": max_inline_data,
        }),
        layout!(ibv_qp_attr, "struct ibv_qp_attr", {
            "qp_state": qp_state, "qkey": qkey, "sq_psn": sq_psn, "pkey_index": pkey_index,
            "min_rnr_timer": min_rnr_timer, "port_num": port_num, "timeout": timeout,
            "retry_cnt": retry_cnt, "rnr_retry": rnr_retry, "qp_access_flags": qp_access_flags,
        }),
        layout!(ibv_ah_attr, "struct ibv_ah_attr", {
            "grh": grh, "grh.dgid": grh.dgid, "grh.flow_label": grh.flow_label,
            "grh.sgid_index": grh.sgid_index, "grh.hop_limit": grh.hop_limit,
            "grh.traffic_class": grh.traffic_class, "dlid": dlid, "is_global": is_global,
            "port_num": port_num,
        }),
        layout!(ibv_device_attr, "struct ibv_device_attr", {
            "max_qp_rd_atom": max_qp_rd_atom, "max_qp_init_rd_atom": max_qp_init_rd_atom,
            "max_mw": max_mw, "atomic_cap": atomic_cap,
        }),
        layout!(ibv_port_attr, "struct ibv_port_attr", {
            "state": state, "active_mtu": active_mtu, "qkey_viol_cntr": qkey_viol_cntr,
            "link_layer": link_layer,
        }),
        layout!(ibv_mr, "struct ibv_mr", { "addr": addr, "lkey": lkey, "rkey": rkey }),
        layout!(ibv_comp_channel, "struct ibv_comp_channel", { "fd": fd }),
        layout!(rdma_event_channel, "struct rdma_event_channel", { "fd": fd }),
        layout!(rdma_cm_id, "struct rdma_cm_id", {
            "verbs": verbs, "channel": channel, "qp": qp, "port_num": port_num,
        }),
        layout!(rdma_cm_event, "struct rdma_cm_event", {
            "id": id, "listen_id": listen_id, "event": event, "status": status, "param": param,
            "param.ud.ah_attr": param.ud.ah_attr, "param.ud.qp_num": param.ud.qp_num,
            "param.ud.qkey": param.ud.qkey, "param.conn.private_data": param.conn.private_data,
            "param.conn.private_data_len": param.conn.private_data_len,
            "param.conn.responder_resources": param.conn.responder_resources,
            "param.conn.initiator_depth": param.conn.initiator_depth,
        }),
        layout!(rdma_conn_param, "struct rdma_conn_param", {
            "private_data": private_data, "private_data_len": private_data_len,
            "responder_resources": responder_resources, "initiator_depth": initiator_depth,
            "retry_count": retry_count, "rnr_retry_count": rnr_retry_count, "qp_num": qp_num,
        }),
        layout!(rdma_cm_join_mc_attr_ex, "struct rdma_cm_join_mc_attr_ex", {
            "comp_mask": comp_mask, "join_flags": join_flags, "addr": addr,
        }),
    ]
}

/// Constants written out in Rust, by their names in the headers.
const CONSTANTS: [(&str, i64); 35] = [
    ("RDMA_OPTION_ID", 0),
    ("RDMA_OPTION_ID_TOS", 0),
    ("RDMA_OPTION_ID_REUSEADDR", 1),
    ("RDMA_OPTION_ID_ACK_TIMEOUT", 3),
    ("RDMA_MC_JOIN_FLAG_FULLMEMBER", 0),
    ("RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER", 1),
    ("RDMA_CM_JOIN_MC_ATTR_ADDRESS", 1),
    ("RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS", 2),
    ("RDMA_CM_EVENT_MULTICAST_JOIN", 12),
    ("IBV_SEND_SIGNALED", 2),
    ("IBV_SEND_INLINE", 8),
    ("IBV_WC_SUCCESS", 0),
    ("IBV_WC_WR_FLUSH_ERR", 5),
    ("IBV_WC_REM_INV_REQ_ERR", 9),
    ("IBV_WC_REM_ACCESS_ERR", 10),
    ("IBV_WC_RETRY_EXC_ERR", 12),
    ("IBV_ATOMIC_NONE", 0),
    ("IBV_PORT_ACTIVE", 4),
    ("IBV_MTU_1024", 3),
    ("IBV_QPT_UD", 4),
    ("IBV_QPS_ERR", 6),
    ("IBV_WR_SEND", 2),
    ("IBV_WR_RDMA_WRITE", 0),
    ("IBV_WR_RDMA_READ", 4),
    ("IBV_WR_ATOMIC_CMP_AND_SWP", 5),
    ("IBV_WR_LOCAL_INV", 7),
    ("IBV_WR_BIND_MW", 8),
    ("IBV_MW_TYPE_2", 2),
    ("IBV_ACCESS_LOCAL_WRITE", 1),
    ("IBV_ACCESS_REMOTE_WRITE", 2),
    ("IBV_ACCESS_REMOTE_READ", 4),
    ("IBV_ACCESS_REMOTE_ATOMIC", 8),
    ("IBV_ACCESS_MW_BIND", 16),
    ("RDMA_MAX_RESP_RES", 255),
    ("RDMA_MAX_INIT_DEPTH", 255),
];

#[test]
fn ffi_struct_layouts_match_c_headers() {
    let layouts = layouts();
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for (name, _, fields) in &layouts {
        writeln!(source, "printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
        for (field, _) in fields {
            writeln!(
                source,
                "printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));"
            )
            .unwrap();
        }
    }
    for (name, _) in CONSTANTS {
        writeln!(source, "printf(\"{name} %lld\\n\", (long long)({name}));").unwrap();
    }
    source.push_str("return 0;\n}\n");
    let folder = std::env::temp_dir().join(format!("tickcast-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (c, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&c, source).unwrap();
    let built = Command::new("cc")
        .arg(&c)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let said = Command::new(&program).output().unwrap().stdout;
    std::fs::remove_dir_all(&folder).unwrap();

    let mut rust = String::new();
    for (name, size, fields) in &layouts {
        writeln!(rust, "{name} {size}").unwrap();
        for (field, offset) in fields {
            writeln!(rust, "{name}.{field} {offset}").unwrap();
        }
    }
    for (name, value) in CONSTANTS {
        writeln!(rust, "{name} {value}").unwrap();
    }
    let said = String::from_utf8(said).unwrap();
    for (c, rust) in said.lines().zip(rust.lines()) {
        assert_eq!(c, rust);
    }
    assert_eq!(said.lines().count(), rust.lines().count());
    assert!(said.lines().count() > 100);
}
