//! `retrievalguard serve` on a gallery without noise: one pass, and answers that hold always.

use std::process::Command;

use serde_json::{Value, json};

use crate::report::browser;
use crate::sandbox::{PICTURES, Sandbox, write_png};
use crate::serve_client::{Service, form};

const MODEL: &str = "--model copies/encoder.onnx";

/// Thirty pictures, the encoder for copies, and their gallery, made without a noise level.
fn copies(flags: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.run("copy-encoder --out copies --size 32 --grid 8").succeeds();
    sandbox.run(&format!("index pictures --gallery gallery {MODEL} {flags}")).succeeds();
    sandbox
}

fn serve(sandbox: &Sandbox, flags: &str) -> Service {
    Service::start_line(sandbox, &format!("serve --gallery gallery {MODEL} --port 0 {flags}"))
}

/// A picture that is not in the gallery.
fn stranger(sandbox: &Sandbox) -> Vec<u8> {
    let pixels: Vec<u8> = (0..3 * 24 * 24).map(|place| ((place * 7 + place / 40) % 251) as u8).collect();
    write_png(&sandbox.path("stranger.png"), 24, 24, &pixels);
    sandbox.bytes("stranger.png")
}

#[test]
fn a_query_over_http_has_the_radius_of_the_command_and_holds_always() {
    let sandbox = copies("");
    stranger(&sandbox);
    let service = serve(&sandbox, "");
    let about = service.get("/v1/about").expect(200);
    assert_eq!((&about["guarantee"], &about["retriever"]), (&json!("always"), &json!("plain")), "{about}");
    assert_eq!(about["lipschitz"]["origin"], "verified");
    let constant = about["lipschitz"]["constant"].as_f64().unwrap();
    assert!((0.999_999..=1.000_000_1).contains(&constant), "{about}");
    assert!(about["lipschitz"]["forward_error"].as_f64().is_some_and(|error| error > 0.0 && error < 1e-9));
    for name in ["sigma", "alpha", "pilot", "largest_radius"] {
        assert!(about[name].is_null() && about.get(name).is_some(), "{name}: {about}");
    }
    assert!(about["defaults"]["samples"].is_null() && about["limits"]["samples"].is_null(), "{about}");
    assert!(about["engine"].as_str().unwrap().contains("double"), "{about}");
    for name in ["pictures/class-1/3.png", "stranger.png"] {
        let wanted = sandbox.run(&format!("query {name} --gallery gallery {MODEL} --json")).succeeds().json();
        let answer = service.post("/v1/query", &sandbox.bytes(name)).expect(200);
        assert!(answer["radius"].as_f64().unwrap() > 0.01, "{answer}");
        for field in ["label", "candidate_label", "verdict", "radius", "unbounded", "retriever", "guarantee"]
        {
            assert_eq!(answer[field], wanted[field], "{field} of {name}");
        }
        assert_eq!(answer["lipschitz"], wanted["lipschitz"]);
        let distances = |answer: &Value| -> Vec<Value> {
            answer["items"].as_array().unwrap().iter().map(|item| item["distance"].clone()).collect()
        };
        assert_eq!(distances(&answer), distances(&wanted));
        for field in ["sigma", "alpha", "samples", "pilot", "decision", "asking_again"] {
            assert!(answer[field].is_null(), "{field}: {answer}");
        }
        let statement = answer["statement"].as_str().unwrap();
        assert!(statement.contains("always") && !statement.contains("probability"), "{statement}");

        // Nothing grows: the first event is the last.
        let events = service.stream("/v1/query", &sandbox.bytes(name));
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, &events[0].1["radius"]), (vec!["done"], &answer["radius"]));
    }
    let metrics = String::from_utf8(service.get("/metrics").body).unwrap();
    let passes = metrics.lines().find_map(|line| line.strip_prefix("retrievalguard_encoder_passes_total "));
    assert!(passes.unwrap().parse::<u64>().unwrap() >= 4, "{metrics}");
}

#[test]
fn parameters_about_noise_are_refused_by_name_where_there_is_none() {
    let sandbox = copies("");
    let service = serve(&sandbox, "");
    let picture = stranger(&sandbox);
    for (address, name) in [
        ("/v1/query?samples=100", "samples"),
        ("/v1/query?target_radius=0.1", "target_radius"),
        ("/v1/query?seed=1", "seed"),
        ("/v1/query?alpha=0.1", "alpha"),
        ("/v1/query?sigma=0.1", "sigma"),
        ("/v1/jobs?samples=100", "samples"),
        ("/v1/jobs?target_radius=0.1", "target_radius"),
        ("/v1/perturbations?kind=adversarial&against=smoothed", "against"),
    ] {
        let refused = service.post(address, &picture).expect(400);
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{name}`")), "{address}: {message}");
    }
    let made = service.post("/v1/perturbations?kind=noise", &picture).expect(201);
    let address = format!("/v1/perturbations/{}?size=0.1&samples=10", made["id"].as_str().unwrap());
    let refused = service.get(&address).expect(400).to_string();
    assert!(refused.contains("`samples` says nothing without noise"), "{refused}");
}

#[test]
fn flags_about_noise_are_refused_by_name_where_there_is_none() {
    let sandbox = copies("");
    let line = format!("serve --gallery gallery {MODEL} --port 0");
    for flag in ["--alpha 0.1", "--samples 10", "--pilot 10", "--max-samples 10", "--max-job-samples 10"] {
        let name = flag.split(' ').next().unwrap();
        sandbox.run(&format!("{line} {flag}")).fails(2, &[name, "gallery `gallery` has no noise level"]);
    }
    for flag in ["--project", "--non-negative"] {
        sandbox.run(&format!("{line} {flag}")).fails(2, &[flag, "has no noise level"]);
    }
    sandbox.run(&format!("{line} --retriever vote")).fails(2, &["the vote retriever", "wanted plain"]);
    sandbox.run(&format!("{line} --engine rten")).fails(2, &["--engine", "single precision"]);
    sandbox.run(&format!("{line} --sigma 0.1 --retriever plain")).fails(2, &["found sigma 0.1"]);
    // An encoder without a bound answers nothing without noise.
    let bare = "index pictures --gallery bare --model model/convolutional.onnx --engine rten --sigma 0.1 --samples 0";
    sandbox.run(bare).succeeds();
    sandbox
        .run("serve --gallery bare --model model/convolutional.onnx --port 0")
        .fails(2, &["gallery `bare` has no noise level", "or --sigma"]);
}

#[test]
fn an_added_item_is_found_at_once_with_a_radius_and_is_gone_when_removed() {
    for flags in ["", "--views flips"] {
        let sandbox = copies(flags);
        let service = serve(&sandbox, "");
        let picture = stranger(&sandbox);
        let before = service.post("/v1/query", &picture).expect(200);
        assert!(before["items"][0]["distance"].as_f64().unwrap() > 0.1, "{before}");
        service.post("/v1/items?label=stranger&identity=mine", &picture).expect(201);
        let answer = service.post("/v1/query", &picture).expect(200);
        assert_eq!((&answer["label"], &answer["items"][0]["identity"]), (&json!("stranger"), &json!("mine")));
        // The stored vector is the embedding rounded to single precision.
        assert!(answer["items"][0]["distance"].as_f64().unwrap() < 1e-5, "{answer}");
        assert!(answer["radius"].as_f64().unwrap() > 0.1, "{answer}");
        // Other commands see it, and say the same.
        let line = format!("query stranger.png --gallery gallery {MODEL} --json");
        let wanted = sandbox.run(&line).succeeds().json();
        assert_eq!((&answer["radius"], &answer["label"]), (&wanted["radius"], &wanted["label"]));

        let removed = service.delete("/v1/items/mine").expect(200);
        assert_eq!(removed["removed"], if flags.is_empty() { 1 } else { 2 });
        let after = service.post("/v1/query", &picture).expect(200);
        assert_eq!((&after["radius"], &after["items"]), (&before["radius"], &before["items"]));
        assert_eq!(service.get("/v1/about").expect(200)["gallery"]["items"], PICTURES);
    }
}

#[test]
fn a_job_answers_every_picture_as_a_query_does() {
    let sandbox = copies("");
    let service = serve(&sandbox, "");
    let pictures = [stranger(&sandbox), sandbox.bytes("pictures/class-2/1.png")];
    let (kind, body) = form(&[("top_k", "2")], &[&pictures[0], &pictures[1]]);
    let accepted = service.post_as("/v1/jobs", &kind, &body).expect(202);
    let address = format!("/v1/jobs/{}", accepted["id"].as_str().unwrap());
    service
        .wait_for("the end of the job", |service| service.get(&address).expect(200)["state"] == "finished");
    let job = service.get(&address).expect(200);
    assert_eq!((&job["samples_asked"], &job["samples_drawn"]), (&json!(2), &json!(2)), "{job}");
    for (place, picture) in pictures.iter().enumerate() {
        let answer = service.post("/v1/query?top_k=2", picture).expect(200);
        for field in ["radius", "label", "items", "statement", "guarantee", "lipschitz"] {
            assert_eq!(job["answers"][place][field], answer[field], "{field}");
        }
        assert_eq!(job["radii"][place], answer["radius"]);
    }
    // A later service reads the answers; a job that was to have samples is not answered without them.
    drop(service);
    let asked = json!({
        "samples": 100, "target": null, "top_k": 1, "pictures": 1, "seed": "1", "request_id": "r", "created": 1
    });
    let id = "ab".repeat(16);
    sandbox.write(&format!("gallery/jobs/{id}/picture-0"), &pictures[0]);
    sandbox.write(&format!("gallery/jobs/{id}/request.json"), asked.to_string());
    let service = serve(&sandbox, "");
    assert_eq!(service.get(&address).expect(200)["answers"], job["answers"]);
    let address = format!("/v1/jobs/{id}");
    service.wait_for("the end of the job", |service| service.get(&address).expect(200)["state"] == "failed");
    let failed = service.get(&address).expect(200)["error"].to_string();
    assert!(failed.contains("samples were asked for"), "{failed}");
}

#[test]
fn a_search_breaks_the_answer_beyond_the_radius_and_never_inside_it() {
    let sandbox = copies("");
    let service = serve(&sandbox, "");
    for (name, flags) in
        [("pictures/class-1/3.png", ""), ("pictures/class-4/0.png", "&seconds=5"), ("stranger.png", "")]
    {
        stranger(&sandbox);
        let picture = sandbox.bytes(name);
        let answer = service.post("/v1/query", &picture).expect(200);
        let radius = answer["radius"].as_f64().unwrap();
        let address = format!("/v1/perturbations?kind=adversarial&size={}{flags}", 4.0 * radius);
        let made = service.post(&address, &picture).expect(201);
        assert_eq!((&made["label"], &made["against"]), (&answer["label"], &json!("plain")), "{made}");
        assert_eq!(made["searched"]["mode"], "white-box");
        // The encoder is linear with orthonormal rows: the bisector is where the radius ends, up to mixtures.
        let broken = made["broken_at"].as_f64().unwrap();
        assert!(broken >= radius && broken <= 1.05 * radius, "{broken} at the radius {radius}: {made}");
        let look = |size: f64| {
            let address = format!("/v1/perturbations/{}?size={size}", made["id"].as_str().unwrap());
            service.get(&address).expect(200)
        };
        let inside = look(0.999 * radius);
        assert_eq!(
            (&inside["plain"]["changed"], &inside["smoothed"]),
            (&json!(false), &Value::Null),
            "{inside}"
        );
        assert_eq!(inside["plain"]["verdict"], "certified");
        assert!(inside["plain"]["radius"].as_f64().unwrap() < 0.1 * radius, "{inside}");
        let beyond = look(1.001 * broken);
        assert_eq!(beyond["plain"]["changed"], true, "{beyond}");
    }
}

#[test]
fn a_browser_sees_an_answer_that_holds_always_and_no_word_about_noise() {
    let Some(python) = browser("a_browser_sees_an_answer_that_holds_always_and_no_word_about_noise") else {
        return;
    };
    let sandbox = copies("");
    stranger(&sandbox);
    let service = serve(&sandbox, "--log off");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/open_plain_server.py");
    let screenshots = python.ancestors().nth(3).unwrap().join("browser/plain-server");
    let picture = sandbox.path("stranger.png");
    let opened =
        Command::new(&python).arg(script).arg(&service.url).args([picture, screenshots]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&opened.stdout), String::from_utf8_lossy(&opened.stderr));
    assert!(opened.status.success() && text.contains("ok: "), "{text}");
    println!("{text}");
}
