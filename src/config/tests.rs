//! Tests of reading, checking and comparing settings.

use super::*;
use oxccl_plans::collective::Order;
use oxccl_plans::tune::Limits;
use std::cell::RefCell;
use std::os::unix::ffi::OsStringExt;

#[test]
fn a_wrong_value_names_its_variable() {
    let error = Config::from_lookup(|name| (name == "OXCCL_TIMEOUT").then(|| "soon".into()));
    assert!(error.unwrap_err().to_string().starts_with("OXCCL_TIMEOUT: \"soon\""));
    let error = Config::from_lookup(|name| (name == "OXCCL_SLOT_BYTES").then(|| "100".into()));
    assert!(error.unwrap_err().to_string().contains("slot_bytes"));
    let error = Config::from_lookup(|name| (name == "OXCCL_TUNING").then(|| "none.toml".into()));
    assert!(error.unwrap_err().to_string().starts_with("OXCCL_TUNING: none.toml: No such"));
}

#[test]
fn what_needs_something_else_says_so() {
    let with = |given: &[(&str, &str)]| {
        let given: Vec<_> =
            given.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        let lookup = |name: &str| given.iter().find(|(of, _)| *of == name).map(|(_, v)| v.clone());
        Config::from_lookup(lookup).map(|_| ()).unwrap_err().to_string()
    };
    for none in ["", "none"] {
        let text = with(&[("OXCCL_FLIGHT_SIGNAL", "1"), ("OXCCL_FLIGHT_RECORDER", none)]);
        assert!(text.contains("flight_signal: needs a folder"), "{text}");
    }
    let text = with(&[("OXCCL_CALL_TIMES", "1"), ("OXCCL_DEVICE", "cuda")]);
    assert!(text.contains("call_times: is for calls on a host"), "{text}");
}

#[test]
fn a_value_that_is_no_text_names_its_variable() {
    let asked = RefCell::new(Vec::new());
    Config::from_lookup(|name| {
        asked.borrow_mut().push(name.to_owned());
        None
    })
    .unwrap();
    let asked = asked.into_inner();
    assert!(asked.len() >= 25, "{asked:?}");
    for variable in asked {
        let bytes = || OsString::from_vec(b"1\xff".to_vec());
        let error = Config::from_lookup(|name| (name == variable).then(bytes)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&variable) && text.contains("not UTF-8"), "{text}");
    }
}

#[test]
fn the_silence_is_as_long_as_the_timeout_at_most() {
    let granted = |silence: Option<f64>, timeout| {
        let silence = silence.map(Duration::from_secs_f64);
        let advanced = Advanced { silence, ..Advanced::default() };
        let config = Config { timeout, advanced, ..Config::default() };
        config.check().map(|()| config.granted_silence().as_secs_f64())
    };
    let s = Duration::from_secs;
    assert_eq!(granted(None, s(30)).unwrap(), 30.0);
    assert_eq!(granted(Some(5.0), s(30)).unwrap(), 5.0);
    assert_eq!(granted(Some(90.0), s(30)).unwrap(), 30.0);
    assert_eq!(granted(None, Duration::from_millis(10)).unwrap(), 1.0);
    assert!(granted(None, Duration::MAX).is_ok());
    let refused = granted(Some(0.5), s(30)).unwrap_err().to_string();
    assert!(refused.contains("silence"), "{refused}");
}

#[test]
fn nodes_are_found_or_checked() {
    let place = |nodes, ranks_per_node, ranks| {
        let mut config = Config { nodes, ranks_per_node, ..Config::default() };
        config.place(&ranks).map(|()| config.ranks_per_node)
    };
    let two = || Nodes::blocks(8, 2);
    assert_eq!(place(None, None, Nodes::one(8)).unwrap(), None);
    assert_eq!(place(None, Some(3), Nodes::one(8)).unwrap(), Some(3));
    assert_eq!(place(Some(2), None, two()).unwrap(), Some(4));
    assert_eq!(place(None, Some(2), two()).unwrap(), Some(2));
    assert_eq!(place(None, None, Nodes::blocks(5, 2)).unwrap(), Some(1));
    let placement = |nodes, ranks_per_node| {
        Config { nodes, ranks_per_node, ..Config::default() }.placement(8).ranks_per_node()
    };
    assert_eq!(placement(None, None), 8);
    // Of 3, 3 and 2 ranks.
    assert_eq!((placement(Some(2), None), placement(Some(3), None)), (4, 3));
    assert_eq!(placement(Some(2), Some(2)), 2);
    let error = place(None, Some(8), two()).unwrap_err().to_string();
    assert!(error.contains("only 4 consecutive ranks"), "{error}");
    let error = place(Some(4), None, two()).unwrap_err().to_string();
    assert!(error.contains("is 4, but the ranks are on 2"), "{error}");
}

#[test]
fn integrity_is_not_for_rdma() {
    let config = Config { integrity: true, fabric: Some(FabricKind::Rdma), ..Config::default() };
    let error = config.check().unwrap_err().to_string();
    assert!(error.starts_with("integrity: ") && error.contains("OXCCL_FABRIC"), "{error}");
    Config { fabric: Some(FabricKind::Tcp), ..config }.check().unwrap();
}

#[test]
fn the_device_decides_on_defaults() {
    let on = |device: &'static str| {
        let lookup = |name: &str| match name {
            "OXCCL_DEVICE" => Some(device.into()),
            "OXCCL_HEAP_BYTES" => Some("4096".into()),
            _ => None,
        };
        Config::from_lookup(lookup).unwrap()
    };
    assert_eq!((on("host").max_channels, on("host").heap_bytes), (4, 4096));
    assert_eq!(
        (on("cuda:1").max_channels, on("cuda:1").heap_bytes),
        (Limits::GPU.max_channels, 4096)
    );
    assert_eq!(on("cuda:1").device, Device::Cuda(Some(1)));
}

/// What a GPU gives for staging depends on its node's ranks, not on the world's. Where there are
/// many nodes, there is room for as many links as doubling between them takes.
#[test]
fn staging_of_a_gpu_does_not_grow_with_the_world() {
    let lookup = |name: &str| (name == "OXCCL_DEVICE").then(|| "cuda".into());
    let alone = Config::from_lookup(lookup).unwrap();
    let of_ranks = |ranks| alone.staging(ranks, ranks).len_bytes();
    assert!(of_ranks(8) <= 64 << 20);
    // Fewer ranks have longer slots, and no more memory of them.
    let fewer: Vec<usize> = (2..8).map(of_ranks).collect();
    assert!(fewer.iter().all(|len_bytes| *len_bytes <= of_ranks(8)), "{fewer:?}");
    let of_nodes = |nodes: usize| {
        let mut config = alone.clone();
        config.place(&Nodes::of((0..8 * nodes).map(|rank| rank / 8))).unwrap();
        [config.staging(8 * nodes, 8).len_bytes(), config.link_memory_bytes(nodes)]
    };
    assert_eq!(of_nodes(2), of_nodes(32));
    assert_eq!(of_nodes(33), of_nodes(128));
    let [[few, _], [many, link]] = [of_nodes(32), of_nodes(128)];
    assert!(few <= 160 << 20, "{few}");
    assert!(many + 7 * link <= 128 << 20, "{many} and {link}");
}

#[test]
fn every_setting_is_described_once() {
    let fields: Vec<&str> = settings::all().map(|setting| setting.field).collect();
    let of = |setting: &'static table::Setting| setting.variables.iter().map(|one| one.name);
    let variables: Vec<&str> = settings::all().flat_map(of).collect();
    for names in [&fields, &variables] {
        let once: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }
    assert_eq!(fields[0], "device", "other defaults depend on it");
}

#[test]
fn settings_that_differ_are_found() {
    let usual = Config::cuda();
    assert_eq!(usual.changed(), []);
    let advanced = Advanced { link_sockets: 3, ..usual.advanced.clone() };
    let config = Config { order: Order::Rank, nodes: Some(2), advanced, ..usual };
    let shown = |field, value: &str| (field, value.to_owned());
    let expected = [shown("order", "rank"), shown("nodes", "2"), shown("link_sockets", "3")];
    assert_eq!(config.changed(), expected);
    let compared = config.compared();
    assert!(expected.iter().all(|one| compared.contains(one)), "{compared:?}");
    assert!(compared.contains(&shown("device", "cuda")), "{compared:?}");
    let free = ["timeout", "interface", "silence", "spins", "gpu_direct"];
    assert!(compared.iter().all(|(field, _)| !free.contains(field)), "{compared:?}");
}

#[test]
fn values_are_taken() {
    let config = Config::from_lookup(|name| match name {
        "OXCCL_ORDER" => Some("tree".into()),
        "OXCCL_ALGORITHM" => Some("two_shot".into()),
        "OXCCL_TIMEOUT" => Some("0.5".into()),
        "OXCCL_SILENCE" => Some("7".into()),
        _ => None,
    })
    .unwrap();
    assert_eq!(config.advanced.silence, Some(Duration::from_secs(7)));
    assert_eq!(config.order, Order::Tree);
    assert_eq!(config.pin.algorithm, Some(oxccl_plans::algorithms::Algorithm::TwoShot));
    assert_eq!(config.timeout, Duration::from_millis(500));
}
