//! srun over two nodes: a Slurm of its own, whose two node daemons both run here.

mod command_line;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_line::{finish, free_port, skip, start};

const NAME: &str = "ranks_of_two_slurm_nodes_find_each_other";

#[test]
fn ranks_of_two_slurm_nodes_find_each_other() {
    let programs = ["munged", "slurmctld", "slurmd", "srun"].map(program);
    if programs.iter().any(Option::is_none) {
        return skip(NAME, "there is no Slurm (Debian's slurm-wlm and munge)");
    }
    if fs::metadata("/proc/self").map(|own| own.uid()).unwrap_or(1) != 0 {
        return skip(NAME, "Slurm's daemons want to be root");
    }
    let [munged, slurmctld, slurmd, srun] = programs.map(|program| program.expect("it is there"));
    let cluster = Cluster::start(&munged, &slurmctld, &slurmd);
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = cluster.command(&srun);
    // The nodes' names mean nothing outside of Slurm.
    command.args(["-N", "2", "-n", "4"]).env("OXCCL_ADDR", address);
    command.arg(env!("CARGO_BIN_EXE_oxccl")).args(["bench", "all_reduce", "-b", "1K", "-e", "1K"]);
    let said = finish(start(command.args(["-n", "2", "--no-probe", "--json"]))).ok();
    assert_eq!(said.out.lines().count(), 2, "rank 0 alone prints: {said:#?}");
    assert!(said.out.lines().all(|row| row.contains("\"ranks\":4")), "{said:#?}");
}

fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// The daemons of a cluster with the nodes n1 and n2. Dropping it kills them.
struct Cluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    fn start(munged: &Path, slurmctld: &Path, slurmd: &Path) -> Cluster {
        let folder = std::env::temp_dir().join(format!("oxccl-slurm-{}", std::process::id()));
        let mut cluster = Cluster { folder, daemons: Vec::new() };
        for folder in ["", "state", "n1", "n2"] {
            fs::create_dir_all(cluster.file(folder)).expect("a folder can be made");
        }
        fs::write(cluster.file("slurm.conf"), cluster.settings()).expect("it can be written");
        let mut key = Command::new(munged);
        let path =
            |option: &str, file: &str| format!("--{option}={}", cluster.file(file).display());
        let files = [
            path("key-file", "key"),
            path("socket", "munge.sock"),
            path("pid-file", "munge.pid"),
            path("seed-file", "seed"),
            path("log-file", "munge.log"),
        ];
        fs::write(cluster.file("key"), [7; 128]).expect("it can be written");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        fs::set_permissions(cluster.file("key"), private).expect("it is ours");
        key.args(["--foreground", "--force", "--num-threads=1"]).args(files);
        cluster.run(key);
        cluster.await_that("munged to listen", |cluster| cluster.file("munge.sock").exists());
        let mut control = cluster.command(slurmctld);
        control.arg("-D");
        cluster.run(control);
        for node in ["n1", "n2"] {
            let mut daemon = cluster.command(slurmd);
            daemon.args(["-D", "-N", node]);
            cluster.run(daemon);
        }
        cluster.await_that("two idle nodes", |cluster| {
            let mut sinfo = cluster.command(Path::new("sinfo"));
            let said = sinfo.args(["-h", "-t", "idle", "-o", "%D"]).output();
            said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() == "2")
        });
        cluster
    }

    fn settings(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim().split('.').next().unwrap_or_default().to_owned();
        let folder = self.folder.display();
        let [control, first, second] = [(); 3].map(|()| free_port());
        format!(
            "ClusterName=oxccl\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={control}\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge.sock\nCredType=cred/munge\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={folder}/state\n\
             SlurmdSpoolDir={folder}/%n\nSlurmctldPidFile={folder}/control.pid\n\
             SlurmdPidFile={folder}/%n.pid\nSlurmctldLogFile={folder}/control.log\n\
             SlurmdLogFile={folder}/%n.log\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
             SwitchType=switch/none\nMpiDefault=none\nSelectType=select/cons_tres\n\
             NodeName=n1 NodeHostname={name} NodeAddr=127.0.0.1 Port={first} CPUs=2\n\
             NodeName=n2 NodeHostname={name} NodeAddr=127.0.0.1 Port={second} CPUs=2\n\
             PartitionName=all Nodes=n1,n2 Default=YES State=UP OverSubscribe=YES\n"
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.file("slurm.conf"));
        command
    }

    fn run(&mut self, mut daemon: Command) {
        let daemon = daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(daemon.spawn().expect("the daemon starts"));
    }

    fn await_that(&self, what: &str, holds: impl Fn(&Cluster) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:?}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> Vec<String> {
        let files = ["munge.log", "control.log", "n1.log", "n2.log"];
        files.iter().map(|file| fs::read_to_string(self.file(file)).unwrap_or_default()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // It may have ended by itself.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
