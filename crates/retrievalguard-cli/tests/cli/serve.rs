//! `retrievalguard serve` as its clients meet it.

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use retrievalguard::storage::manifest::GalleryDirectory;
use serde_json::{Value, json};

use crate::report::browser;
use crate::sandbox::{PICTURES, Sandbox, write_png};
use crate::serve_client::{Reply, Service, agent, events, form, reply};

fn query_picture(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.bytes("pictures/class-1/3.png")
}

/// A picture of its own for every number.
fn numbered_picture(sandbox: &Sandbox, number: usize) -> Vec<u8> {
    let path = sandbox.path(&format!("numbered-{number}.png"));
    let pixels: Vec<u8> =
        (0..3 * 24 * 24).map(|place| ((place * (number % 97 + 1) + number * 31) % 251) as u8).collect();
    write_png(&path, 24, 24, &pixels);
    std::fs::read(path).unwrap()
}

fn metric(service: &Service, name: &str) -> f64 {
    let text = String::from_utf8(service.get("/metrics").body).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    assert!(line.is_some(), "no {name} in {text}");
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_answer_carries_items_a_verdict_and_what_it_was_made_from() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "");
    let picture = query_picture(&sandbox);
    let (kind, body) = form(&[("samples", "400"), ("top_k", "3")], &[&picture]);
    for reply in [
        service.post_as("/v1/query?samples=400&top_k=3", "image/png", &picture),
        service.post("/v1/query?samples=400&top_k=3", &picture),
        service.post_as("/v1/query", &kind, &body),
    ] {
        let id = reply.header("x-request-id").unwrap().to_owned();
        let answer = reply.expect(200);
        assert_eq!(answer["request_id"], id.as_str());
        assert_eq!(answer["candidate_label"], "class-1");
        assert_eq!((answer["samples"].as_u64(), answer["pilot"].as_u64()), (Some(400), Some(20)));
        assert_eq!((answer["sigma"].as_f64(), answer["alpha"].as_f64()), (Some(0.1), Some(0.01)));
        match answer["verdict"].as_str().unwrap() {
            "certified" => {
                assert_eq!(answer["label"], "class-1");
                assert!(answer["radius"].as_f64().unwrap() > 0.0 && answer["unbounded"] == false);
            }
            "abstained" => assert!(answer["label"].is_null() && answer["radius"].is_null()),
            other => assert_eq!(other, "certified"),
        }
        let items = answer["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        let distances: Vec<f64> = items.iter().map(|item| item["distance"].as_f64().unwrap()).collect();
        assert!(distances.is_sorted(), "{distances:?}");
        for hash in ["picture", "model", "contract", "gallery"] {
            assert_eq!(answer["hashes"][hash].as_str().unwrap().len(), 64, "{hash}");
        }
        assert!(answer["milliseconds"]["total"].as_f64().unwrap() > 0.0);
        let again = answer["asking_again"].as_str().unwrap();
        assert!(again.contains("a new attempt at 0.01"), "{again}");
    }
    // With a target radius it stops when that is decided.
    let answer = service.post("/v1/query?samples=5000&target_radius=0.0001", &picture).expect(200);
    assert!(["reached", "hopeless", "capped"].contains(&answer["decision"].as_str().unwrap()), "{answer}");
}

#[test]
fn every_retriever_answers_under_its_own_name_and_pairs_decide_by_tens() {
    let sandbox = Sandbox::indexed();
    let picture = query_picture(&sandbox);
    for (retriever, words) in [
        ("mean", "the nearest item"),
        ("vote", "win the vote"),
        ("pairwise", "coming before each other label"),
    ] {
        let service = Service::start(&sandbox, &format!("--retriever {retriever}"));
        let about = service.get("/v1/about").expect(200);
        assert_eq!(about["retriever"], retriever);
        assert!(about["largest_radius"].as_f64().unwrap() > 0.0);
        let answer = service.post("/v1/query?samples=600", &picture).expect(200);
        assert_eq!(
            (&answer["retriever"], &answer["label"]),
            (&json!(retriever), &json!("class-1")),
            "{answer}"
        );
        assert_eq!(answer["pilot"], if retriever == "pairwise" { 20 } else { 200 });
        assert!(answer["statement"].as_str().unwrap().contains(words), "{answer}");
        if retriever == "mean" {
            continue;
        }
        let decided = service.post("/v1/query?samples=600&target_radius=0.03", &picture).expect(200);
        assert_eq!(
            (&decided["decision"], &decided["radius"]),
            (&json!("reached"), &json!(0.03)),
            "{decided}"
        );
        assert!(decided["samples"].as_u64().unwrap() < 100, "{decided}");
        let few = service.post("/v1/query?samples=20&target_radius=0.1", &picture);
        let refused = few.expect(400).to_string();
        assert!(refused.contains("takes at least 38 samples"), "{refused}");
        // On the way to a target out of reach, smaller radii are shown.
        let events = service.stream("/v1/query?samples=600&target_radius=0.4", &picture);
        let (_, done) = events.last().unwrap();
        assert_eq!(done["decision"], "capped", "{done}");
        assert!(done["radius"].as_f64().unwrap() > 0.0, "{done}");
    }
}

#[test]
fn the_radii_of_a_stream_never_shrink_and_end_in_the_answer() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "");
    let events = service.stream("/v1/query?samples=2000", &query_picture(&sandbox));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.first(), Some(&"first"));
    assert_eq!(names.last(), Some(&"done"));
    let steps: Vec<&Value> =
        events.iter().filter(|(name, _)| name == "radius").map(|(_, step)| step).collect();
    assert!(steps.len() >= 4, "{names:?}");
    assert!(steps.iter().map(|step| step["samples"].as_u64().unwrap()).is_sorted());
    let radii: Vec<f64> = steps.iter().map(|step| step["radius"].as_f64().unwrap_or(0.0)).collect();
    assert!(radii.is_sorted(), "{radii:?}");
    let (first, done) = (&events[0].1, &events.last().unwrap().1);
    assert_eq!((&first["verdict"], &first["radius"]), (&Value::from("abstained"), &Value::Null));
    assert_eq!(done["radius"].as_f64().unwrap_or(0.0), radii[radii.len() - 1]);
    assert_eq!(done["samples"], 2000);
}

#[test]
fn an_added_item_has_the_vector_that_index_would_give_it() {
    let sandbox = Sandbox::indexed();
    let all = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    // The same gallery without one picture, which is then added by the service.
    let picture = query_picture(&sandbox);
    let identity =
        (0..PICTURES).map(|row| all.gallery.identity(row)).find(|name| name.contains("class-1/3")).unwrap();
    std::fs::remove_file(sandbox.path("pictures/class-1/3.png")).unwrap();
    std::fs::remove_dir_all(sandbox.path("gallery")).unwrap();
    sandbox.run(&format!("index pictures --gallery gallery {}", crate::sandbox::ENCODER)).succeeds();
    let service = Service::start(&sandbox, "");
    let (kind, body) = form(&[("label", "class-1"), ("identity", identity)], &[&picture]);
    let added = service.post_as("/v1/items", &kind, &body).expect(201);
    assert_eq!(added["identity"], identity);
    let shown = service.get(&format!("/v1/items/{}", identity.replace('/', "%2F"))).expect(200);
    assert_eq!((&shown["label"], &shown["added"]), (&Value::from("class-1"), &Value::from(true)));
    let drawn = service.get(&format!("/v1/items/{}/picture", identity.replace('/', "%2F")));
    assert!(drawn.header("content-type").unwrap().starts_with("image/"), "{}", drawn.status);

    // Every other command sees the same gallery, while the service runs.
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    assert_eq!(stored.gallery.len(), PICTURES);
    let row = stored.gallery.rows_of(identity)[0];
    assert_eq!(stored.gallery.vector(row), all.gallery.vector(all.gallery.rows_of(identity)[0]));

    let answer = service.post("/v1/query?samples=300", &picture).expect(200);
    let found: Vec<&str> =
        answer["items"].as_array().unwrap().iter().filter_map(|item| item["identity"].as_str()).collect();
    assert!(found.contains(&identity), "{found:?}");
    assert_eq!(answer["hashes"]["gallery"], added["gallery"]);
    let again = service.post_as("/v1/items", &kind, &body).expect(409);
    assert!(again["error"]["message"].as_str().unwrap().contains(identity), "{again}");
    let removed = service.delete(&format!("/v1/items/{}", identity.replace('/', "%2F"))).expect(200);
    assert_eq!(removed["removed"], 1);
    assert_ne!(removed["gallery"], added["gallery"]);
    service.delete(&format!("/v1/items/{}", identity.replace('/', "%2F"))).expect(404);
    assert_eq!(service.get("/v1/items?limit=200").expect(200)["total"], PICTURES - 1);
}

#[test]
fn of_a_thousand_writes_that_are_killed_halfway_every_acknowledged_one_is_there() {
    const WRITES: usize = 1_000;
    let sandbox = Sandbox::indexed();
    let pictures: Vec<Vec<u8>> = (0..WRITES).map(|number| numbered_picture(&sandbox, number)).collect();
    let service = Service::start(&sandbox, "--log off");
    let (url, acknowledged, next) = (service.url.clone(), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let agent = agent();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= WRITES {
                        return;
                    }
                    let address = format!("{url}/v1/items?label=added&identity=item-{number}");
                    let sent = agent.post(address).content_type("image/png").send(&pictures[number]);
                    // The service is gone in the middle of it.
                    let Ok(answer) = sent else { return };
                    assert_eq!(answer.status().as_u16(), 201);
                    acknowledged.lock().unwrap().push(number);
                }
            });
        }
        while acknowledged.lock().unwrap().len() < WRITES / 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        service.kill();
    });
    let (sent, acknowledged) = (next.into_inner().min(WRITES), acknowledged.into_inner().unwrap());
    assert!((WRITES / 2..WRITES).contains(&acknowledged.len()), "{} of {sent}", acknowledged.len());

    let service = Service::start(&sandbox, "--log off");
    let mut items: BTreeMap<String, Value> = BTreeMap::new();
    let total = service.get("/v1/items").expect(200)["total"].as_u64().unwrap();
    for offset in (0..total).step_by(200) {
        let page = service.get(&format!("/v1/items?limit=200&offset={offset}")).expect(200);
        for item in page["items"].as_array().unwrap() {
            items.insert(item["identity"].as_str().unwrap().to_owned(), item.clone());
        }
    }
    let missing: Vec<_> =
        acknowledged.iter().filter(|number| !items.contains_key(&format!("item-{number}"))).collect();
    assert!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    // Whatever else is there was sent, and is whole: a vector like its neighbours', and its own picture.
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    assert_eq!(stored.gallery.len() as u64, total);
    for (identity, item) in items.iter().filter(|(_, item)| item["added"] == true) {
        let number: usize = identity.strip_prefix("item-").unwrap().parse().unwrap();
        assert!(number < sent && item["label"] == "added", "{item}");
        let row = stored.gallery.rows_of(identity)[0];
        let path = stored.picture_path(row).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), pictures[number], "{identity}");
    }
    let added = total as usize - PICTURES;
    assert!(
        (acknowledged.len()..=sent).contains(&added),
        "{added} added, {} acknowledged",
        acknowledged.len()
    );
    // It goes on writing, to the same gallery.
    service.post("/v1/items?label=added&identity=afterwards", &pictures[0]).expect(201);
    println!("{} acknowledged of {sent} sent, {added} there afterwards", acknowledged.len());
}

#[test]
fn tokens_open_what_they_are_for_and_strangers_stay_outside() {
    let sandbox = Sandbox::indexed();
    let refused =
        "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0 --host 0.0.0.0";
    sandbox.run(refused).fails(2, &["0.0.0.0:0", "tokens"]);
    sandbox.write("tokens", "read aaaaaaaaaaaaaaaa\nwrite bbbbbbbbbbbbbbbb\n");
    let service = Service::start(&sandbox, "--host 0.0.0.0 --tokens tokens");
    let url = service.url.replace("0.0.0.0", "127.0.0.1");
    let with = |token: &str, path: &str| {
        let request = agent().get(format!("{url}{path}"));
        reply(
            if token.is_empty() {
                request
            } else {
                request.header("authorization", format!("Bearer {token}"))
            }
            .call(),
        )
    };
    for path in ["/v1/items", "/v1/labels", "/v1/jobs", "/metrics"] {
        let stranger = with("", path);
        assert_eq!(stranger.header("www-authenticate"), Some("Bearer"), "{path}");
        assert_eq!(stranger.expect(401)["error"]["code"], "unauthorised", "{path}");
        with("cccccccccccccccc", path).expect(401);
        assert_eq!(with("aaaaaaaaaaaaaaaa", path).status, 200, "{path}");
    }
    for path in ["/", "/healthz", "/readyz", "/openapi.json", "/v1/about"] {
        assert_eq!(with("", path).status, 200, "{path}");
    }
    let about = with("aaaaaaaaaaaaaaaa", "/v1/about").expect(200);
    assert_eq!((&about["may_read"], &about["may_write"]), (&Value::from(true), &Value::from(false)));
    let add = |token: &str| {
        let request = agent().post(format!("{url}/v1/items?label=new")).content_type("image/png");
        reply(request.header("authorization", format!("Bearer {token}")).send(&query_picture(&sandbox)))
    };
    assert_eq!(add("aaaaaaaaaaaaaaaa").expect(403)["error"]["code"], "read_only");
    add("bbbbbbbbbbbbbbbb").expect(201);
    drop(service);
    let log = sandbox.text("log.jsonl");
    assert!(!log.contains("aaaaaaaaaaaaaaaa") && !log.contains("bbbbbbbbbbbbbbbb"), "{log}");
    // Structured: every line is JSON, and every request has its id.
    let requests: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .filter(|line| line["message"] == "request")
        .collect();
    assert!(requests.len() >= 20, "{log}");
    assert!(requests.iter().all(|line| line["request_id"].as_str().is_some_and(|id| id.len() == 32)));
}

#[test]
fn what_is_too_much_or_no_picture_is_refused_with_its_reason() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--max-body 1 --max-megapixels 1 --max-samples 2000");
    let picture = query_picture(&sandbox);
    let large = sandbox.path("large.png");
    write_png(&large, 1200, 1200, &vec![7; 3 * 1200 * 1200]);
    let large = std::fs::read(large).unwrap();
    let refusals: Vec<(Reply, u16, &str)> = vec![
        (service.post("/v1/query", &vec![0; 2 << 20]), 413, "2097152"),
        (service.post("/v1/query", &large), 413, "1200 × 1200"),
        (service.post("/v1/query", b"GIF89a"), 415, "query"),
        (service.post("/v1/query", b""), 400, "no bytes"),
        (service.post("/v1/query", &picture[..picture.len() / 2]), 415, "query"),
        (service.post_as("/v1/query", "text/plain", &picture), 415, "text/plain"),
        (service.post_as("/v1/query", "multipart/form-data", &picture), 400, "boundary"),
        (service.post("/v1/query?samples=2001", &picture), 400, "2000"),
        (service.post("/v1/query?samples=-1", &picture), 400, "`-1`"),
        (service.post("/v1/query?target_radius=NaN", &picture), 400, "NaN"),
        (service.post("/v1/query?target_radius=1&target_radius=2", &picture), 400, "twice"),
        (service.post("/v1/query?sigma=1", &picture), 400, "`sigma`"),
        (service.post("/v1/query?top_k=0", &picture), 400, "top_k"),
        (service.post("/v1/items", &picture), 400, "label"),
        (service.post("/v1/items?label=%00", &picture), 400, "control"),
        (service.post("/v1/items?label=a&identity=..", &picture), 400, "`..`"),
        (service.get("/v1/items?limit=201"), 400, "200"),
        (service.get("/v1/items/nobody"), 404, "nobody"),
        (service.get("/v1/items/..%2F..%2F..%2Fetc%2Fpasswd/picture"), 404, "no item"),
        (service.get("/v1/items/%FF"), 400, "UTF-8"),
        (service.get("/v1/jobs/..%2F..%2Fmanifest.json"), 404, "no job"),
        (service.get("/../../etc/passwd"), 404, "nothing"),
        (service.get("/v1/perturbations/unknown?size=1"), 404, "unknown"),
        (service.post("/v1/perturbations?kind=odd", &picture), 400, "odd"),
        (service.post("/v1/perturbations?size=-1", &picture), 400, "-1"),
        (service.delete("/v1/query"), 405, "DELETE"),
    ];
    for (reply, status, word) in refusals {
        let answer = reply.expect(status);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{status}: `{word}` is not in `{message}`");
        assert_eq!(answer["error"]["request_id"].as_str().unwrap().len(), 32);
    }
    // Pages of other origins cannot use a service that asks for no token.
    let rebound = agent().get(format!("{}/v1/about", service.url)).header("host", "rebound.example").call();
    assert_eq!(reply(rebound).expect(403)["error"]["code"], "foreign_origin");
    let foreign =
        agent().delete(format!("{}/v1/items/x", service.url)).header("origin", "http://evil.example").call();
    reply(foreign).expect(403);
    service.post("/v1/query?samples=100", &picture).expect(200);
}

#[test]
fn a_full_house_sends_clients_away_with_a_time_to_come_back() {
    let sandbox = Sandbox::indexed();
    let service =
        Service::start(&sandbox, "--queue 2 --per-client 2 --max-samples 1000000 --max-seconds 600");
    let picture = query_picture(&sandbox);
    let other = Sandbox::indexed();
    let limited = Service::start_line(
        &other,
        "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0 --per-client 1 --max-samples 1000000 --max-seconds 600",
    );
    for (service, status, places) in [(&service, 503, 2), (&limited, 429, 1)] {
        std::thread::scope(|scope| {
            let long: Vec<_> = (0..places).map(|_| hold(service, &picture)).collect();
            service.wait_for("both are inside", |service| {
                metric(service, "retrievalguard_requests_inside") as usize == places
            });
            scope
                .spawn(|| {
                    let refused = service.post("/v1/query?samples=100", &picture);
                    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
                    assert!((1..=600).contains(&seconds), "{seconds}");
                    refused.expect(status);
                    // Looking costs no passes and is answered all the same.
                    service.get("/v1/items").expect(200);
                })
                .join()
                .unwrap();
            drop(long);
        });
        // A client that disconnects frees its place and its work.
        service.wait_for("the places are free", |service| {
            metric(service, "retrievalguard_requests_inside") == 0.0
                && metric(service, "retrievalguard_encoder_backlog") == 0.0
        });
        service.post("/v1/query?samples=100", &picture).expect(200);
    }
}

/// A connection on which a long query is being answered.
fn hold(service: &Service, picture: &[u8]) -> TcpStream {
    let address = service.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/query?samples=300000 HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        picture.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(picture).unwrap();
    stream
}

#[test]
fn a_cheap_query_is_answered_while_an_expensive_one_runs() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--max-samples 1000000 --max-seconds 600");
    let picture = query_picture(&sandbox);
    let long = hold(&service, &picture);
    service.wait_for("the long one is running", |service| {
        metric(service, "retrievalguard_encoder_backlog") > 1e5
    });
    for _ in 0..3 {
        service.post("/v1/query?samples=300", &picture).expect(200);
    }
    assert!(metric(&service, "retrievalguard_encoder_backlog") > 1e4, "the long one is still there");
    drop(long);
}

#[test]
fn a_query_that_takes_too_long_is_ended() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--max-samples 10000000 --max-seconds 1");
    let picture = query_picture(&sandbox);
    let answer = service.post("/v1/query?samples=10000000", &picture);
    assert!(answer.header("retry-after").is_some());
    let message = answer.expect(503)["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("1 s"), "{message}");
    service.wait_for("the place is free", |service| metric(service, "retrievalguard_requests_inside") == 0.0);
    let events = service.stream("/v1/query?samples=10000000", &picture);
    let (name, error) = events.last().unwrap();
    assert_eq!(name, "error");
    assert!(error["error"]["message"].as_str().unwrap().contains("1 s"), "{error}");
    service.wait_for("the work is gone", |service| metric(service, "retrievalguard_encoder_backlog") == 0.0);
}

#[cfg(unix)]
#[test]
fn an_orderly_end_answers_what_was_asked_and_takes_nothing_new() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--max-samples 100000");
    let (url, picture) = (service.url.clone(), query_picture(&sandbox));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let request = agent().post(format!("{url}/v1/query?samples=20000")).content_type("image/png");
            reply(request.send(&picture))
        });
        service.wait_for("the query is inside", |service| {
            metric(service, "retrievalguard_requests_inside") == 1.0
        });
        assert_eq!(service.terminate(), Some(0));
        asked.join().unwrap().expect(200);
        assert!(agent().get(format!("{url}/healthz")).call().is_err(), "nobody listens any more");
    });
    // The gallery's lock is free again.
    Service::start(&sandbox, "").get("/readyz").expect(200);
}

#[cfg(unix)]
#[test]
fn an_end_is_heard_while_all_connections_are_taken() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(
        &sandbox,
        "--connections 3 --connections-per-client 3 --grace 2 --max-job-samples 10000000",
    );
    let job = service.post("/v1/jobs?samples=10000000", &query_picture(&sandbox)).expect(202);
    let address = service.url.strip_prefix("http://").unwrap().to_owned();
    let mut watchers: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let id = job["id"].as_str().unwrap();
            let head = format!("GET /v1/jobs/{id}/events HTTP/1.1\r\nhost: {address}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // The client that posted the job keeps one connection, and two watchers have the others once they hear of the job.
    for watcher in &mut watchers[..2] {
        watcher.read_exact(&mut [0; 12]).unwrap();
    }
    let started = Instant::now();
    assert_eq!(service.terminate(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    drop(watchers);
}

#[test]
fn what_is_found_among_the_jobs_is_never_thrown_away() {
    let sandbox = Sandbox::indexed();
    // A folder that only looks like a job's, and one of a job that was never accepted.
    let (foreign, unfinished) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
    sandbox.write(&format!("gallery/jobs/{foreign}/thesis.txt"), "years of work");
    sandbox.write(&format!("gallery/jobs/{unfinished}/picture-0"), "half a picture");
    let service = Service::start(&sandbox, "--log off");
    let job = service.post("/v1/jobs?samples=100000", &query_picture(&sandbox)).expect(202);
    service.kill();
    assert_eq!(sandbox.text(&format!("gallery/jobs/{foreign}/thesis.txt")), "years of work");
    assert!(!sandbox.path(&format!("gallery/jobs/{unfinished}")).exists());
    // An accepted job that cannot be read is shown as it is, and stays.
    let id = job["id"].as_str().unwrap();
    let request = format!("gallery/jobs/{id}/request.json");
    sandbox.write(&request, "{");
    let service = Service::start(&sandbox, "--max-job-samples 1000");
    let listed = service.get("/v1/jobs").expect(200);
    let (state, reason) = (&listed["jobs"][0]["state"], listed["jobs"][0]["error"].as_str().unwrap());
    assert!(state == "damaged" && reason.contains("request.json"), "{listed}");
    let shown = service.get(&format!("/v1/jobs/{id}")).expect(200);
    assert_eq!((&shown["state"], shown["error"].as_str()), (state, Some(reason)));
    let watched = events(&service.get(&format!("/v1/jobs/{id}/events")));
    assert_eq!(watched.last().unwrap().1["state"], "damaged");
    let refused = service.delete(&format!("/v1/jobs/{id}")).expect(409);
    assert!(refused["error"]["message"].as_str().unwrap().contains("damaged"), "{refused}");
    // The others go on, and it is in nobody's way.
    let other = service.post("/v1/jobs?samples=100", &query_picture(&sandbox)).expect(202);
    let place = format!("/v1/jobs/{}", other["id"].as_str().unwrap());
    service.wait_for("the other job", |service| service.get(&place).expect(200)["state"] == "finished");
    drop(service);
    assert_eq!(sandbox.text(&request), "{");
    assert!(sandbox.text("log.jsonl").contains("a job is damaged"));
}

#[test]
fn what_was_changed_in_the_folder_of_a_job_is_not_answered() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let picture = query_picture(&sandbox);
    let ids: Vec<String> = (0..2)
        .map(|_| {
            service.post("/v1/jobs?samples=200", &picture).expect(202)["id"].as_str().unwrap().to_owned()
        })
        .collect();
    for id in &ids {
        let place = format!("/v1/jobs/{id}");
        service.wait_for("the job", |service| service.get(&place).expect(200)["state"] == "finished");
    }
    service.kill();
    // A larger radius in an answer, and another picture in a job that is to be done again.
    let answer = format!("gallery/jobs/{}/answer-0.json", ids[0]);
    let changed = sandbox.text(&answer).replacen("\"samples\":200", "\"samples\":900", 1);
    assert_ne!(changed, sandbox.text(&answer));
    sandbox.write(&answer, changed);
    std::fs::remove_file(sandbox.path(&format!("gallery/jobs/{}/answer-0.json", ids[1]))).unwrap();
    sandbox.write(&format!("gallery/jobs/{}/picture-0", ids[1]), sandbox.bytes("pictures/class-2/1.png"));
    let service = Service::start(&sandbox, "--log off");
    let shown = service.get(&format!("/v1/jobs/{}", ids[0])).expect(200);
    assert_eq!(shown["state"], "damaged");
    assert!(shown["error"].as_str().unwrap().contains("answer-0.json was changed"), "{shown}");
    let place = format!("/v1/jobs/{}", ids[1]);
    service.wait_for("the other job", |service| service.get(&place).expect(200)["state"] == "failed");
    let shown = service.get(&place).expect(200);
    assert!(shown["error"].as_str().unwrap().contains("not the picture that was sent"), "{shown}");
}

#[test]
fn what_strangers_invent_is_not_remembered() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let address = service.url.strip_prefix("http://").unwrap();
    for number in 0..40 {
        let mut stream = TcpStream::connect(address).unwrap();
        let method = format!("M{number}{}", "A".repeat(5_000));
        let head = format!("{method} /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 405") && answer.len() < 1_000, "{answer}");
    }
    let metrics = service.get("/metrics").body;
    assert!(metrics.len() < 20_000, "{} bytes", metrics.len());
    assert!(String::from_utf8(metrics).unwrap().contains("method=\"other\""));
}

#[test]
fn a_body_that_is_refused_is_heard_out() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let body = vec![b'0'; 6 << 20];
    service.post_as("/v1/query", "text/plain", &body).expect(415);
    service.post("/v1/query?colour=red", &body).expect(400);
    let (kind, body) = form(&[("colour", "red")], &[&body]);
    service.post_as("/v1/query", &kind, &body).expect(400);
}

#[test]
fn two_services_do_not_write_to_one_gallery() {
    let sandbox = Sandbox::indexed();
    let _service = Service::start(&sandbox, "");
    let line = "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0";
    sandbox.run(line).fails(1, &["writes.journal"]);
}

#[test]
fn an_accepted_job_outlives_its_service() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let (first, second) = (query_picture(&sandbox), sandbox.bytes("pictures/class-4/0.png"));
    let (kind, body) = form(&[("samples", "60000"), ("top_k", "2")], &[&first, &second]);
    let reply = service.post_as("/v1/jobs", &kind, &body);
    let place = reply.header("location").unwrap().to_owned();
    let id = reply.expect(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(place, format!("/v1/jobs/{id}"));
    service.wait_for("the job is running", |service| {
        service.get(&place).expect(200)["samples_drawn"].as_u64().unwrap() > 0
    });
    service.kill();

    let service = Service::start(&sandbox, "--log off");
    let progress = events(&service.get(&format!("{place}/events")));
    assert_eq!(progress.first().unwrap().0, "progress");
    let (name, job) = progress.last().unwrap();
    assert_eq!((name.as_str(), job["state"].as_str().unwrap()), ("done", "finished"));
    assert_eq!(job["answers"].as_array().unwrap().len(), 2);
    assert_eq!(job["answers"][0]["candidate_label"], "class-1");
    assert_eq!(job["answers"][1]["candidate_label"], "class-4");
    assert_eq!(job["answers"][1]["items"].as_array().unwrap().len(), 2);
    let shown = service.get(&place).expect(200);
    assert_eq!(shown["answers"], job["answers"]);
    assert_eq!(service.get("/v1/jobs").expect(200)["jobs"][0]["done"], 2);
    // What is kept of it is nobody else's business: it has the seed.
    assert!(!shown.to_string().contains("seed"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(sandbox.path("gallery/jobs").join(&id)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
    service.delete(&place).expect(204);
    service.get(&place).expect(404);

    // One that is called off stays called off, also after a restart.
    let long = service.post("/v1/jobs?samples=100000", &first).expect(202);
    let place = format!("/v1/jobs/{}", long["id"].as_str().unwrap());
    service.delete(&place).expect(204);
    assert_eq!(service.get(&place).expect(200)["state"], "cancelled");
    service.kill();
    let service = Service::start(&sandbox, "--log off");
    assert_eq!(service.get(&place).expect(200)["state"], "cancelled");
    service.post("/v1/jobs", b"no picture").expect(415);
}

#[test]
fn a_job_that_goes_on_against_another_gallery_draws_other_noise() {
    let sandbox = Sandbox::indexed();
    let picture = query_picture(&sandbox);
    let mut service = Service::start(&sandbox, "--log off");
    let job = service.post("/v1/jobs?samples=400&top_k=3", &picture).expect(202);
    let id = job["id"].as_str().unwrap().to_owned();
    let finished = |service: &Service| {
        let place = format!("/v1/jobs/{id}");
        service.wait_for("the job is finished", |service| {
            service.get(&place).expect(200)["state"] == "finished"
        });
        service.get(&place).expect(200)["answers"][0].clone()
    };
    // As if the service had been killed after it had shown radii and before the answer was written.
    let again = |service: Service, flags: &str| {
        service.kill();
        std::fs::remove_file(sandbox.path("gallery/jobs").join(&id).join("answer-0.json")).unwrap();
        Service::start(&sandbox, flags)
    };
    let distances = |answer: &Value| {
        let items = answer["items"].as_array().unwrap().iter();
        let distance = |item: &Value| (item["identity"].clone(), item["distance"].as_f64().unwrap());
        items.map(distance).collect::<Vec<_>>()
    };
    // An item far away leaves the distances to the nearest ones as they are; only other noise moves them.
    let moved = |left: &Value, right: &Value| {
        let right = distances(right);
        let left = distances(left);
        let both = left.iter().filter_map(|(name, distance)| {
            right.iter().find(|(other, _)| other == name).map(|(_, other)| other != distance)
        });
        let both: Vec<bool> = both.collect();
        !both.is_empty() && both.into_iter().all(|differs| differs)
    };
    let first = finished(&service);
    service = again(service, "--log off");
    let second = finished(&service);
    assert_eq!((&second["radius"], distances(&second)), (&first["radius"], distances(&first)));

    let far = sandbox.bytes("pictures/class-4/0.png");
    let (kind, body) = form(&[("label", "class-4"), ("identity", "another")], &[&far]);
    service.post_as("/v1/items", &kind, &body).expect(201);
    service = again(service, "--log off");
    let third = finished(&service);
    assert!(moved(&third, &first), "the noise of a published radius was used again: {third} {first}");
    assert_ne!(third["hashes"]["gallery"], first["hashes"]["gallery"]);
    // Another guarantee is another statement, too.
    service = again(service, "--log off --alpha 0.05");
    let fourth = finished(&service);
    assert!(moved(&fourth, &third), "{fourth} {third}");
    // So is another retriever, with the same pilot.
    service = again(service, "--log off --alpha 0.05 --retriever vote --pilot 20");
    let fifth = finished(&service);
    assert!(moved(&fifth, &fourth), "{fifth} {fourth}");
    assert_eq!((&fifth["retriever"], &fourth["retriever"]), (&json!("vote"), &json!("pairwise")));
}

#[test]
fn along_a_perturbation_both_retrievers_can_be_looked_at() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "");
    let picture = query_picture(&sandbox);
    assert_eq!(service.get("/v1/about").expect(200)["plain"], "own");
    let noise = service.post("/v1/perturbations?kind=noise", &picture).expect(201);
    let found = service.post("/v1/perturbations?kind=adversarial&size=3", &picture).expect(201);
    for made in [&noise, &found] {
        assert_eq!(made["label"], "class-1");
        let id = made["id"].as_str().unwrap();
        let still = service.get(&format!("/v1/perturbations/{id}?size=0&samples=100")).expect(200);
        assert_eq!((&still["plain"]["changed"], &still["norm"]), (&Value::from(false), &Value::from(0.0)));
        assert_eq!(still["smoothed"]["changed"], false);
        let shown = service.get(&format!("/v1/perturbations/{id}/picture?size=0.5"));
        assert_eq!(shown.header("content-type"), Some("image/png"));
    }
    if let Some(broken_at) = found["broken_at"].as_f64() {
        let id = found["id"].as_str().unwrap();
        let beyond = service.get(&format!("/v1/perturbations/{id}?size={}", broken_at * 1.01)).expect(200);
        assert_eq!(beyond["plain"]["changed"], true, "{beyond}");
    }
    let progress = service.stream("/v1/perturbations?kind=adversarial", &picture);
    assert_eq!(progress.last().unwrap().0, "done");
    assert!(noise["statement"].is_null() && noise["searched"].is_null(), "{noise}");
    assert_eq!(found["searched"]["mode"], "white-box");
}

#[test]
fn a_radius_is_shown_on_the_picture_that_was_asked_about() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "");
    let picture = query_picture(&sandbox);
    let seen = service.post("/v1/visible-radius?radius=0.25", &picture).expect(200);
    let values = seen["values"].as_u64().unwrap();
    let each = 0.25 / (values as f64).sqrt();
    assert!((seen["l_infinity"].as_f64().unwrap() - each).abs() < 1e-9, "{seen}");
    assert!((seen["grey_levels"].as_f64().unwrap() - 255.0 * each).abs() < 1e-6, "{seen}");
    let words = seen["words"].as_str().unwrap();
    for part in ["l2 radius 0.2500", "of 255 grey levels on each", "l∞ 0."] {
        assert!(words.contains(part), "{words}");
    }
    let shown: HashSet<&str> =
        ["original", "changed", "change"].into_iter().map(|name| seen[name].as_str().unwrap()).collect();
    assert!(
        shown.len() == 3 && shown.iter().all(|shown| shown.starts_with("data:image/png;base64,")),
        "{seen}"
    );
    assert!(seen["times"].as_u64().unwrap() > 1, "{seen}");
    for (address, said) in [
        ("/v1/visible-radius", "`radius` is missing"),
        ("/v1/visible-radius?radius=-1", "-1"),
        ("/v1/visible-radius?radius=1e9", "from 0 to 1000"),
        ("/v1/visible-radius?size=1", "size"),
    ] {
        let refused = service.post(address, &picture).expect(400);
        assert!(refused["error"]["message"].as_str().unwrap().contains(said), "{address}: {refused}");
    }
    service.post("/v1/visible-radius?radius=1", b"no picture").expect(415);
}

#[test]
fn a_search_ends_in_its_time_and_says_how_little_that_proves() {
    for (flag, shows) in [
        ("", ["found nothing", "no proof", "followed the encoder's gradients"]),
        ("--black-box", ["found nothing", "proves little", "only the encoder's outputs"]),
    ] {
        let sandbox = Sandbox::indexed();
        let line = format!("--max-seconds 60 --max-search-seconds 3 --pilot 100 {flag}");
        let service = Service::start(&sandbox, &line);
        let picture = query_picture(&sandbox);
        // Others keep the encoder busy: the search gets a fraction of its passes.
        let busy = service.post("/v1/jobs?samples=100000", &picture).expect(202);
        for against in ["plain", "smoothed"] {
            // So small that there is nothing to be found.
            let address = format!("/v1/perturbations?kind=adversarial&against={against}&size=0.000001");
            let events = service.stream(&address, &picture);
            let (name, made) = events.last().unwrap();
            assert_eq!(name, "done", "{made}");
            assert!(made["broken_at"].is_null(), "{made}");
            let statement = made["statement"].as_str().unwrap();
            for words in shows.into_iter().chain([against]) {
                assert!(statement.contains(words), "`{words}` is not in `{statement}`");
            }
            let searched = &made["searched"];
            assert!(
                searched["passes"].as_u64().unwrap() > 0 && searched["whole_passes"].as_u64().unwrap() > 0
            );
            let (_, progress) = events.iter().find(|(name, _)| name == "progress").unwrap();
            assert!(progress["most_seconds"].as_f64().unwrap() <= 3.0, "{progress}");
        }
        service.post("/v1/perturbations?kind=adversarial&seconds=9", &picture).expect(400);
        service.post("/v1/perturbations?kind=adversarial&seconds=1&size=1", &picture).expect(201);
        service.delete(&format!("/v1/jobs/{}", busy["id"].as_str().unwrap())).expect(204);
    }
}

#[test]
fn the_openapi_document_names_every_address() {
    let sandbox = Sandbox::new();
    let document = sandbox.run("openapi").succeeds().json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let paths: HashSet<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = HashSet::from([
        "/v1/about",
        "/v1/query",
        "/v1/visible-radius",
        "/v1/items",
        "/v1/items/{identity}",
        "/v1/items/{identity}/picture",
        "/v1/labels",
        "/v1/reload",
        "/v1/jobs",
        "/v1/jobs/{id}",
        "/v1/jobs/{id}/events",
        "/v1/perturbations",
        "/v1/perturbations/{id}",
        "/v1/perturbations/{id}/picture",
        "/healthz",
        "/readyz",
        "/metrics",
    ]);
    assert_eq!(paths, wanted);
}

/// The interpreter of `target/venv`; `None` where that may be missing and is.
pub(crate) fn python(test: &str) -> Option<std::path::PathBuf> {
    let executable = std::env::current_exe().unwrap();
    let found =
        executable.ancestors().map(|folder| folder.join("venv/bin/python")).find(|python| python.exists());
    if found.is_none() {
        let required = std::env::var("RETRIEVALGUARD_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "{test}: there is no target/venv, and RETRIEVALGUARD_REQUIRE_PYTHON is 1");
        let line = format!("skipped: {test}: there is no target/venv (1 test not run)\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}

#[test]
fn schemathesis_finds_no_server_error_and_nothing_undocumented() {
    const CHECKS: [&str; 5] = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ];
    let Some(python) = python("schemathesis_finds_no_server_error_and_nothing_undocumented") else { return };
    let sandbox = Sandbox::indexed();
    let flags = "--log off --pilot 20 --samples 20 --max-samples 200 --max-job-samples 200";
    let service = Service::start(&sandbox, flags);
    // In the sandbox, because it leaves files where it runs.
    let output = Command::new(python)
        .current_dir(sandbox.path("."))
        .args(["-m", "schemathesis.cli", "run", &format!("{}/openapi.json", service.url)])
        .args(["--exclude-path-regex", "/events$", "--max-examples", "25", "--seed", "1"])
        .args(["--request-timeout", "60", "--no-color", "--checks", &CHECKS.join(",")])
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    service.get("/healthz").expect(200);
}

#[test]
fn a_browser_drops_a_picture_and_tries_to_change_the_retrievers_mind() {
    let Some(python) = browser("a_browser_drops_a_picture_and_tries_to_change_the_retrievers_mind") else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.run("demo --out demo --queries 12 --samples 1000 --engine rten").succeeds();
    // Of the demo's own run, the query with the largest radius inside which the plain retriever can be misled.
    let table = crate::sandbox::json_lines(&sandbox.text("demo/certificates/certificates.jsonl"));
    let radius = |row: &Value| row["certificates"]["half-space"]["radius"].as_f64().unwrap_or(0.0);
    let mut table: Vec<&Value> = table.iter().collect();
    table.sort_by(|left, right| radius(right).total_cmp(&radius(left)));
    let file = |row: &Value| sandbox.path("demo/pictures/queries").join(row["identity"].as_str().unwrap());
    let service = Service::start_line(
        &sandbox,
        "serve --gallery demo/gallery --model demo/encoder.onnx --engine rten --port 0 --log off",
    );
    assert_eq!(service.get("/v1/about").expect(200)["plain"], "own");
    let misled = |row: &&&Value| {
        let address = format!("/v1/perturbations?kind=adversarial&size={}", 0.9 * radius(row));
        let made = service.post(&address, &std::fs::read(file(row)).unwrap()).expect(201);
        made["label"] == row["label"] && made["broken_at"].as_f64().is_some_and(|size| size > 0.0)
    };
    let picture =
        file(table.iter().find(misled).expect("the plain retriever can be misled inside some radius"));
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/open_server.py");
    let screenshots = python.ancestors().nth(3).unwrap().join("browser/server");
    let opened =
        Command::new(&python).arg(script).arg(&service.url).args([picture, screenshots]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&opened.stdout), String::from_utf8_lossy(&opened.stderr));
    assert!(opened.status.success() && text.contains("ok: "), "{text}");
    println!("{text}");
}
