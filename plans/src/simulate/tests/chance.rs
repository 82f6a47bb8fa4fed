//! Calls that are disturbed: by others' traffic, by flows that collide, by steps that take longer.

use super::links::with_spine;
use super::*;

const ACROSS: (Kind, Algorithm, Encoding) = (Kind::AllToAll, Algorithm::Direct, Encoding::Slots);

/// A long all-to-all over a spine, whose links are a quarter of what adapters could fill.
fn over_spine(change: impl Fn(Network) -> Network) -> Prediction {
    let (kind, algorithm, encoding) = ACROSS;
    let mut case = Case::on(&with_spine(4, false), kind, 32, 64 << 20);
    case.network = change(case.network);
    case.run(algorithm, encoding)
}

#[test]
fn flows_that_collide_are_slower_than_flows_that_are_spread() {
    let spread = over_spine(|network| network);
    let all = link_bytes(&spread, "pod0/leaf0>spine ib");
    let mut times = Vec::new();
    for seed in 0..4 {
        let collide = over_spine(|network| network.with_collisions(4, seed));
        let each: Vec<u64> =
            (0..4).map(|at| link_bytes(&collide, &format!("pod0/leaf0>spine.{at} ib"))).collect();
        assert_eq!(each.iter().sum::<u64>(), all, "nothing is lost");
        // The fullest of the links decides, in whichever direction and pod.
        let fullest = collide.links[0].bytes as f64 / (all as f64 / 4.0);
        assert!(fullest > 1.05, "128 flows over 4 links are hardly ever even: {fullest}");
        let ratio = collide.time_ns / spread.time_ns;
        assert!(ratio > 0.95 * fullest && ratio < 1.5 * fullest, "{ratio} {fullest}");
        times.push(collide.time_ns);
        let again = over_spine(|network| network.with_collisions(4, seed));
        assert_eq!(again.time_ns, collide.time_ns);
    }
    times.dedup();
    assert!(times.len() > 1, "other seeds, other collisions: {times:?}");
    // One link cannot be missed.
    let alone = over_spine(|network| network.with_collisions(1, 7));
    assert_eq!(alone.time_ns, spread.time_ns);
}

#[test]
fn what_others_take_of_the_fabric_is_missing() {
    let of = |load: f64| over_spine(|network| network.with_load(load)).time_ns;
    let ratio = of(0.5) / of(0.0);
    assert!((ratio - 2.0).abs() < 0.1, "{ratio}");
    // Inside of a node nothing changes.
    let mut inside = Case::new("dgx-h100", Kind::AllReduce, 8, 1 << 20);
    let plain = inside.run(Algorithm::Ring, Encoding::Slots).time_ns;
    inside.network = inside.network.with_load(0.5);
    assert_eq!(inside.run(Algorithm::Ring, Encoding::Slots).time_ns, plain);
}

#[test]
fn noise_follows_its_seed_and_costs_what_chains_of_steps_wait_for() {
    let of = |percent: f64, seed| {
        let noise = Some(Noise { percent, seed });
        let case = Case::new("dgx-h100", Kind::AllReduce, 8, 64 << 10).with(|o| o.noise = noise);
        case.run(Algorithm::Ring, Encoding::Slots).time_ns
    };
    let quiet = Case::new("dgx-h100", Kind::AllReduce, 8, 64 << 10);
    let quiet = quiet.run(Algorithm::Ring, Encoding::Slots).time_ns;
    assert_eq!(of(0.0, 1), quiet);
    assert_eq!(of(20.0, 1), of(20.0, 1));
    assert_ne!(of(20.0, 1), of(20.0, 2));
    // Every step of the ring waits for the slowest of those before it: about the mean, or more.
    let mean = (0..8).map(|seed| of(20.0, seed)).sum::<f64>() / 8.0 / quiet;
    assert!(mean > 1.1 && mean < 2.5, "{mean}");
    // Rounds differ, so all are simulated.
    let long = Case::new("dgx-h100", Kind::AllReduce, 8, 1 << 30)
        .with(|o| o.noise = Some(Noise { percent: 5.0, seed: 3 }));
    let long = long.run(Algorithm::Ring, Encoding::Slots);
    assert_eq!(long.simulated_rounds, long.rounds);
}
