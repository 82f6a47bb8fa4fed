use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;

use super::*;

const ID: &str = "oxccl1:127.0.0.1:5000:\
                  0101010101010101010101010101010101010101010101010101010101010101";

fn read(text: &str) -> Result<Environment, EnvironmentError> {
    read_with_parent(text, 77)
}

/// Reads an environment written as `NAME=value` words.
fn read_with_parent(text: &str, parent: u32) -> Result<Environment, EnvironmentError> {
    let pairs = text.split_whitespace().map(|word| word.split_once('=').unwrap());
    let variables: HashMap<_, _> = pairs.collect();
    Environment::from_lookup(|name| variables.get(name).map(OsString::from), parent)
}

fn place(environment: &Environment) -> (usize, usize, usize, usize, Launcher) {
    let e = environment;
    (e.rank, e.world, e.local_rank, e.local_world, e.launcher)
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=head \
                        MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
                        OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                        PMIX_NAMESPACE=1804795905";
const MPICH: &str = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=8";
const SLURM: &str = "SLURM_PROCID=5 SLURM_NTASKS=11 SLURM_LOCALID=1 SLURM_NODEID=1 \
                     SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_JOB_ID=31 SLURM_STEP_ID=0 \
                     SLURM_STEP_NODELIST=node[003-005]";

#[test]
fn nothing_is_no_launcher() {
    assert_eq!(read(""), Err(EnvironmentError::NoLauncher));
    assert_eq!(read("RANK=1"), Err(EnvironmentError::NoLauncher));
}

#[test]
fn oxccl_run() {
    let base = format!("OXCCL_RANK=1 OXCCL_WORLD_SIZE=3 OXCCL_UNIQUE_ID={ID}");
    let environment = read(&base).unwrap();
    assert_eq!(place(&environment), (1, 3, 1, 3, Launcher::Oxccl));
    assert_eq!(environment.unique_id, ID.parse().unwrap());
    let environment = read(&format!("{base} OXCCL_LOCAL_RANK=0 OXCCL_LOCAL_WORLD_SIZE=2")).unwrap();
    assert_eq!(place(&environment), (1, 3, 0, 2, Launcher::Oxccl));
    let first = read(&format!("OXCCL_RANK=0 OXCCL_WORLD_SIZE=3 OXCCL_UNIQUE_ID={ID}")).unwrap();
    assert!(!first.serves(), "the command serves");
    let error = read("OXCCL_RANK=0 OXCCL_WORLD_SIZE=3 OXCCL_UNIQUE_ID=oxccl1:x").unwrap_err();
    assert!(matches!(error, EnvironmentError::UniqueId(_)), "{error}");
}

#[test]
fn torchrun() {
    let environment = read(TORCHRUN).unwrap();
    assert_eq!(place(&environment), (5, 8, 1, 4, Launcher::Torchrun));
    assert_eq!(environment.unique_id.address(), "head:29501", "torch's store has 29500");
    let other = read(&TORCHRUN.replace("RANK=5", "RANK=6").replace("LOCAL_RANK=6", "LOCAL_RANK=2"));
    assert_eq!(other.unwrap().unique_id, environment.unique_id);
    let restarted = read(&format!("{TORCHRUN} TORCHELASTIC_RESTART_COUNT=1")).unwrap();
    assert_ne!(restarted.unique_id.secret(), environment.unique_id.secret());
    let last = read(&TORCHRUN.replace("29500", "65535")).unwrap_err();
    assert!(matches!(last, EnvironmentError::Invalid { variable: "MASTER_PORT", .. }), "{last}");
    let kubernetes = read("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456");
    assert_eq!(place(&kubernetes.unwrap()), (1, 2, 0, 1, Launcher::Torchrun));
}

#[test]
fn open_mpi() {
    let environment = read(OPEN_MPI).unwrap();
    assert_eq!(place(&environment), (1, 2, 1, 2, Launcher::OpenMpi));
    assert_eq!(environment.unique_id.host(), "127.0.0.1");
    assert!(PORTS.contains(&environment.unique_id.port()));
    let other = read(&OPEN_MPI.replace("1804795905", "1804795906")).unwrap();
    assert_ne!(other.unique_id.secret(), environment.unique_id.secret());
    let old = OPEN_MPI.replace("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid");
    assert_eq!(read(&old), Ok(environment), "the same in both");
}

#[test]
fn mpich() {
    let environment = read(MPICH).unwrap();
    assert_eq!(place(&environment), (1, 2, 1, 2, Launcher::Mpich));
    assert_eq!(read_with_parent(MPICH, 77), Ok(environment.clone()));
    let other = read_with_parent(MPICH, 78).unwrap();
    assert_ne!(other.unique_id.secret(), environment.unique_id.secret());
}

#[test]
fn several_machines_need_an_address_under_mpi() {
    let two = MPICH.replace("MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS=1");
    let two = two.replace("MPI_LOCALRANKID=1", "MPI_LOCALRANKID=0");
    let error = read(&two).unwrap_err();
    assert!(matches!(error, EnvironmentError::Missing { variable: "OXCCL_ADDR", .. }), "{error}");
    let there = format!("{two} OXCCL_ADDR=head:7000");
    let (here, there) = (read_with_parent(&there, 1).unwrap(), read_with_parent(&there, 2));
    assert_eq!(here.unique_id.address(), "head:7000");
    assert_eq!(there, Ok(here), "parents differ between machines");
}

#[test]
fn slurm() {
    let environment = read(SLURM).unwrap();
    assert_eq!(place(&environment), (5, 11, 1, 4, Launcher::Slurm));
    assert_eq!(environment.unique_id.host(), "node003");
    let third = SLURM.replace("SLURM_NODEID=1", "SLURM_NODEID=2");
    assert_eq!(read(&third).unwrap().local_world, 3);
    let one = "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=2 \
               SLURM_JOB_ID=31 SLURM_STEP_ID=0";
    assert_eq!(read(one).unwrap().unique_id.host(), "127.0.0.1");
    let batch = read(&one.replace("SLURM_STEP_ID=0", "")).unwrap_err();
    let expected = "SLURM_STEP_ID is not set, though srun seems to have started this process: \
                    start the ranks with srun";
    assert_eq!(batch.to_string(), expected);
    let next_step = read(&SLURM.replace("STEP_ID=0", "STEP_ID=1")).unwrap();
    assert_ne!(next_step.unique_id.secret(), environment.unique_id.secret());
}

#[test]
fn one_launcher_inside_another() {
    let batch = "SLURM_PROCID=0 SLURM_JOB_ID=31 SLURM_NTASKS=2";
    let launcher = |text: String| read(&text).unwrap().launcher;
    assert_eq!(launcher(format!("{batch} {OPEN_MPI}")), Launcher::OpenMpi);
    assert_eq!(launcher(format!("{batch} {TORCHRUN}")), Launcher::Torchrun);
    let pmi2 = format!("{SLURM} PMI_RANK=5 PMI_SIZE=11");
    assert_eq!(launcher(pmi2), Launcher::Slurm, "srun --mpi=pmi2");
}

#[test]
fn address_and_secret_can_be_given() {
    for launched in [TORCHRUN, OPEN_MPI, MPICH, SLURM] {
        let plain = read(launched).unwrap().unique_id;
        let given = read(&format!("{launched} OXCCL_ADDR=[::1]:99 OXCCL_SECRET=s3")).unwrap();
        assert_eq!(given.unique_id.address(), "[::1]:99");
        assert_ne!(given.unique_id.secret(), plain.secret());
        for wrong in ["head", "head:0", "::1:5"] {
            let error = read(&format!("{launched} OXCCL_ADDR={wrong}")).unwrap_err();
            let named = matches!(&error, EnvironmentError::Invalid { variable, value, .. }
                if *variable == "OXCCL_ADDR" && value == wrong);
            assert!(named, "{error}");
        }
    }
    let secret = |text: &str| read(text).unwrap().unique_id.secret().clone();
    let [a, b] = [OPEN_MPI, MPICH].map(|launched| secret(&format!("{launched} OXCCL_SECRET=s3")));
    assert_eq!(a, b, "the text alone makes it");
}

/// `text`, and one variable whose value is these bytes.
fn read_bytes(text: &str, name: &str, bytes: &[u8]) -> Result<Environment, EnvironmentError> {
    let lookup = |asked: &str| {
        let mut words = text.split_whitespace().filter_map(|word| word.split_once('='));
        let found = words.find(|(name, _)| *name == asked).map(|(_, value)| OsString::from(value));
        if asked == name { Some(OsString::from_vec(bytes.to_vec())) } else { found }
    };
    Environment::from_lookup(lookup, 77)
}

#[test]
fn a_secret_may_be_any_bytes() {
    let secret = |bytes: &[u8]| {
        let read = read_bytes(TORCHRUN, "OXCCL_SECRET", bytes).unwrap();
        read.unique_id.secret().clone()
    };
    let derived = read(TORCHRUN).unwrap().unique_id.secret().clone();
    assert_ne!(secret(b"\xff\x80"), derived, "it is not left out");
    assert_ne!(secret(b"\xff\x80"), secret(b"\xff\x81"), "nor replaced by something shorter");
    assert_eq!(secret(b"\xff\x80"), secret(b"\xff\x80"));
    assert_eq!(secret(b""), derived, "an empty one is none");
}

#[test]
fn a_job_without_a_secret_that_strangers_reach_is_warned_of() {
    let warning = |text: &str| read(text).unwrap().warning();
    let told = warning(TORCHRUN).unwrap();
    assert!(told.contains("head:29501") && told.contains("OXCCL_SECRET"), "{told}");
    assert!(warning(SLURM).is_some());
    for safe in [
        OPEN_MPI,
        MPICH,
        &format!("{SLURM} OXCCL_SECRET=s"),
        &format!("{TORCHRUN} OXCCL_ADDR=[::1]:9"),
    ] {
        assert_eq!(warning(safe), None, "{safe}");
    }
    let ours = format!(
        "OXCCL_RANK=0 OXCCL_WORLD_SIZE=1 OXCCL_UNIQUE_ID={}",
        ID.replace("127.0.0.1", "node0")
    );
    assert_eq!(warning(&ours), None, "a unique id has a random secret");
}

#[test]
fn other_variables_that_are_no_text_are_named() {
    for launched in [TORCHRUN, OPEN_MPI, MPICH, SLURM] {
        for word in launched.split_whitespace().chain(["OXCCL_ADDR=x:1"]) {
            let (name, _) = word.split_once('=').unwrap();
            match read_bytes(launched, name, b"\xff") {
                Err(EnvironmentError::NotUnicode { variable, .. }) => assert_eq!(variable, name),
                other => assert_eq!(name, "PMI_FD", "which nobody reads: {other:?}"),
            }
        }
    }
}

#[test]
fn every_variable_that_is_missing_or_wrong_is_named() {
    for launched in [TORCHRUN, OPEN_MPI, MPICH, SLURM] {
        for word in launched.split_whitespace() {
            let (variable, value) = word.split_once('=').unwrap();
            let numeric = value.parse::<u64>().is_ok() && !variable.ends_with("ID")
                || variable == "SLURM_PROCID"
                || variable == "SLURM_LOCALID";
            if numeric && variable != "PMI_FD" && !variable.contains("NAMESPACE") {
                let error = read(&launched.replace(word, &format!("{variable}=x7"))).unwrap_err();
                let named = matches!(&error, EnvironmentError::Invalid { variable: name, value, .. }
                    if *name == variable && value == "x7");
                assert!(named, "{variable}: {error}");
            }
            match read(&launched.replace(word, "")) {
                Err(EnvironmentError::Missing { variable: name, .. }) => {
                    // Without its second choice, the first or the second is named.
                    let choices = [variable, "SLURM_TASKS_PER_NODE", "SLURM_JOB_NODELIST"];
                    assert!(choices.contains(&name), "{variable}: {name} is named");
                }
                Err(EnvironmentError::NoLauncher) => {
                    assert!(variable.contains("RANK") || variable == "SLURM_PROCID", "{variable}");
                }
                Err(other) => panic!("{variable}: {other}"),
                Ok(_) => {
                    let free = ["TORCHELASTIC_RUN_ID", "PMI_FD", "SLURM_NODEID"];
                    assert!(free.contains(&variable), "{variable} is not needed");
                }
            }
        }
    }
}

#[test]
fn ranks_are_below_their_world() {
    for (launched, from, to, variable) in [
        (TORCHRUN, " WORLD_SIZE=8", " WORLD_SIZE=5", "RANK"),
        (OPEN_MPI, "LOCAL_SIZE=2", "LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK"),
        (MPICH, "MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS=3", "MPI_LOCALNRANKS"),
        (SLURM, "SLURM_LOCALID=1", "SLURM_LOCALID=4", "SLURM_LOCALID"),
    ] {
        let error = read(&launched.replace(from, to)).unwrap_err();
        let named = matches!(&error, EnvironmentError::Invalid { variable: name, .. }
            if *name == variable);
        assert!(named, "{error}");
    }
}
