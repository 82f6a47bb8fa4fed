//! `examples/schedule.schema.json` says what the reader takes: every example, and whatever is
//! written, fits it; what it refuses, the reader refuses.
#![allow(clippy::unwrap_used)]

use jsonschema::Validator;
use oxccl_plans::algorithms::catalogue;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{Chunking, SLOTS, ScheduleFile};
use oxccl_plans::topology::Placement;
use serde_json::Value;
use std::path::Path;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn schema() -> Validator {
    let text = std::fs::read_to_string(Path::new(EXAMPLES).join("schedule.schema.json")).unwrap();
    jsonschema::validator_for(&serde_json::from_str(&text).unwrap()).unwrap()
}

fn assert_fits(schema: &Validator, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap();
    if let Some(error) = schema.iter_errors(&value).next() {
        panic!("{}: {error}", error.instance_path());
    }
}

#[test]
fn every_example_fits() {
    let schema = schema();
    let mut examples = 0;
    for entry in std::fs::read_dir(EXAMPLES).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".json") || name.ends_with(".schema.json") {
            continue;
        }
        assert_fits(&schema, &std::fs::read_to_string(&path).unwrap());
        ScheduleFile::read(&path).unwrap();
        examples += 1;
    }
    assert!(examples > 0);
}

#[test]
fn every_schedule_of_the_catalogue_fits() {
    let schema = schema();
    for entry in catalogue() {
        let collective = match entry.kind {
            Kind::SendRecv => Collective::send_recv(8, 1, 2),
            kind => Collective::new(kind, 8),
        };
        let schedule =
            entry.schedule(collective, Placement::uniform(2), Order::Any, SLOTS).unwrap();
        let mut file = ScheduleFile::new(schedule, Order::Any, entry.in_place);
        file.notes.name = Some(entry.algorithm.to_string());
        file.notes.steps.insert((0, 0), "the first".to_owned());
        assert_fits(&schema, &file.to_json());
        file.schedule.input = Chunking::PerRank(3);
        file.schedule.output = Chunking::Parts(3);
        assert_fits(&schema, &file.to_json());
    }
}

#[test]
fn what_does_not_fit_is_not_read() {
    let schema = schema();
    let whole = r#"{"collective": "broadcast", "ranks": 1, "input": "whole", "output": "whole", "steps": [[STEP]]}"#;
    let step = r#"{"reduce_copy": ["in[0]"], "to": ["out[0]"], "comment": "done"}"#;
    assert_fits(&schema, &whole.replace("STEP", step));
    let lists = format!("[{step}], []");
    assert_fits(&schema, &whole.replace("STEP", &lists));
    let in_scratch = r#"{"reduce_copy": ["in[0]"], "to": ["scratch[0]"]}"#;
    assert_fits(
        &schema,
        &whole.replace("STEP", in_scratch).replace("\"ranks\"", "\"scratch\": 1, \"ranks\""),
    );
    let wrong = [
        whole.replace("STEP", r#"{"reduce_copy": ["in[0]"], "to": ["oot[0]"]}"#),
        whole.replace("STEP", r#"{"reduce_copy": ["in[0]"], "to": ["out[0]"], "finl": true}"#),
        whole.replace("STEP", r#"{"reduce_copy": ["in[0]"], "to": ["out[0]"], "comment": 1}"#),
        whole.replace("STEP", r#"{"reduce_copy": ["in[0]"], "to": ["0:scratch[0]"]}"#),
        whole.replace("STEP", r#"{"wait": "0.slots", "at_least": 1}"#),
        whole.replace("STEP", r#"{"jump": 1}"#),
        whole.replace("STEP", &format!("[{step}], {step}")),
        whole.replace("STEP", r#"{"wait": "0/x.slots.tail", "at_least": 1}"#),
        whole.replace("STEP", step).replace("\"ranks\"", "\"rnks\""),
        whole.replace("STEP", step).replace("\"whole\"", "\"halves\""),
        whole.replace("STEP", step).replace("broadcast", "broad_cast"),
    ];
    for text in wrong {
        assert!(!schema.is_valid(&serde_json::from_str(&text).unwrap()), "{text}");
        assert!(ScheduleFile::from_json(&text).is_err(), "{text}");
    }
}
