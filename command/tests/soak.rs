//! `oxccl soak`: random calls, splits and deaths.

mod command_line;

use command_line::oxccl;

#[test]
fn random_calls_are_right() {
    for more in [&["-n", "3"][..], &["--nodes", "2", "--seed", "2"], &["-n", "1"]] {
        let said = oxccl(&[&["soak", "--calls", "1500"], more].concat()).ok();
        assert!(said.out.contains(" calls and "), "{said:#?}");
        assert!(said.out.contains(" ranks died; 0 wrong elements"), "{said:#?}");
        assert!(said.out.contains(" more descriptors, "), "{said:#?}");
    }
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
fn what_cannot_be_is_refused() {
    for (arguments, told) in [
        (&["--deaths", "4"][..], "--deaths 4 leave none of 4 ranks"),
        (&["--nodes", "5"], "--nodes 5 are more than the 4 ranks"),
        (&["--minutes", "0"], "no number of minutes above 0"),
    ] {
        let said = oxccl(&[&["soak"], arguments].concat()).failed(2);
        assert!(said.err.contains(told), "{said:#?}");
    }
}
