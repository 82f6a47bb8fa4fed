//! Traces and critical paths.

use super::*;

#[test]
fn the_critical_path_is_as_long_as_the_call() {
    for (topology, ranks) in [("dgx-h100", 8), ("dgx-a100 x 2", 10), ("host", 4)] {
        for bytes in [64, 1 << 20] {
            let case = Case::new(topology, Kind::AllReduce, ranks, bytes).with(|o| o.trace = true);
            for (entry, prediction) in every_entry(&case) {
                let path = prediction.trace.unwrap().critical_path;
                let sum = path.launch_ns + path.steps_ns + path.latency_ns;
                let ratio = sum / prediction.time_ns;
                assert!((ratio - 1.0).abs() < 1e-6, "{topology} {entry:?}: {path:?}");
                let starts: Vec<f64> =
                    path.segments.iter().map(|segment| segment.start_ns).collect();
                assert!(starts.is_sorted(), "{starts:?}");
            }
        }
    }
}

#[test]
fn traces_have_all_steps_and_no_link_carries_two_things_at_once() {
    let case = Case::new("dgx-h100", Kind::AllReduce, 4, 1 << 20).with(|o| o.trace = true);
    let trace = case.run(Algorithm::Ring, Encoding::Slots).trace.unwrap();
    let chrome = trace.to_chrome(|rank, step| format!("{rank}/{step}"));
    let all = chrome["traceEvents"].as_array().unwrap();
    let complete = all.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(complete, trace.events.len() + trace.occupations.len());
    for link in 0..trace.links.len() {
        let mut of: Vec<_> = trace.occupations.iter().filter(|one| one.link == link).collect();
        of.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
        assert!(of.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "{link}");
    }
}
