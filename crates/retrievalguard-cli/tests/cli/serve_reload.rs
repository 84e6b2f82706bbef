//! Another gallery without a restart: by request, by SIGHUP, under load, and when it must not be taken.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use retrievalguard::storage::live::LiveGallery;
use retrievalguard::storage::manifest::GalleryDirectory;
use serde_json::{Value, json};

use crate::sandbox::{ENCODER, PICTURES, Sandbox};
use crate::serve_client::{Reply, Service, agent, form, reply};

pub(crate) const MODEL: &str = "--model model/convolutional.onnx --engine rten --port 0";

pub(crate) fn picture(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.bytes("pictures/class-1/3.png")
}

/// Serves `served`, a link to `gallery`.
pub(crate) fn serve_link(sandbox: &Sandbox, flags: &str) -> Service {
    lead(sandbox, "gallery");
    Service::start_line(sandbox, &format!("serve --gallery served {MODEL} {flags}"))
}

/// Lets the link `served` lead to another gallery, in one step.
pub(crate) fn lead(sandbox: &Sandbox, gallery: &str) {
    let aside = sandbox.path("aside");
    std::os::unix::fs::symlink(sandbox.path(gallery), &aside).unwrap();
    fs::rename(aside, sandbox.path("served")).unwrap();
}

pub(crate) fn index(sandbox: &Sandbox, gallery: &str, flags: &str) {
    sandbox.run(&format!("index pictures --gallery {gallery} {ENCODER} {flags}")).succeeds();
}

pub(crate) fn version(sandbox: &Sandbox, gallery: &str) -> String {
    GalleryDirectory::read(&sandbox.path(gallery)).unwrap().version().to_string()
}

pub(crate) fn served(service: &Service) -> String {
    service.get("/v1/about").expect(200)["gallery"]["version"].as_str().unwrap().to_owned()
}

pub(crate) fn reload(service: &Service) -> Reply {
    service.post("/v1/reload", b"")
}

/// The reload is refused with these words, and everything is as before.
#[track_caller]
pub(crate) fn stays(service: &Service, words: &[&str]) {
    let before = served(service);
    let refused = reload(service).expect(409);
    assert_eq!(refused["error"]["code"], "not_reloaded", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    for word in std::iter::once(&"the gallery stays as it was").chain(words) {
        assert!(message.contains(word), "`{word}` is missing: {message}");
    }
    assert_eq!(served(service), before, "{message}");
}

fn signal(service: &Service, name: &str) {
    let status = Command::new("kill").args([name, &service.child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

pub(crate) fn add(service: &Service, identity: &str, label: &str, picture: &[u8]) -> Reply {
    let (kind, body) = form(&[("label", label), ("identity", identity)], &[picture]);
    service.post_as("/v1/items", &kind, &body)
}

pub(crate) fn copy(sandbox: &Sandbox, from: &str, to: &str) {
    let (from, to) = (sandbox.path(from), sandbox.path(to));
    fs::create_dir_all(&to).unwrap();
    for name in ["manifest.json", "vectors.npy", "plain.npy", "items.jsonl"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn under_load_no_request_fails_while_the_gallery_is_exchanged() {
    const CLIENTS: usize = 4;
    let sandbox = Sandbox::indexed();
    index(&sandbox, "other", "--seed 1 --samples 40");
    let versions = ["gallery", "other"].map(|name| version(&sandbox, name));
    assert_ne!(versions[0], versions[1]);
    let service = serve_link(&sandbox, "--jobs jobs");
    let (picture, over) = (picture(&sandbox), AtomicBool::new(false));
    let (answers, begun) = (Mutex::new(Vec::<(u16, Value)>::new()), Barrier::new(CLIENTS + 1));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let (agent, mut own) = (agent(), Vec::new());
                let address = format!("{}/v1/query?samples=100", service.url);
                while !over.load(Ordering::SeqCst) {
                    let answer = reply(agent.post(&address).content_type("image/png").send(&picture));
                    own.push((answer.status, answer.json()));
                    if own.len() == 1 {
                        begun.wait();
                    }
                }
                answers.lock().unwrap().append(&mut own);
            });
        }
        begun.wait();
        for round in 0..10 {
            let (name, wanted) = [("other", &versions[1]), ("gallery", &versions[0])][round % 2];
            lead(&sandbox, name);
            let reloaded = reload(&service).expect(200);
            assert_eq!(
                (&reloaded["gallery"], &reloaded["changed"]),
                (&json!(wanted), &json!(true)),
                "{reloaded}"
            );
            assert_eq!(
                (&reloaded["items"], &reloaded["before"]),
                (&json!(PICTURES), &json!(versions[round % 2]))
            );
            // Whoever asks after it is answered by it.
            let after = service.post("/v1/query?samples=50", &picture).expect(200);
            assert_eq!(after["hashes"]["gallery"], json!(wanted));
        }
        over.store(true, Ordering::SeqCst);
    });
    let answers = answers.into_inner().unwrap();
    let failed: Vec<_> = answers.iter().filter(|(status, _)| *status != 200).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let seen: HashSet<&str> =
        answers.iter().map(|(_, answer)| answer["hashes"]["gallery"].as_str().unwrap()).collect();
    assert_eq!(seen, versions.iter().map(String::as_str).collect());
    let metrics = String::from_utf8(service.get("/metrics").body).unwrap();
    assert!(metrics.contains("retrievalguard_gallery_reloads_total{outcome=\"taken\"} 10"), "{metrics}");
    println!("{} answers during 10 reloads, none failed", answers.len());
}

#[test]
fn a_query_that_is_running_ends_with_the_gallery_with_which_it_began() {
    let sandbox = Sandbox::indexed();
    index(&sandbox, "other", "--seed 1");
    let versions = ["gallery", "other"].map(|name| version(&sandbox, name));
    let service = serve_link(&sandbox, "--max-samples 100000 --max-seconds 300");
    let picture = picture(&sandbox);
    let request = agent().post(format!("{}/v1/query?samples=40000", service.url)).content_type("image/png");
    let mut running = request.header("accept", "text/event-stream").send(&picture).unwrap();
    let mut lines = BufReader::new(running.body_mut().as_reader()).lines().map(Result::unwrap);
    // The gallery of the next event of this name.
    let mut gallery_of = |name: &str| {
        let head = format!("event: {name}");
        assert!(lines.any(|line| line == head), "no event `{name}`");
        let event: Value =
            serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        event["hashes"]["gallery"].as_str().unwrap().to_owned()
    };
    assert_eq!(gallery_of("first"), versions[0]);
    lead(&sandbox, "other");
    reload(&service).expect(200);
    let after = service.post("/v1/query?samples=50", &picture).expect(200);
    assert_eq!(after["hashes"]["gallery"], json!(versions[1]));
    let metrics = String::from_utf8(service.get("/metrics").body).unwrap();
    assert!(metrics.contains("retrievalguard_requests_inside 1"), "the query is over: {metrics}");
    assert_eq!(gallery_of("done"), versions[0]);
}

#[test]
fn a_gallery_that_does_not_fit_is_refused_by_name_and_the_old_one_stays() {
    let sandbox = Sandbox::indexed();
    let service = serve_link(&sandbox, "");
    let (picture, before) = (picture(&sandbox), served(&service));
    let encoder = "--model model/convolutional.onnx --engine rten";
    sandbox.run(&format!("index pictures --gallery sigma {encoder} --sigma 0.2")).succeeds();
    sandbox.run(&format!("index pictures --gallery clean {encoder} --sigma 0.1 --samples 0")).succeeds();
    index(&sandbox, "cosine", "--cosine");
    sandbox.add_model("fixed_batch.onnx");
    sandbox
        .run("index pictures --gallery model --model model/fixed_batch.onnx --engine rten --sigma 0.1")
        .succeeds();
    sandbox.run("copy-encoder --out copies").succeeds();
    sandbox.run("index pictures --gallery plain --model copies/encoder.onnx").succeeds();
    sandbox.run(&format!("index pictures --gallery shards {ENCODER} --shards 2")).succeeds();
    for name in ["vectors.npy", "plain.npy", "items.jsonl", "manifest.json"] {
        let gallery = format!("damaged-{name}");
        copy(&sandbox, "gallery", &gallery);
        damage(&sandbox.path(&gallery).join(name));
        lead(&sandbox, &gallery);
        stays(&service, &[name]);
    }
    fs::create_dir(sandbox.path("empty")).unwrap();
    // Somebody else writes to it.
    index(&sandbox, "taken", "--seed 1");
    let _taken = LiveGallery::open(&sandbox.path("taken")).unwrap();
    let cases: [(&str, &[&str]); 9] = [
        ("sigma", &["sigma 0.2", "0.1"]),
        ("clean", &["clean pictures", "noisy copies"]),
        ("cosine", &["metric", "cosine", "euclidean"]),
        ("model", &["embedded by model"]),
        ("plain", &["dimension"]),
        ("shards", &["shards"]),
        ("empty", &["manifest.json"]),
        ("nowhere", &["manifest.json"]),
        ("taken", &["writes.journal", "in use"]),
    ];
    for (gallery, words) in cases {
        lead(&sandbox, gallery);
        stays(&service, words);
    }
    let answer = service.post("/v1/query?samples=50", &picture).expect(200);
    assert_eq!(answer["hashes"]["gallery"], json!(before));
    add(&service, "after", "class-1", &picture).expect(201);
    let metrics = String::from_utf8(service.get("/metrics").body).unwrap();
    assert!(metrics.contains("retrievalguard_gallery_reloads_total{outcome=\"refused\"} 13"), "{metrics}");
    // The log names each of them.
    let log = sandbox.text("log.jsonl");
    assert_eq!(log.lines().filter(|line| line.contains("\"outcome\":\"refused\"")).count(), 13, "{log}");
}

#[test]
fn files_that_were_changed_in_place_are_read_again_and_half_of_them_are_refused() {
    let sandbox = Sandbox::indexed();
    index(&sandbox, "other", "--seed 1 --limit 20");
    copy(&sandbox, "gallery", "first");
    let service = Service::start_line(&sandbox, &format!("serve --gallery gallery {MODEL} --jobs jobs"));
    let picture = picture(&sandbox);
    assert_eq!(reload(&service).expect(200)["changed"], false);
    let part = |name: &str| {
        fs::copy(sandbox.path("other").join(name), sandbox.path("gallery").join(name)).unwrap();
    };
    part("vectors.npy");
    stays(&service, &["vectors.npy"]);
    part("manifest.json");
    stays(&service, &["plain.npy"]);
    part("plain.npy");
    part("items.jsonl");
    let reloaded = reload(&service).expect(200);
    let made = version(&sandbox, "other");
    assert_eq!((&reloaded["gallery"], &reloaded["read_only"]), (&json!(made), &json!(false)), "{reloaded}");
    add(&service, "new", "class-1", &picture).expect(201);
    // It is this service's again, and its writes keep it from being replaced.
    sandbox.run(&format!("index pictures --gallery gallery {ENCODER}")).fails(2, &["writes"]);
    copy(&sandbox, "first", "gallery");
    stays(&service, &["writes.journal"]);
    drop(service);
    copy(&sandbox, "other", "gallery");
    assert_eq!(GalleryDirectory::read(&sandbox.path("gallery")).unwrap().gallery.rows_of("new").len(), 1);
}

#[test]
fn a_service_that_only_reads_follows_the_disk_when_it_is_told_to() {
    let sandbox = Sandbox::indexed();
    let service = Service::start_line(&sandbox, &format!("serve --gallery gallery {MODEL} --read-only"));
    let (picture, first) = (picture(&sandbox), served(&service));
    index(&sandbox, "gallery", "--seed 1");
    let second = version(&sandbox, "gallery");
    assert_eq!(served(&service), first);
    signal(&service, "-HUP");
    service.wait_for("the reload", |service| served(service) == second);
    // Another service writes to the gallery; this one shows it when it is told to.
    let writer = Service::start_line(&sandbox, &format!("serve --gallery gallery {MODEL}"));
    let written = add(&writer, "new", "class-1", &picture).expect(201);
    service.get("/v1/items/new").expect(404);
    let reloaded = reload(&service).expect(200);
    assert_eq!((&reloaded["gallery"], &reloaded["read_only"]), (&written["gallery"], &json!(true)));
    service.get("/v1/items/new").expect(200);
    writer.delete("/v1/items/new").expect(200);
    reload(&service).expect(200);
    service.get("/v1/items/new").expect(404);
    // Nobody is ended by SIGHUP, whatever is on the disk.
    drop(writer);
    damage(&sandbox.path("gallery/items.jsonl"));
    signal(&service, "-HUP");
    service.wait_for("the refusal", |_| sandbox.text("log.jsonl").contains("\"outcome\":\"refused\""));
    service.post("/v1/query?samples=50", &picture).expect(200);
}

#[test]
fn only_those_who_may_write_may_reload() {
    let sandbox = Sandbox::indexed();
    sandbox.write("tokens", "read aaaaaaaaaaaaaaaa\nwrite bbbbbbbbbbbbbbbb\n");
    let service = Service::start(&sandbox, "--tokens tokens");
    let with = |token: &str| {
        let request = agent().post(format!("{}/v1/reload", service.url));
        reply(request.header("authorization", format!("Bearer {token}")).send_empty())
    };
    assert_eq!(reload(&service).expect(401)["error"]["code"], "unauthorised");
    assert_eq!(with("cccccccccccccccc").status, 401);
    assert_eq!(with("aaaaaaaaaaaaaaaa").expect(403)["error"]["code"], "read_only");
    assert_eq!(with("bbbbbbbbbbbbbbbb").expect(200)["changed"], false);
    // Without tokens, pages of other sites may not.
    let open = Service::start_line(&sandbox, &format!("serve --gallery gallery {MODEL} --read-only"));
    let foreign = agent().post(format!("{}/v1/reload", open.url)).header("origin", "http://evil.example");
    assert_eq!(reply(foreign.send_empty()).status, 403);
    assert_eq!(open.get("/v1/reload").status, 405);
    reload(&open).expect(200);
}

/// What a service manager is told, one message after the other.
struct Manager {
    socket: std::os::unix::net::UnixDatagram,
}

impl Manager {
    fn listen(sandbox: &Sandbox) -> (Self, Command) {
        let path = sandbox.path("notify");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_retrievalguard"));
        command.env("NOTIFY_SOCKET", path);
        (Self { socket }, command)
    }

    fn hears(&self) -> Vec<String> {
        let mut message = [0; 4096];
        let length = self.socket.recv(&mut message).expect("the service says something");
        str::from_utf8(&message[..length]).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_service_manager_hears_when_it_is_ready_reloads_and_stops() {
    let sandbox = Sandbox::indexed();
    index(&sandbox, "other", "--seed 1");
    lead(&sandbox, "gallery");
    let (manager, command) = Manager::listen(&sandbox);
    let mut service = Service::start_by(&sandbox, command, &format!("serve --gallery served {MODEL}"));
    let ready = manager.hears();
    assert_eq!(ready, ["READY=1".to_owned(), format!("STATUS=serving served at {}", service.url)]);
    for (gallery, status) in [
        ("other", "another gallery was taken"),
        ("other", "the gallery is what it was"),
        ("nowhere", "the gallery stays as it was: "),
    ] {
        lead(&sandbox, gallery);
        signal(&service, "-HUP");
        let reloading = manager.hears();
        assert_eq!((reloading.len(), reloading[0].as_str()), (2, "RELOADING=1"), "{reloading:?}");
        let moment = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap();
        assert!(moment.parse::<u64>().unwrap() > 0);
        let ready = manager.hears();
        assert_eq!((ready.len(), ready[0].as_str()), (2, "READY=1"), "{ready:?}");
        assert!(ready[1].starts_with(&format!("STATUS={status}")), "{ready:?}");
        service.get("/readyz").expect(200);
    }
    service.ask_to_end();
    assert_eq!(manager.hears(), ["STOPPING=1"]);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
}
