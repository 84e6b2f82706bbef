//! What programs are told while a command works: `--progress json`, and what people are spared by `none`.

use serde_json::{Value, json};

use crate::same_bytes::Running;
use crate::sandbox::{ENCODER, PICTURES, Sandbox, json_lines};

/// Every line of standard error as an event, with the keys that all of them have.
fn told(errors: &str) -> Vec<Value> {
    let events = json_lines(errors);
    for event in &events {
        assert!(event["event"].is_string() && event["command"].is_string(), "{event}");
        assert!(event["elapsed"].as_f64().unwrap() >= 0.0, "{event}");
    }
    assert!(events.is_sorted_by_key(|event| event["elapsed"].as_f64().unwrap()), "{errors}");
    events
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

fn keys(event: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = event.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_program_reads_every_line_and_the_last_one_has_the_outcome() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let run = sandbox.run(&format!("index pictures --gallery gallery {ENCODER} --progress json")).succeeds();
    assert_eq!(run.out, "gallery: 30 items of dimension 8\n");
    let events = told(&run.errors);
    let (begin, end) = (&events[0], events.last().unwrap());
    assert_eq!(keys(begin), ["command", "elapsed", "event", "version"]);
    assert_eq!(begin["event"], "begin");
    assert_eq!(keys(end), ["command", "elapsed", "errors", "event", "hint", "outcome", "status"]);
    assert_eq!(
        (&end["event"], &end["outcome"], &end["status"]),
        (&json!("end"), &json!("succeeded"), &json!(0))
    );
    assert_eq!((&end["errors"], &end["hint"]), (&json!([]), &Value::Null));
    assert!(events.iter().all(|event| event["command"] == "index"), "{}", run.errors);

    let steps = named(&events, "progress");
    for step in &steps {
        let wanted = ["certified", "command", "done", "elapsed", "eta", "event", "phase", "rate", "total"];
        assert_eq!(keys(step), wanted);
        assert_eq!((&step["phase"], &step["total"]), (&json!("indexing"), &json!(PICTURES)));
        assert!(step["certified"].is_null() && step["rate"].is_number(), "{step}");
        assert!(step["eta"].is_number() || step["eta"].is_null(), "{step}");
    }
    assert_eq!((&steps[0]["done"], &steps.last().unwrap()["done"]), (&json!(0), &json!(PICTURES)));
    assert!(steps.is_sorted_by_key(|step| step["done"].as_u64()));
    // Two a second, and the first and the last one.
    let seconds = end["elapsed"].as_f64().unwrap();
    assert!(steps.len() as f64 <= 2.0 * seconds + 2.0, "{} in {seconds} s", steps.len());
}

#[test]
fn certified_queries_are_counted_on_the_way_those_of_an_earlier_run_included() {
    let sandbox = Sandbox::indexed();
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --certificate vote,pairwise --samples 200 --pilot 20 --out run \
         --jsonl --progress json"
    );
    let first = told(&sandbox.run(&line).succeeds().errors);
    let is_certified = |row: &Value| {
        row["certificates"].as_object().unwrap().values().any(|cell| cell["verdict"] == "certified")
    };
    let rows = json_lines(&sandbox.text("run/certificates.jsonl"));
    let certified = rows.iter().filter(|row| is_certified(row)).count();
    assert!(certified > 0, "{}", rows[0]);
    let counts = |events: &[Value]| -> Vec<u64> {
        named(events, "progress").iter().map(|step| step["certified"].as_u64().unwrap_or(0)).collect()
    };
    assert_eq!(counts(&first).last(), Some(&(certified as u64)));
    assert!(counts(&first).is_sorted());
    // The plan is for people, and so is told as a note.
    assert!(named(&first, "note").iter().any(|note| note["message"].as_str().unwrap().starts_with("plan: ")));
    let again = told(&sandbox.run(&line).succeeds().errors);
    assert_eq!(counts(&again), [certified as u64]);
}

#[test]
fn a_failure_and_an_interruption_are_events_with_their_reasons() {
    let sandbox = Sandbox::indexed();
    let run = sandbox.run(&format!("certify pictures --gallery nowhere {ENCODER} --progress json"));
    let events = told(&run.ends_with_status(2).errors);
    let end = events.last().unwrap();
    assert_eq!(
        (&end["event"], &end["outcome"], &end["status"]),
        (&json!("end"), &json!("failed"), &json!(2))
    );
    assert!(end["errors"][0].as_str().unwrap().contains("nowhere"), "{end}");

    sandbox.run("copy-encoder --out copies").succeeds();
    let line = "certify pictures --gallery gallery --model copies/encoder.onnx --sigma 0.1 --engine rten --progress json";
    let events = told(&sandbox.run(line).ends_with_status(2).errors);
    let hint = events.last().unwrap()["hint"].as_str().unwrap();
    assert!(hint.contains("retrievalguard index"), "{hint}");

    let slow = "--certificate half-space,vote --samples 1500 --pilot 50";
    let line = format!("certify pictures --gallery gallery {ENCODER} {slow} --out run --progress json");
    let mut run = Running::start(&sandbox, &line);
    run.wait_for_lines(&sandbox, "run/certify.journal", 5);
    run.signal("-INT");
    let (status, errors) = run.finish();
    let events = told(&errors);
    let end = events.last().unwrap();
    assert_eq!(
        (status, &end["outcome"], &end["status"]),
        (Some(1), &json!("stopped"), &json!(1)),
        "{errors}"
    );
    assert!(end["errors"][0].as_str().unwrap().contains("of 30"), "{end}");
}

#[test]
fn nobody_hears_of_progress_who_asked_for_none_and_the_command_line_wins_over_the_file() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let index = |gallery: &str, flags: &str| {
        let line = format!("index pictures --gallery {gallery} {ENCODER} {flags}");
        sandbox.run(&line).succeeds().errors
    };
    assert!(index("lines", "").contains("indexing 30/30"));
    assert_eq!(index("silent", "--progress none"), "");
    sandbox.write("run.toml", "progress = \"json\"\n");
    assert_eq!(told(&index("events", "--config run.toml")).last().unwrap()["outcome"], "succeeded");
    assert_eq!(index("silent-too", "--config run.toml --progress none"), "");
    // Notes and errors are no progress.
    let line = format!("index nowhere --gallery gallery {ENCODER} --progress none");
    sandbox.run(&line).fails(2, &["nowhere"]);
}

#[cfg(feature = "train")]
#[test]
fn training_tells_its_steps_and_its_evaluations() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let line = format!("train pictures --out run --epochs 1 {} --progress json", crate::train::SMALL);
    let events = told(&sandbox.run(&line).succeeds().errors);
    let steps = named(&events, "progress");
    let last = steps.last().unwrap();
    assert_eq!((&last["phase"], &last["done"]), (&json!("training"), &last["total"]));
    assert!(last["training"]["loss"].is_number() && last["training"]["epoch"] == 1, "{last}");
    assert!(last["training"]["pictures_per_second"].as_f64().unwrap() > 0.0, "{last}");
    assert!(!named(&events, "evaluation").is_empty() && !named(&events, "note").is_empty());
    assert_eq!(events.last().unwrap()["outcome"], "succeeded");
}
