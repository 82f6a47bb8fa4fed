//! The example of a job that goes on when a rank dies, as processes, and what the launcher says.

mod command_line;

#[allow(dead_code)]
#[path = "../../examples/survivors.rs"]
mod example;

use command_line::{Said, command, finish, start};

/// The test that is one rank.
const RANK: &str = "one_rank_of_a_launcher";
/// The rank that dies.
const DIES: &str = "SURVIVORS_EXAMPLE_DIES";

fn run(flags: &[&str], dies: &str) -> Said {
    let own = std::env::current_exe().expect("this program has a path");
    let mut run = command(&[&["run", "-n", "4"], flags, &["--"]].concat());
    run.arg(own).args([RANK, "--exact", "--ignored", "--nocapture"]).env(DIES, dies);
    finish(start(&mut run))
}

#[test]
fn those_that_remain_find_the_mean_of_theirs() {
    // Rank 0, too: the launcher serves the rendezvous.
    for (dies, mean) in [("2", "1.333"), ("0", "2.000")] {
        for flags in [&["--keep-going"][..], &["--keep-going", "--nodes", "2"]] {
            let said = run(flags, dies).ok();
            let found = format!("the mean of 3 targets is {mean}");
            assert!(said.out.contains(&found), "{flags:?}: {said:#?}");
            let told = format!("oxccl: rank {dies} (process ");
            assert!(said.err.contains(&told), "{flags:?}: {said:#?}");
            assert!(
                said.err.contains("was ended by signal 6 (SIGABRT); the others go on"),
                "{said:#?}"
            );
            // What they say may be mixed up.
            assert_eq!(said.err.matches("all_reduce of 1000 float #").count(), 3, "{said:#?}");
        }
    }
}

#[test]
fn where_nobody_dies_nothing_is_said() {
    let said = run(&["--keep-going"], "9").ok();
    assert!(said.out.contains("the mean of 4 targets is 1.500"), "{said:#?}");
    assert!(!said.err.contains("go on"), "{said:#?}");
}

/// Where nobody remains, the job has failed.
#[test]
fn a_job_of_which_all_ranks_fail_has_failed() {
    let said = finish(start(&mut command(&[
        "run",
        "-n",
        "2",
        "--keep-going",
        "--",
        "sh",
        "-c",
        "exit 5",
    ])));
    let said = said.failed(5);
    assert_eq!(said.err.matches("the others go on").count(), 2, "{said:#?}");
}

#[test]
#[ignore = "one rank of the tests above"]
fn one_rank_of_a_launcher() {
    let dies = std::env::var(DIES).expect("a rank").parse().expect("a number");
    example::run(Some(dies)).expect("those that remain end");
}
