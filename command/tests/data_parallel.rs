//! The data-parallel example as processes: it learns, and 1, 2 and 4 ranks end with the same bits.
//!
//! Each rank is this test program once more, with only the test named by [`RANK`].

mod command_line;

#[allow(dead_code)]
#[path = "../../examples/data_parallel.rs"]
mod example;

use command_line::{command, finish, start};

/// The test that is one rank.
const RANK: &str = "one_rank_of_a_launcher";

/// Test accuracy and the hash of the weights.
fn train(ranks: usize) -> (f64, String) {
    let own = std::env::current_exe().expect("this program has a path");
    let mut run = command(&["run", "-n", &ranks.to_string(), "--"]);
    run.arg(own).args([RANK, "--exact", "--ignored", "--nocapture"]);
    let said = finish(start(&mut run)).ok();
    let after = |text: &str| {
        let (_, rest) = said.out.split_once(text).unwrap_or_else(|| panic!("{said:#?}"));
        rest.split_whitespace().next().expect("a value").to_owned()
    };
    assert!(said.out.contains(&format!("{ranks} ranks, ")), "{said:#?}");
    (after("test accuracy ").parse().expect("a number"), after("weights "))
}

#[test]
fn training_reaches_95_percent_with_the_same_bits_on_1_2_and_4_ranks() {
    let (accuracy, weights) = train(1);
    assert!(accuracy >= 0.95, "test accuracy {accuracy}");
    for ranks in [2, 4] {
        assert_eq!(train(ranks), (accuracy, weights.clone()), "{ranks} ranks");
    }
}

#[test]
#[ignore = "one rank of the test above"]
fn one_rank_of_a_launcher() {
    let config = oxccl::Config { order: oxccl::Order::Tree, ..oxccl::Config::default() };
    let comm = oxccl::Communicator::from_env_with(&config).expect("the ranks meet");
    example::report(&comm, 20).expect("training ends");
}
