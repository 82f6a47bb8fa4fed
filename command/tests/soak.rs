//! `oxccl soak`: random calls, splits and deaths.

mod command_line;
#[path = "../../tests/common/left.rs"]
mod left;
use command_line::oxccl;

#[test]
fn random_calls_are_right() {
    for more in [&["-n", "3"][..], &["--nodes", "2", "--seed", "2"], &["-n", "1"]] {
        let said = oxccl(&[&["soak", "--calls", "1500"], more].concat()).ok();
        assert!(said.out.contains(" calls and "), "{said:#?}");
        assert!(said.out.contains(" ranks died; 0 wrong elements"), "{said:#?}");
        assert!(said.out.contains(" more descriptors, "), "{said:#?}");
        assert!(operations(&said.out) > 1500, "{said:#?}");
    }
}

/// How many it says that it has made.
fn operations(said: &str) -> u64 {
    let line = said.lines().find_map(|line| line.split_once(" operations: "));
    line.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// With everything that can befall a rank. Longer ones are made by hand.
#[test]
fn many_operations_are_right() {
    let (calls, least) = match left::to_test_all("a million operations") {
        true => ("80000", 100_000),
        false => ("720000", 1_000_000),
    };
    let faults = ["--deaths", "2", "--faults", "kill,stop,cut,slow,garbage", "--nodes", "4"];
    let calm = &["-n", "2", "--seed", "11", "--calls", calls][..];
    let rough = &[&["-n", "4", "--seed", "12", "--calls", "8000"][..], &faults].concat();
    let mut made = 0;
    for arguments in [calm, rough] {
        let said = oxccl(&[&["soak", "--minutes", "15"], arguments].concat()).ok();
        assert!(said.out.contains("; 0 wrong elements"), "{said:#?}");
        made += operations(&said.out);
    }
    assert!(made > least, "{made}");
}

#[test]
fn the_others_go_on_when_ranks_die() {
    for (more, died) in [
        (&["--deaths", "2"][..], "2 of 4 ranks died"),
        (&["--deaths", "1", "--nodes", "2", "--seed", "3"], "1 of 4 ranks died"),
        (&["--deaths", "1", "-n", "2", "--seed", "4"], "1 of 2 ranks died"),
    ] {
        let said = oxccl(&[&["soak", "--calls", "2000"], more].concat()).ok();
        assert!(said.out.contains(died) && said.out.contains("; 0 wrong elements"), "{said:#?}");
        assert!(said.err.contains("the others go on"), "{said:#?}");
    }
}

#[test]
fn the_others_go_on_whatever_befalls_a_rank() {
    let run = |more: &[&str]| oxccl(&[&["soak", "--calls", "2000"], more].concat()).ok();
    for more in [
        // One after another; what is cut or stopped is on a node of its own in the second.
        &["--deaths", "3", "--faults", "cut,stop,kill,slow"][..],
        &["--deaths", "2", "--faults", "cut,stop,garbage", "--nodes", "4", "--seed", "5"],
    ] {
        let said = run(more);
        assert!(said.out.contains(&format!("{} of 4 ranks died", more[1])), "{said:#?}");
        assert!(said.out.contains("; 0 wrong elements"), "{said:#?}");
        let strangers = said.out.contains(" strangers connected to rank 0");
        assert_eq!(strangers, more[3].contains("garbage"), "{said:#?}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, told) in [
        (&["--deaths", "4"][..], "--deaths 4 leave none of 4 ranks"),
        (
            &["--deaths", "1", "--faults", "slow"],
            "need a fault that ends a rank: kill, stop or cut",
        ),
        (&["--nodes", "5"], "--nodes 5 are more than the 4 ranks"),
        (&["--minutes", "0"], "no number of minutes above 0"),
    ] {
        let said = oxccl(&[&["soak"], arguments].concat()).failed(2);
        assert!(said.err.contains(told), "{said:#?}");
    }
}
