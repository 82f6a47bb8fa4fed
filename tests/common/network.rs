//! Nodes as network namespaces, joined by a switch: for tests whose ranks are processes on several
//! nodes. Needs no root where the system lets users have namespaces of their own.

use std::io::Write;
use std::process::{Command, Stdio};

/// Node N has the address 10.77.0.N+1 on its interface `net`, whose other end is `portN` of the
/// bridge. What leaves a node is held to `$RATE` and `$LATENCY`, where they are set: by netem where
/// the kernel has it, otherwise to the rate alone. A node lives as long as its process, whose
/// number stands in `$NETWORK_NODES`.
const SCRIPT: &str = r#"
set -e
ip link set lo up
ip link add switch type bridge && ip link set switch up
trap 'kill $NETWORK_NODES' EXIT
node=0
while [ $node -lt $NODES ]; do
    unshare -n sleep 600 & pid=$!
    NETWORK_NODES="$NETWORK_NODES $pid"
    until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
    ip link add port$node type veth peer name net netns $pid
    ip link set port$node master switch up
    nsenter -t $pid -n sh -c "ip link set lo up && ip addr add 10.77.0.$((node + 1))/24 dev net && ip link set net up"
    if [ "$RATE" ]; then
        shape() { nsenter -t $pid -n tc qdisc add dev net root "$@" 2>/dev/null; }
        if shape netem limit 100000 rate $RATE delay $LATENCY; then NETWORK_SHAPE="$RATE, $LATENCY"
        elif shape tbf rate $RATE burst 1mb latency 20ms; then NETWORK_SHAPE="$RATE (the kernel has no netem for $LATENCY)"
        else NETWORK_SHAPE="nothing (the kernel shapes no traffic)"; fi
    fi
    node=$((node + 1))
done
export NETWORK_NODES NETWORK_SHAPE
"$TEST" --exact "$DRIVER" --ignored --nocapture --test-threads=1
"#;

/// A network of so many nodes.
pub struct Network {
    pub nodes: usize,
    /// The rate and the latency of each node's link, as `tc` reads them.
    pub link: Option<(&'static str, &'static str)>,
}

impl Network {
    /// Runs an ignored test of this program inside the network, beside the switch: it starts ranks
    /// on [`nodes`]. Where there can be no namespaces it says that `test` was skipped.
    pub fn run(&self, test: &str, driver: &str) {
        let possible = Command::new("unshare").args(["-Urn", "ip", "link", "show", "lo"]).output();
        if !possible.is_ok_and(|output| output.status.success()) {
            let why = "the system gives no network namespaces (unshare -Urn, ip)";
            let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
            return;
        }
        let mut script = Command::new("unshare");
        script.args(["-Urn", "--kill-child", "--fork", "sh", "-c", SCRIPT]);
        script.env("TEST", std::env::current_exe().unwrap()).env("DRIVER", driver);
        let (rate, latency) = self.link.unwrap_or_default();
        script.env("NODES", self.nodes.to_string()).env("RATE", rate).env("LATENCY", latency);
        let output = script.stdin(Stdio::null()).output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        println!("{}", said.join("\n"));
        assert!(output.status.success(), "{driver}: {}", output.status);
        assert!(said[0].contains("1 passed"), "{driver} is no test");
    }
}

/// The address at which the first node's ranks serve.
pub const FIRST_ADDRESS: &str = "10.77.0.1";

/// To what the nodes' links are held, if to anything.
pub fn shape() -> Option<String> {
    std::env::var("NETWORK_SHAPE").ok().filter(|shape| !shape.is_empty())
}

/// Takes a node's cable out at the switch: nothing arrives any more, and neither side is told.
pub fn cut_off(node: usize) {
    let port = format!("port{node}");
    assert!(
        Command::new("ip").args(["link", "set", &port, "nomaster"]).status().unwrap().success()
    );
}

/// Puts it back.
pub fn restore(node: usize) {
    let port = format!("port{node}");
    let set = Command::new("ip").args(["link", "set", &port, "master", "switch"]).status();
    assert!(set.unwrap().success());
}

/// This program, run on a node: an ignored test of it.
pub fn on_node(node: usize, test: &str) -> Command {
    let nodes = std::env::var("NETWORK_NODES").unwrap();
    let process = nodes.split_whitespace().nth(node).unwrap();
    let mut command = Command::new("nsenter");
    command.args(["-t", process, "-n"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::null());
    command
}
