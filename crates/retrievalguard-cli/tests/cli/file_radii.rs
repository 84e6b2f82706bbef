//! Radii in the pixels of the file, from `certify` to every place where they are shown.

use serde_json::Value;

use crate::sandbox::{ENCODER, Sandbox};
use crate::serve_client::Service;

/// Pictures and their gallery, by an encoder that resamples so.
fn indexed(resampling: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let config = sandbox.text("model/encoder.toml");
    let more = format!("interpolation = \"bilinear\"\nresampling = \"{resampling}\"");
    sandbox.write("model/encoder.toml", config.replace("interpolation = \"bilinear\"", &more));
    sandbox.run(&format!("index pictures --gallery gallery {ENCODER}")).succeeds();
    sandbox
}

fn certified(sandbox: &Sandbox) -> Vec<Value> {
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --samples 300 --pilot 50 --out run --json");
    let rows = sandbox.run(&line).succeeds().json_lines();
    assert!(rows.iter().all(|row| row["file"]["scale"].as_f64().is_some()), "{rows:?}");
    rows.into_iter().filter(|row| row["certificates"]["half-space"]["verdict"] == "certified").collect()
}

#[test]
fn floating_point_makes_every_radius_one_of_the_file_and_all_who_show_it_agree() {
    let sandbox = indexed("float");
    let rows = certified(&sandbox);
    assert!(rows.len() > 10, "{} rows", rows.len());
    for row in &rows {
        let cell = &row["certificates"]["half-space"];
        let number = |value: &Value| value.as_f64().unwrap();
        let (scale, rounding) = (number(&row["file"]["scale"]), number(&row["file"]["rounding"]));
        // The sides of the pictures are 20 to 40 pixels, and 16 are left of the shorter.
        assert!(scale > 0.3 && scale < 0.9 && rounding < 1e-5, "{row}");
        let wanted = (number(&cell["radius"]) - rounding) / scale;
        let found = number(&cell["file_radius"]);
        assert!(found <= wanted && found > wanted * (1.0 - 1e-12), "{row}");
    }
    let row = &rows[0];
    let file_radius = &row["certificates"]["half-space"]["file_radius"];
    let explain = format!("explain {} --run run --engine rten", row["identity"].as_str().unwrap());
    assert_eq!(&sandbox.run(&format!("{explain} --json")).succeeds().json()["file_radius"], file_radius);
    sandbox.run(&explain).succeeds().prints(&["in the file   In the file's own pixels", "norm below"]);
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    assert!(page.contains("In the pixels of the file") && page.contains("the compressed file"));

    let picture = format!("pictures/{}", row["identity"].as_str().unwrap());
    let line = format!("query {picture} --gallery gallery {ENCODER} --samples 2000 --seed 1");
    let answer = sandbox.run(&format!("{line} --json")).succeeds().json();
    assert!(answer["file_radius"].as_f64() > answer["radius"].as_f64(), "{answer}");
    sandbox.run(&line).succeeds().prints(&["In the file's own pixels", "norm below"]);

    let service = Service::start(&sandbox, "");
    let answer = service.post("/v1/query?samples=600", &sandbox.bytes(&picture)).expect(200);
    assert!(answer["file_radius"].as_f64() > answer["radius"].as_f64(), "{answer}");
    assert!(answer["statement"].as_str().unwrap().contains("In the file's own pixels"), "{answer}");
}

#[test]
fn rounding_to_8_bits_uses_small_radii_up_and_it_is_said() {
    let sandbox = indexed("8-bit");
    let rows = certified(&sandbox);
    for row in &rows {
        let cell = &row["certificates"]["half-space"];
        assert!(row["file"]["rounding"].as_f64() > cell["radius"].as_f64(), "{row}");
        assert!(cell.get("file_radius").is_none(), "{row}");
    }
    let explain = format!("explain {} --run run --engine rten", rows[0]["identity"].as_str().unwrap());
    sandbox
        .run(&explain)
        .succeeds()
        .prints(&["in the file   In the file's own pixels nothing follows: rounding"]);
    sandbox.run("report run").succeeds();
    assert!(sandbox.text("run/report.html").contains("Here nothing is left: rounding to 8 bits"));
}
