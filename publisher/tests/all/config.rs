//! Configs: errors name path, value and remedy, all examples are valid, and the schema has every key.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_publisher::Config;
use tickcast_publisher::internal::{Plan, preflight};
use tickcast_reliability::ring::Geometry;
use tickcast_test_support::{Running, program};
use tickcast_transport::host::memory_limit::available_bytes;
use tickcast_transport::verbs::IS_BUILT;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

fn examples() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = (std::fs::read_dir(configs()).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .filter(|path| {
            let config: Value =
                serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            config["$schema"] == "publisher.schema.json"
        })
        .collect();
    all.sort();
    assert!(all.len() >= 3, "{all:?}");
    all
}

fn publisher(arguments: &[&str]) -> Output {
    publisher_in(Path::new("."), arguments)
}

fn publisher_in(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Returns a pcap of one packet: Ethernet, IPv4, UDP and the first packet of a simulated market.
fn small_capture() -> Vec<u8> {
    let mut simulator = Simulator::new(&SimulatorConfig::default(), 1).unwrap();
    let payload = simulator.next_packet().unwrap().payload;
    let udp_len = (8 + payload.len()) as u16;
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 1]);
    for field in [5_000, 6_000, udp_len, 0] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend(payload);
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    let len = frame.len() as u32;
    for word in [1, 0, len, len] {
        file.extend(word.to_le_bytes());
    }
    file.extend(frame);
    file
}

fn good() -> Value {
    json!({
        "name": "demo",
        "channels": [{
            "id": 1, "name": "a",
            "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.7.1:7500" }] }],
        }],
        "inputs": [{ "source": 1, "kind": "simulator", "messages": 10 }],
    })
}

fn plan(config: &Value) -> Result<Plan, String> {
    let config = Config::parse(&config.to_string()).map_err(|e| e.to_string())?;
    preflight(config).map_err(|e| e.to_string())
}

#[test]
fn endless_config_file_is_refused_in_bounded_memory() {
    let error = Config::read("/dev/zero".as_ref()).unwrap_err().to_string();
    assert!(
        error.contains("/dev/zero has more than 16777216 bytes"),
        "{error}"
    );
}

#[test]
fn invalid_config_error_names_path_value_and_remedy() {
    let second = json!({
        "id": 2, "name": "b",
        "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.7.2:7500" }] }],
    });
    let with_second = |change: fn(&mut Value)| {
        let mut second = second.clone();
        change(&mut second);
        json!([good()["channels"][0], second])
    };
    let input = |input: Value| json!([input]);
    let table: &[(&str, Value, &[&str])] = &[
        ("/nam", json!("x"), &["unknown field `nam`"]),
        ("/name", json!("a b"), &["name", "\"a b\"", "letters"]),
        (
            "/control",
            json!("localhost"),
            &["control", "invalid socket address"],
        ),
        ("/ttl", json!(256), &["ttl", "256"]),
        (
            "/channels",
            json!([]),
            &["channels", "0 channels", "from 1 to 64"],
        ),
        (
            "/channels/0/slot_len",
            json!(1480),
            &["channels[0]", "1480", "multiple of 64"],
        ),
        (
            "/ring_dir",
            json!("/dev/shm/tickcast"),
            &["ring_dir", "/dev/shm/tickcast", "needs state_dir"],
        ),
        (
            "/channels/0/slots",
            json!(1000),
            &["channels[0]", "1000", "power of two"],
        ),
        (
            "/channels/0/slotz",
            json!(16),
            &["channels[0]", "unknown field `slotz`"],
        ),
        (
            "/channels/0/symbols",
            json!(["A*B"]),
            &["channels[0].symbols[0]", "\"A*B\"", "star"],
        ),
        (
            "/channels/0/symbols",
            json!(["A-M*"]),
            &["channels[0].symbols[0]", "\"A-M*\"", "write A-M for"],
        ),
        (
            "/channels/0/symbols",
            json!([]),
            &["channels[0].symbols", "at least one"],
        ),
        (
            "/channels/0/peak_datagrams_per_s",
            json!(0),
            &["peak_datagrams_per_s", "at least 1"],
        ),
        (
            "/channels/0/fan_out_margin_slots",
            json!(1),
            &["fan_out_margin_slots", "eighth"],
        ),
        (
            "/channels/0/datagrams_per_key",
            json!(1023),
            &["channels[0].datagrams_per_key", "1023", "at least 1024"],
        ),
        (
            "/channels/0/datagrams_per_key",
            json!(-1),
            &["channels[0].datagrams_per_key", "-1", "u64"],
        ),
        (
            "/channels/0/authentication",
            json!("yes"),
            &["channels[0].authentication", "yes", "a boolean"],
        ),
        (
            "/channels/0/fan_out",
            json!([]),
            &["channels[0].fan_out", "from 1 to 8"],
        ),
        (
            "/channels/0/fan_out/0/transport",
            json!("rdma"),
            &["transport", "rdma", "udp"],
        ),
        (
            "/channels/0/fan_out/0/lines",
            json!([]),
            &["lines", "one line or two"],
        ),
        (
            "/channels/0/fan_out/0/lines/0/group",
            json!("10.0.0.1:5"),
            &[
                "channels[0].fan_out[0].lines[0].group",
                "10.0.0.1:5",
                "239.0.0.0/8",
            ],
        ),
        (
            "/channels/0/fan_out/0/lines/0/interface",
            json!("nosuch0"),
            &["lines[0].interface", "nosuch0", "this host has"],
        ),
        (
            "/channels",
            with_second(|c| c["id"] = json!(1)),
            &["channels[1].id", "its own"],
        ),
        (
            "/channels",
            with_second(|c| c["name"] = json!("a")),
            &["channels[1].name", "its own"],
        ),
        (
            "/channels",
            with_second(|c| c["fan_out"] = good()["channels"][0]["fan_out"].clone()),
            &[
                "channels[1].fan_out[0].lines[0].group",
                "channels[0]",
                "its own",
            ],
        ),
        ("/inputs", json!([]), &["inputs", "name at least one"]),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "own" })),
            &["inputs[0].kind", "publisher library", "\"records\""],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "records", "socket": "Cargo.toml" })),
            &["inputs[0].socket", "not a socket has this name"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "records", "socket": "no/such/a.sock" })),
            &["inputs[0].socket", "directory does not exist"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "records", "socket": "s".repeat(101) })),
            &["inputs[0].socket", "from 1 to 100 bytes"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "records", "socket": "s", "channel": "zz" })),
            &["inputs[0].channel", "no channel has this name"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1 })),
            &["inputs[0]", "missing field `kind`"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "fix" })),
            &["inputs[0]", "\"fix\"", "capture"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": "Cargo.toml", "pace": { "times": 0.0 } }),
            ),
            &["inputs[0].pace", "above 0"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "capture", "file": "Cargo.toml", "pace": "fast" })),
            &["inputs[0]", "pace", "fast"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": "Cargo.toml", "trade_date": "30.1.2019" }),
            ),
            &["inputs[0].trade_date", "30.1.2019", "2019-01-30"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "capture", "file": "no/such.pcap" })),
            &["inputs[0].file", "no/such.pcap", "no such file"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "simulator", "symbols": 0 })),
            &["inputs[0]", "symbols is 0", "65535"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "simulator", "symbolz": 3 })),
            &["inputs[0]", "unknown field `symbolz`"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "udp", "lines": [{ "listen": "239.1.1.1:0" }] })),
            &["inputs[0].lines[0].listen", "needs a port"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "udp", "lines": [] })),
            &["inputs[0].lines", "1 to 8 lines"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "udp", "lines": [{ "listen": "127.0.0.1:1" }], "line_skew_us": 60_000_001 }),
            ),
            &["inputs[0].line_skew_us", "a minute"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "udp", "lines": [{ "listen": "127.0.0.1:1" }], "busy_poll_us": 1_000_001 }),
            ),
            &["inputs[0].busy_poll_us", "a second"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": "a.pcap", "reorder_us": u32::MAX }),
            ),
            &["inputs[0].reorder_us", "a minute"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "capture", "file": [] })),
            &["inputs[0].file", "1 to 8 files"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": ["Cargo.toml", "no/such.pcap"] }),
            ),
            &["inputs[0].file", "no/such.pcap", "no such file"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "capture", "file": 7 })),
            &["inputs[0]", "a path, or a list of paths"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": ["Cargo.toml", "Cargo.toml"], "format": "binary-file" }),
            ),
            &["inputs[0].format", "not merged"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "capture", "file": "Cargo.toml", "only": ["239.1.1.1"] }),
            ),
            &["inputs[0]", "only[0]", "GROUP:PORT"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "capture", "file": "Cargo.toml", "time": "gps" })),
            &["inputs[0]", "unknown variant `gps`", "`metamako`"],
        ),
        (
            "/inputs",
            input(
                json!({ "source": 1, "kind": "udp", "lines": [{ "listen": "127.0.0.1:1" }], "wait_for_subscribers": 1 }),
            ),
            &["inputs[0]", "unknown field `wait_for_subscribers`"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "simulator", "wait_for_subscribers": [] })),
            &["inputs[0].wait_for_subscribers", "at least one"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "simulator", "wait_for_subscribers": ["a", ""] })),
            &["inputs[0].wait_for_subscribers[1]", "from 1 to 64 bytes"],
        ),
        (
            "/inputs",
            input(json!({ "source": 1, "kind": "simulator", "wait_for_subscribers": "a" })),
            &["inputs[0]", "a number or names of subscribers"],
        ),
        (
            "/inputs",
            json!([{ "source": 1, "kind": "simulator" }, { "source": 1, "kind": "simulator" }]),
            &["inputs[1].source", "its own"],
        ),
        (
            "/heartbeat",
            json!({ "first_us": 0 }),
            &["heartbeat", "must satisfy"],
        ),
        (
            "/repair",
            json!({ "peers_max": 0 }),
            &["repair", "peers_max", "at least 1"],
        ),
        (
            "/repair",
            json!({ "peers_max": 8, "peers_per_address_max": 9 }),
            &["repair", "peers_per_address_max (9)", "peers_max (8)"],
        ),
        (
            "/subscribers",
            json!({ "nack_retry_us": 10 }),
            &[
                "subscribers.nack_retry_us",
                "sender_ignore_us (15)",
                "nack_retry_us (10)",
            ],
        ),
        (
            "/threads",
            json!({ "queue_batches": 1 }),
            &["threads.queue_batches", "from 2"],
        ),
        (
            "/repair_verbs",
            json!({ "connections_max": 1 }),
            &["repair_verbs.connections_max", "from 2 to 65536"],
        ),
        (
            "/repair_verbs",
            json!({ "interfaces": vec!["lo"; 17] }),
            &["repair_verbs.interfaces", "17 interfaces", "at most 16"],
        ),
        (
            "/threads",
            json!({ "idle": "nap" }),
            &["threads.idle", "nap"],
        ),
        (
            "/threads",
            json!({ "repair_core": 1_048_576 }),
            &["threads.repair_core", "core 1048576", "may use ["],
        ),
        (
            "/state_dir",
            json!("/dev/null/state"),
            &[
                "state_dir",
                "/dev/null/state",
                "Not a directory",
                "can be created",
            ],
        ),
        (
            "/channels/0/slots",
            json!(1u64 << 31),
            &[
                "channels",
                "rings of",
                "bytes of memory are available",
                "fewer slots",
            ],
        ),
        ("/linger_ms", json!(99_999_999), &["linger_ms", "3600000"]),
        ("/admin", json!("127.0.0.1:7400"), &["admin", "a port each"]),
        (
            "/admin_hosts",
            json!(["a", "http://b"]),
            &["admin_hosts[1]", "without a port"],
        ),
        (
            "/admin_hosts",
            json!(["2001:DB8:0::9", "a:7401"]),
            &["admin_hosts[1]", "\"a:7401\"", "without a port"],
        ),
        (
            "/admin_hosts",
            json!(["*"]),
            &["admin_hosts[0]", "\"*\"", "a star"],
        ),
        ("/admin_hosts", json!([""]), &["admin_hosts[0]", "\"\""]),
        (
            "/commands",
            json!({ "listen": "127.0.0.1:7400", "token_file": "/t" }),
            &["commands.listen", "a port each"],
        ),
        (
            "/commands",
            json!({ "listen": "127.0.0.1:0" }),
            &["commands.listen", "set commands.token_file"],
        ),
        (
            "/commands",
            json!({ "token_file": "/t" }),
            &["commands.token_file", "without commands.listen"],
        ),
    ];
    assert!(plan(&good()).is_ok());
    for (path, value, expected) in table {
        let mut config = good();
        let (parent, key) = path.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[key] = value.clone();
        let error = plan(&config).expect_err(&format!("{path} = {value} was taken"));
        for part in *expected {
            assert!(
                error.contains(part),
                "{path} = {value}: {part:?} is not in {error:?}"
            );
        }
    }
}

#[test]
fn kept_rings_need_memory_and_no_standby_or_readers() {
    let kept = || {
        let mut config = good();
        config["state_dir"] = json!("/dev/shm/tickcast-state");
        config["ring_dir"] = json!("/dev/shm/tickcast-rings");
        config
    };
    assert!(plan(&kept()).is_ok());
    let standby = json!({ "of": "127.0.0.1:7400", "commands": "/run/tickcast/a.commands" });
    let shared = json!({ "transport": "shm", "path": "/dev/shm/tickcast-shared" });
    for (path, value, expected) in [
        (
            "/ring_dir",
            json!("/proc/tickcast"),
            "can't be used: /proc lies on a file system of type 0x9fa0, not on tmpfs or hugetlbfs",
        ),
        ("/state_dir", json!(null), "needs state_dir"),
        ("/standby", standby, "a standby receives its rings"),
        ("/channels/0/fan_out/1", shared, "a shared-memory fan-out"),
    ] {
        let mut config = kept();
        match path.strip_suffix("/1") {
            Some(list) => config
                .pointer_mut(list)
                .unwrap()
                .as_array_mut()
                .unwrap()
                .push(value),
            None => config[&path[1..]] = value,
        }
        let error = plan(&config).expect_err(path);
        assert!(
            error.contains("ring_dir") && error.contains(expected),
            "{path}: {error}"
        );
    }
}

#[test]
fn invalid_standby_config_is_refused_risky_one_warned() {
    let standby = || {
        let mut config = good();
        config["commands"] = json!({ "socket": "/run/tickcast/b.commands" });
        config["standby"] = json!({ "of": "127.0.0.1:7400", "commands": "127.0.0.1:7402",
            "token_file": "/etc/tickcast/token" });
        config
    };
    let warnings = |config: &Value| {
        preflight(Config::parse(&config.to_string()).unwrap())
            .unwrap()
            .warnings
    };
    let said = |config: &Value| warnings(config).join("\n");
    assert!(
        !said(&standby()).contains("standby"),
        "{}",
        said(&standby())
    );
    for (path, value, expected) in [
        ("/standby/of", json!(" "), ["standby.of", "host:port"]),
        (
            "/commands",
            json!({}),
            ["commands.socket", "promoted over its command socket"],
        ),
        (
            "/standby/token_file",
            json!(null),
            ["standby.commands", "standby.token_file"],
        ),
        (
            "/standby/commands",
            json!("somewhere"),
            ["standby.commands", "10.0.0.1:7402"],
        ),
        (
            "/threads",
            json!({ "mode": "inline" }),
            ["threads.mode", "threaded"],
        ),
        (
            "/standby/keep_messages",
            json!(0),
            ["standby.keep_messages", "1073741824"],
        ),
        (
            "/standby/hand_over_ms",
            json!(99),
            ["standby.hand_over_ms", "ten minutes"],
        ),
        (
            "/standby/faults",
            json!({ "drop": 2.0 }),
            ["standby.faults", "drop"],
        ),
        (
            "/hand_over_to",
            json!(["a b"]),
            ["hand_over_to[0]", "64 letters"],
        ),
    ] {
        let mut config = standby();
        let (parent, key) = path.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[key] = value.clone();
        let error = plan(&config).expect_err(&format!("{path} = {value} was taken"));
        let missing = expected.iter().find(|part| !error.contains(**part));
        assert_eq!(missing, None, "{path} = {value}: {error:?}");
    }
    let mut own = standby();
    own["inputs"] = json!([{ "source": 1, "kind": "own" }]);
    let error = Plan::for_handlers(Config::parse(&own.to_string()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("only the service"), "{error}");
    let mut doubtful = standby();
    doubtful["standby"]["commands"] = json!(null);
    let mut second = doubtful["inputs"][0].clone();
    second["source"] = json!(99);
    doubtful["inputs"].as_array_mut().unwrap().push(second);
    let said = said(&doubtful);
    assert!(said.contains("can't be asked to hand over"), "{said}");
    assert!(said.contains("several inputs feed it"), "{said}");
}

#[test]
fn rings_that_fit_only_alone_are_refused_with_sizes() {
    let Some(available) = available_bytes() else {
        println!("SKIPPED: this system tells nothing of its memory");
        return;
    };
    // One ring takes between an eighth and a quarter of the memory, so twelve rings exceed it.
    let mut config = good();
    config["channels"][0]["slot_len"] = json!(1024);
    config["channels"][0]["slots"] = json!(1u64 << (available / 4096).ilog2());
    assert!(plan(&config).is_ok());
    for id in 2..=12 {
        let mut channel = config["channels"][0].clone();
        channel["id"] = json!(id);
        channel["name"] = json!(format!("c{id}"));
        channel["fan_out"][0]["lines"][0]["group"] = json!(format!("239.255.7.{id}:7500"));
        config["channels"].as_array_mut().unwrap().push(channel);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let output = publisher(&["--config", path.to_str().unwrap(), "--check"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    let slots = config["channels"][0]["slots"].as_u64().unwrap();
    let needed = 12 * Geometry::new(1024, slots).unwrap().bytes();
    assert!(said.contains(&format!("rings of {needed} bytes")), "{said}");
    assert!(said.contains(" bytes of memory are available"), "{said}");
}

/// The bytes in a pipe are for the publisher that runs. A check would wait for a writer, or take them.
#[test]
fn check_names_a_pipe_and_leaves_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("day.pcap");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut config = good();
    config["inputs"] = json!([
        { "source": 1, "kind": "capture", "file": pipe, "format": "auto" },
        { "source": 2, "kind": "simulator", "messages": 10 },
    ]);
    let path = dir.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let check = || {
        let arguments = ["--config", path.to_str().unwrap(), "--check"];
        let binary = env!("CARGO_BIN_EXE_tickcast-publisher");
        let checked = Running::start(&mut program(binary, &arguments)).output();
        let said = String::from_utf8(checked.stdout).unwrap();
        assert_eq!(checked.status.code(), Some(0), "{said}");
        let named = format!(
            "symbols: {} is a pipe, which is not examined\n",
            pipe.display()
        );
        assert!(said.contains(&named), "{said}");
        assert!(said.contains("are known before the inputs run"), "{said}");
    };
    check();
    // An end for both directions opens without another process.
    let mut both = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .unwrap();
    both.write_all(&small_capture()).unwrap();
    check();
    let mut left = vec![0; small_capture().len()];
    both.read_exact(&mut left).unwrap();
    assert_eq!(left, small_capture());
}

#[test]
fn text_that_is_no_config_is_refused_with_its_place() {
    for (text, expected) in [
        ("{", "EOF"),
        ("3", "invalid type"),
        ("{\"name\": \"a\"}", "missing field `channels`"),
        (
            "{\"name\": 1}",
            "line 1, column 10: name: invalid type: integer `1`",
        ),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let trailing = format!("{} x", good());
    assert!(
        Config::parse(&trailing)
            .unwrap_err()
            .to_string()
            .contains("trailing")
    );
}

#[test]
fn short_ring_is_warning_with_needed_length() {
    let mut config = good();
    config["channels"][0]["slots"] = json!(1024);
    let plan = plan(&config).unwrap();
    assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
    assert!(plan.warnings[0].contains("0.02 s") && plan.warnings[0].contains("65536"));
    config["subscribers"] = json!({ "gap_deadline_us": 1_000_000 });
    let plan = self::plan(&config).unwrap();
    assert!(plan.warnings[0].contains("4.00 s"), "{:?}", plan.warnings);
}

#[test]
fn short_key_is_warning_with_needed_number() {
    let mut config = good();
    config["channels"][0]["datagrams_per_key"] = json!(2_048);
    let keys = |config: &Value| {
        let plan = plan(config).unwrap();
        (plan.channels[0].datagrams_per_key, plan.warnings.join("\n"))
    };
    assert_eq!(keys(&config), (None, String::new()), "it has no keys");
    config["channels"][0]["authentication"] = json!(true);
    let (datagrams, said) = keys(&config);
    assert_eq!(datagrams, Some(2_048));
    assert!(said.contains("0.04 s") && said.contains("65536"), "{said}");
    config["channels"][0]["datagrams_per_key"] = json!(65_536);
    assert_eq!(keys(&config), (Some(65_536), String::new()));
    config["channels"][0]
        .as_object_mut()
        .unwrap()
        .remove("datagrams_per_key");
    assert_eq!(keys(&config), (Some(1 << 22), String::new()), "default");
}

#[test]
fn authentication_is_part_of_what_a_pair_agrees_on() {
    let hash = |authentication: bool, datagrams: u64| {
        let mut config = good();
        config["channels"][0]["authentication"] = json!(authentication);
        config["channels"][0]["datagrams_per_key"] = json!(datagrams);
        plan(&config).unwrap().channels[0].config_hash
    };
    assert_ne!(hash(false, 65_536), hash(true, 65_536));
    assert_eq!(hash(true, 65_536), hash(true, 1 << 22));
    let plain = plan(&good()).unwrap().channels[0].config_hash;
    assert_eq!(hash(false, 65_536), plain);
}

#[test]
fn journal_needs_tmpfs_and_valid_size() {
    for (record, expected) in [
        (json!({ "directory": "/etc" }), "journal.directory"),
        (
            json!({ "directory": "/dev/shm", "mib": 1 }),
            "journal.mib: 1 can't be used: it must be from 2 to 65536",
        ),
        (
            json!({ "directory": "/dev/shm", "mb": 2 }),
            "unknown field `mb`",
        ),
        (json!({ "mib": 2 }), "missing field `directory`"),
    ] {
        let mut config = good();
        config["journal"] = record;
        let error = plan(&config).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let mut config = good();
    // A missing directory is created when it is needed.
    config["journal"] = json!({ "directory": "/dev/shm/tickcast-not-there", "mib": 2 });
    assert!(plan(&config).is_ok());
}

#[test]
fn latency_log_needs_a_directory_and_valid_interval() {
    for (log, expected) in [
        (
            json!({ "path": "/no/such/directory/a.hlog" }),
            "latency_log.path: /no/such/directory/a.hlog can't be used: ",
        ),
        (
            json!({ "path": "/tmp/a.hlog", "interval_ms": 99 }),
            "latency_log.interval_ms: 99 can't be used: it must be from 100 to 86400000",
        ),
        (
            json!({ "path": "/tmp/a.hlog", "interval_ms": 86_400_001 }),
            "latency_log.interval_ms",
        ),
        (
            json!({ "path": "/tmp/a.hlog", "interval": 1 }),
            "unknown field `interval`",
        ),
        (json!({ "interval_ms": 100 }), "missing field `path`"),
    ] {
        let mut config = good();
        config["latency_log"] = log;
        let error = plan(&config).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hlog");
    let mut config = good();
    config["latency_log"] = json!({ "path": path, "interval_ms": 100 });
    assert!(plan(&config).is_ok());
    assert!(!path.exists(), "a check creates nothing");
    let schema = std::fs::read_to_string(configs().join("publisher.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&config));
    config["latency_log"]["interval_ms"] = json!(99);
    assert!(!validator.is_valid(&config));
}

/// `TICKCAST_BLESS=1` writes the committed schema.
#[test]
fn committed_schema_is_what_the_types_give() {
    let output = publisher(&["--schema"]);
    assert_eq!(output.status.code(), Some(0));
    let generated = String::from_utf8(output.stdout).unwrap();
    let path = configs().join("publisher.schema.json");
    if std::env::var_os("TICKCAST_BLESS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == generated,
        "{} is not what --schema prints; TICKCAST_BLESS=1 writes it",
        path.display()
    );
    let text = generated.as_str();
    assert!(!text.contains("```") && !text.contains("[`"), "{text}");
}

#[test]
fn example_configs_pass_check_and_schema() {
    let schema = std::fs::read_to_string(configs().join("publisher.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("market.pcap"), small_capture()).unwrap();
    let publisher = |arguments: &[&str]| publisher_in(folder.path(), arguments);
    for path in examples() {
        let text = std::fs::read_to_string(&path).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        if let Err(error) = validator.validate(&config) {
            panic!("{}: {error} at {}", path.display(), error.instance_path());
        }
        // Examples with RDMA devices are checked by the lab's suite `device`, on hosts that have them.
        let names_devices = text.contains("verbs");
        if !names_devices {
            let output = publisher(&["--config", path.to_str().unwrap(), "--check"]);
            let said = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(0), "{}: {said}", path.display());
            assert!(said.contains("holds") && said.contains(" s at "), "{said}");
        }
        // The effective config has every key, so this checks that the schema has them all.
        let effective: Value = if names_devices {
            serde_json::to_value(Config::read(&path).unwrap()).unwrap()
        } else {
            let output = publisher(&["--config", path.to_str().unwrap(), "--print-effective"]);
            serde_json::from_slice(&output.stdout).unwrap()
        };
        if let Err(error) = validator.validate(&effective) {
            panic!("{}: {error} at {}", path.display(), error.instance_path());
        }
        let again = Config::parse(&effective.to_string()).unwrap();
        assert_eq!(again, Config::read(&path).unwrap(), "{}", path.display());
        let mut wrong = config;
        wrong["no_such_key"] = json!(1);
        assert!(!validator.is_valid(&wrong));
    }
}

#[test]
fn example_configs_start_as_shipped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("market.pcap"), small_capture()).unwrap();
    for path in examples() {
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("verbs") {
            continue;
        }
        // Only ports, groups and paths in memory differ, so that no other process is in the way.
        let mut config: Value = serde_json::from_str(&text).unwrap();
        for key in ["control", "admin"] {
            if config[key].is_string() {
                config[key] = json!("127.0.0.1:0");
            }
        }
        let rings = tempfile::tempdir_in("/dev/shm").unwrap();
        for channel in config["channels"].as_array_mut().unwrap() {
            for fan_out in channel["fan_out"].as_array_mut().unwrap() {
                if fan_out["path"].is_string() {
                    fan_out["path"] = json!(rings.path().join("ring"));
                }
                let lines = fan_out.get_mut("lines").and_then(Value::as_array_mut);
                for line in lines.into_iter().flatten() {
                    line["group"] = json!(crate::common::group());
                }
            }
        }
        let own = folder.path().join("config.json");
        std::fs::write(&own, config.to_string()).unwrap();
        let ready = folder.path().join("ready.json");
        let log = folder.path().join("log");
        let mut process = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
            .arg("--config")
            .arg(&own)
            .arg("--ready-file")
            .arg(&ready)
            .current_dir(folder.path())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let said = || std::fs::read_to_string(&log).unwrap();
        crate::common::wait_for("the ready file", || {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("{}: {status}: {}", path.display(), said());
            }
            ready.exists().then_some(())
        });
        let id = process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        let status = crate::common::wait_for("the end", || process.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}: {}", path.display(), said());
        std::fs::remove_file(&ready).unwrap();
    }
}

#[test]
fn invalid_or_missing_config_exits_with_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.json");
    let mut ring = good();
    ring["channels"][0]["slots"] = json!(1000);
    let mut fan_out = good();
    fan_out["channels"][0]["fan_out"][0]["lines"][0]["group"] = json!(7);
    for (text, at) in [
        ("{\"name\":\n 1}".to_owned(), ":2:2: name: invalid type"),
        ("{\n\n\"name\"".to_owned(), ":3:6: EOF"),
        (format!("{ring:#}"), ":3:5: channels[0]: the ring of a"),
        (
            format!("{fan_out:#}"),
            ":8:24: channels[0].fan_out[0].lines[0].group: invalid type",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let output = publisher(&["--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("{}{at}", path.display())), "{said}");
    }
    let output = publisher(&["--config", "/nonexistent.json", "--check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent.json"));
    assert_eq!(publisher(&["--no-such-flag"]).status.code(), Some(2));
}

#[test]
fn config_parse_error_is_reported_with_remedy() {
    let mut named = good();
    named["control"] = json!("localhost:17900");
    let said = plan(&named).unwrap_err();
    assert!(
        said.contains("control") && said.contains("for example 127.0.0.1:7400"),
        "{said}"
    );
    let mut still = good();
    still["inputs"][0]["pace"] = json!({"messages_per_s": 0});
    let said = plan(&still).unwrap_err();
    assert!(
        said.contains("inputs[0].pace: {\"messages_per_s\":0} can't be used"),
        "{said}"
    );
    let said = Config::parse(" \n").unwrap_err().to_string();
    assert!(said.contains("the file is empty"), "{said}");
}

#[test]
fn config_check_counts_symbols_per_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let mut config = good();
    config["inputs"][0]["symbols"] = json!(30);
    config["channels"][0]["symbols"] = json!(["AAA*", "B-Z", "AABC"]);
    let mut rest = config["channels"][0].clone();
    rest["id"] = json!(2);
    rest["name"] = json!("rest");
    rest["symbols"] = json!(["*"]);
    rest["fan_out"][0]["lines"][0]["group"] = json!("239.255.7.2:7500");
    config["channels"].as_array_mut().unwrap().push(rest);
    let check = |config: &Value| {
        std::fs::write(&path, config.to_string()).unwrap();
        let output = publisher(&["--config", path.to_str().unwrap(), "--check"]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let said = check(&config);
    for line in [
        "symbols: the inputs announce 30",
        "  channel a: AAA* matches 26",
        "  channel a: B-Z matches 0",
        "  channel a: AABC matches 1",
        "  channel rest: * matches 3",
        "warning: channel a: B-Z matches no symbol",
        "source 1: simulator, seed 1, 30 symbols, 1 times as fast as it was recorded",
    ] {
        assert!(
            said.lines().any(|it| it == line),
            "{line:?} is not in {said}"
        );
    }
    config["inputs"] =
        json!([{ "source": 1, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] }]);
    let said = check(&config);
    assert!(
        said.contains("symbols: no input announces any before it runs"),
        "{said}"
    );
}

#[test]
fn summary_follows_link_and_fails_before_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut config = good();
    config["control"] = json!("127.0.0.1:0");
    config["inputs"][0]["pace"] = json!("max");
    config["linger_ms"] = json!(0);
    std::fs::write(path("config"), config.to_string()).unwrap();
    std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
    let run = |summary: &str| publisher(&["--config", &path("config"), "--summary", summary]);

    let done = run(&path("link"));
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(Path::new(&path("link")).is_symlink());
    let summary = std::fs::read_to_string(path("target")).unwrap();
    assert!(serde_json::from_str::<Value>(&summary).is_ok(), "{summary}");

    let done = run(&path("no/folder/summary"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(
        said.contains("can't write") && !said.contains("listening"),
        "{said}"
    );
}

/// Returns a config whose channel has a verbs fan-out beside UDP.
fn with_verbs(change: impl FnOnce(&mut Value)) -> Value {
    let mut config = good();
    let mut verbs = json!({ "transport": "verbs", "lines": [{ "group": "239.255.8.1" }] });
    change(&mut verbs);
    let fan_outs = config["channels"][0]["fan_out"].as_array_mut().unwrap();
    fan_outs.push(verbs);
    config
}

#[test]
fn verbs_fan_out_without_device_is_refused() {
    let said = plan(&with_verbs(|_| ())).unwrap_err();
    // Loopback has no RDMA device on any host.
    let expected = if IS_BUILT {
        [
            "channels[0].fan_out[1].lines[0].interface",
            "use the transport udp",
        ]
    } else {
        ["channels[0].fan_out[1].transport", "--features rdma"]
    };
    for part in expected {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

#[test]
fn shm_ring_path_is_validated_and_must_be_unique() {
    let shm = |path: &str| json!({ "transport": "shm", "path": path });
    let with = |fan_outs: Vec<Value>| {
        let mut config = good();
        let all = config["channels"][0]["fan_out"].as_array_mut().unwrap();
        all.extend(fan_outs);
        config
    };
    let planned = |config: &Value| {
        let read = Config::parse(&config.to_string());
        let plan = read.and_then(preflight);
        plan.map_err(|error| error.to_string())
    };
    let good_one = with(vec![shm("/dev/shm/tickcast-config-test")]);
    let plan = planned(&good_one).unwrap();
    let channel = &plan.channels[0];
    let path = Path::new("/dev/shm/tickcast-config-test");
    assert_eq!(channel.shared_at(), Some(path));
    assert!(!path.exists(), "nothing is made before it runs");
    let offer = serde_json::to_value(channel.fan_outs[1].offer()).unwrap();
    assert_eq!(
        (&offer["transport"], &offer["fan_out"]),
        (&json!("shm"), &json!(1))
    );
    assert_eq!(offer["boot_id"].as_str().map(str::len), Some(32));
    for (config, expected) in [
        (with(vec![shm("tickcast")]), "an absolute path"),
        (with(vec![shm("/proc/tickcast")]), "/dev/shm"),
        (with(vec![shm("/nowhere/at/all")]), "fan_out[1].path"),
        (
            with(vec![shm("/dev/shm/a"), shm("/dev/shm/b")]),
            "a ring is one file",
        ),
    ] {
        let said = planned(&config).unwrap_err();
        assert!(said.contains(expected), "{expected:?} is not in {said:?}");
    }
    let mut standby = good_one.clone();
    standby["standby"] = json!({ "of": "127.0.0.1:1" });
    standby["commands"] = json!({ "socket": "/run/tickcast/b.commands" });
    assert!(
        planned(&standby)
            .unwrap_err()
            .contains("remove this fan-out")
    );
    let mut two = good_one.clone();
    let mut second = two["channels"][0].clone();
    (second["id"], second["name"]) = (json!(2), json!("other"));
    second["fan_out"] = json!([shm("/dev/shm/tickcast-config-test")]);
    two["channels"].as_array_mut().unwrap().push(second);
    assert!(planned(&two).unwrap_err().contains("its own file"));
    let schema = std::fs::read_to_string(configs().join("publisher.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&good_one));
    let effective = plan.config.to_json();
    assert!(validator.is_valid(&effective), "{effective:#}");
    assert_eq!(Config::parse(&effective.to_string()).unwrap(), plan.config);
    assert!(!validator.is_valid(&with(vec![json!({ "transport": "shm" })])));
}

#[test]
fn fan_out_has_only_fields_of_its_transport() {
    let parsed = |config: &Value| Config::parse(&config.to_string()).map_err(|e| e.to_string());
    for (config, expected) in [
        (
            with_verbs(|v| v["send_buffer_bytes"] = json!(1)),
            "unknown field `send_buffer_bytes`",
        ),
        (
            with_verbs(|v| v["lines"][0]["group"] = json!("239.255.8.1:5")),
            "lines[0].group",
        ),
        (with_verbs(|v| v["q_key"] = json!(-1)), "q_key"),
        (
            with_verbs(|v| v["transport"] = json!("pigeon")),
            "\"udp\", \"verbs\" or \"shm\"",
        ),
        (
            with_verbs(|v| drop(v.as_object_mut().unwrap().remove("transport"))),
            "missing field `transport`",
        ),
    ] {
        let said = parsed(&config).unwrap_err();
        assert!(said.contains(expected), "{expected:?} is not in {said:?}");
    }
    let schema = std::fs::read_to_string(configs().join("publisher.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let pace = json!({ "rate_bytes_per_s": 1_000_000, "burst_bytes": 65_536 });
    for config in [with_verbs(|_| ()), with_verbs(|v| v["pace"] = pace)] {
        assert!(validator.is_valid(&config));
        let read = parsed(&config).unwrap();
        let effective = read.to_json();
        assert!(validator.is_valid(&effective), "{effective:#}");
        assert_eq!(parsed(&effective).unwrap(), read);
        // Every default that is filled in equals the schema's.
        let kinds = &schema["properties"]["channels"]["items"]["properties"]["fan_out"]["items"];
        for transport in 0..2 {
            let reported = kinds["oneOf"][transport]["properties"].as_object().unwrap();
            for (name, said) in reported
                .iter()
                .filter(|(_, said)| said.get("default").is_some())
                .filter(|(name, _)| {
                    config["channels"][0]["fan_out"][transport]
                        .get(name)
                        .is_none()
                })
            {
                let filled = &effective["channels"][0]["fan_out"][transport][name];
                assert_eq!(*filled, said["default"], "{name}");
            }
        }
    }
    assert!(!validator.is_valid(&with_verbs(|v| v["send_buffer_bytes"] = json!(1))));
}

/// Returns a pcap with the first packets of several feeds: the port of each, and a number that its
/// messages differ by.
fn capture_of(packets: &[(u16, u8)]) -> Vec<u8> {
    /// The first message of a MoldUDP64 packet, behind its header and the message's length.
    const MESSAGES_AT: usize = 22;
    /// The last byte of a message's time stamp.
    const STAMP_AT: usize = 10;
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([0xff, 0xff, 0, 0, 101, 0, 0, 0]);
    for (port, number) in packets {
        let mut simulator = Simulator::new(&SimulatorConfig::default(), 1).unwrap();
        let mut payload = simulator.next_packet().unwrap().payload.to_vec();
        let mut at = MESSAGES_AT;
        while at < payload.len() {
            payload[at + STAMP_AT] ^= number;
            at += usize::from(u16::from_be_bytes([payload[at - 2], payload[at - 1]])) + 2;
        }
        let udp_len = (8 + payload.len()) as u16;
        let len = 20 + u32::from(udp_len);
        for word in [1, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0]);
        file.extend((20 + udp_len).to_be_bytes());
        file.extend([0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 1]);
        for field in [5_000, *port, udp_len, 0] {
            file.extend(field.to_be_bytes());
        }
        file.extend(payload);
    }
    file
}

#[test]
fn all_feeds_make_each_feed_of_a_capture_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let two = write("two.pcap", &capture_of(&[(6_001, 1), (6_002, 2)]));
    let other = write("other.pcap", &capture_of(&[(6_001, 3)]));
    let messages = write("day.itch", b"\0\x0cS\0\0\0\0\0\0\0\0\0\0Q");
    let input = |source: u16, file: Value, only: &[&str]| {
        json!({
            "source": source, "kind": "capture", "file": file, "only": only, "all_feeds": true,
        })
    };
    let planned = |inputs: Value| {
        let mut config = good();
        config["inputs"] = inputs;
        plan(&config)
    };

    let all = planned(json!([
        { "source": 4, "kind": "simulator", "messages": 10 }, input(5, json!(two), &[]),
    ]));
    let all = all.unwrap();
    let inputs = json!(all.config.inputs);
    let inputs = inputs.as_array().unwrap()[1..].iter();
    let got: Vec<_> = inputs
        .map(|it| {
            (
                it["source"].clone(),
                it["only"].clone(),
                it["all_feeds"].clone(),
            )
        })
        .collect();
    assert_eq!(
        got,
        [
            (json!(5), json!(["239.1.1.1:6001"]), json!(true)),
            (json!(6), json!(["239.1.1.1:6002"]), json!(false)),
        ]
    );
    let said = all.to_string();
    assert!(said.contains("source 6: capture"), "{said}");
    assert_eq!(said.matches("may be ITCH").count(), 1, "{said}");
    let one = planned(json!([input(5, json!(two), &["239.1.1.1:6002"])])).unwrap();
    let one = json!(one.config.inputs);
    assert_eq!((&one[0]["source"], &one[1]), (&json!(5), &Value::Null));
    assert_eq!(one[0]["all_feeds"], false, "the others were left out");

    let simulator = |source: u16| json!({ "source": source, "kind": "simulator", "messages": 10 });
    for (inputs, parts) in [
        (
            json!([input(5, json!(two), &[]), simulator(6)]),
            &["inputs[0].all_feeds", "sources 5 to 6", "is source 6"][..],
        ),
        (
            json!([simulator(4), input(65_535, json!(two), &[])]),
            &[
                "inputs[1].all_feeds",
                "from 65535 to 65535",
                "a lower source",
            ],
        ),
        (
            json!([input(5, json!([two, other]), &[])]),
            &["different feeds", "239.1.1.1:6001", "of its own"],
        ),
        (
            json!([input(5, json!("/dev/null"), &[])]),
            &["/dev/null can be read only once", "\"only\""],
        ),
        (
            json!([input(5, json!(messages), &[])]),
            &["a file of messages holds one feed", "leave it out"],
        ),
        (
            json!([input(5, json!(two), &["239.9.9.9:1"])]),
            &[
                "inputs[0].all_feeds",
                "no feed at the destinations asked for",
            ],
        ),
    ] {
        let error = planned(inputs).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn feeds_beyond_the_number_of_inputs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.pcap");
    let feeds: Vec<_> = (1..=17).map(|n| (6_000 + u16::from(n), n)).collect();
    std::fs::write(&path, capture_of(&feeds)).unwrap();
    let mut config = good();
    config["inputs"] = json!([{
        "source": 1, "kind": "capture", "file": path, "all_feeds": true,
    }]);
    let error = plan(&config).unwrap_err();
    for part in ["17 inputs", "at most", "\"only\""] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
