//! What a service does with disks that are full or read-only, and with a journal that lost its end.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use retrievalguard::storage::manifest::GalleryDirectory;

use crate::report::browser;
use crate::sandbox::{PICTURES, Sandbox};
use crate::serve_client::{Reply, Service};

const SERVE: &str =
    "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0 --log off";

fn picture(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.bytes("pictures/class-1/3.png")
}

/// Limits the files of a running service, which then fail to grow as on a full disk.
fn limit_files(service: &Service, bytes: &str) {
    let pid = service.child.id().to_string();
    let limited =
        Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:")]).status().unwrap();
    assert!(limited.success());
}

fn is_full(reply: Reply) {
    assert!(reply.header("retry-after").is_some());
    let answer = reply.expect(507);
    assert_eq!(answer["error"]["code"], "insufficient_storage");
    assert!(answer["error"]["message"].as_str().unwrap().contains("no room"), "{answer}");
}

/// The program after a line of shell, in which writes beyond the limit on files fail instead of ending it.
fn with_failing_writes(line: &str) -> Command {
    let mut command = Command::new("sh");
    // A signal that is ignored stays ignored through exec.
    let script = format!("trap '' XFSZ; {line} exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_retrievalguard")]);
    command
}

#[test]
fn a_disk_that_is_full_at_the_start_is_served_read_only() {
    let sandbox = Sandbox::indexed();
    let service = Service::start_by(&sandbox, with_failing_writes("ulimit -f 0;"), SERVE);
    let picture = picture(&sandbox);
    service.get("/readyz").expect(200);
    service.post("/v1/query?samples=100", &picture).expect(200);
    let about = service.get("/v1/about").expect(200);
    assert_eq!((&about["gallery"]["read_only"], &about["may_write"]), (&true.into(), &false.into()));
    for reply in [
        service.post("/v1/items?label=new", &picture),
        service.delete("/v1/items/x"),
        service.post("/v1/jobs?samples=100", &picture),
    ] {
        assert_eq!(reply.expect(507)["error"]["code"], "insufficient_storage");
    }
    service.kill();
    // With room, the next one writes.
    let service = Service::start_line(&sandbox, SERVE);
    service.post("/v1/items?label=new&identity=after", &picture).expect(201);
}

#[test]
fn a_full_disk_is_said_loses_nothing_and_is_got_over() {
    let sandbox = Sandbox::indexed();
    let service = Service::start_by(&sandbox, with_failing_writes(""), &SERVE.replace("--log off", ""));
    let picture = picture(&sandbox);
    service.post("/v1/items?label=new&identity=before", &picture).expect(201);
    let job = service.post("/v1/jobs?samples=40000", &picture).expect(202);
    let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    limit_files(&service, "8");
    is_full(service.post("/v1/items?label=new&identity=lost", &picture));
    is_full(service.delete("/v1/items/before"));
    is_full(service.post("/v1/jobs?samples=100", &picture));
    // Everything that is read is answered as before.
    service.post("/v1/query?samples=100", &picture).expect(200);
    service.get("/v1/items/before").expect(200);
    service.get("/v1/items/lost").expect(404);
    service.get("/readyz").expect(200);
    // The answer is worked out and finds no room, so the job goes back into the queue with it.
    service.wait_for("the job waits for room", |service| {
        let report = service.get(&job).expect(200);
        report["state"] == "queued" && report["samples_drawn"] == report["samples_asked"]
    });
    assert_eq!(GalleryDirectory::read(&sandbox.path("gallery")).unwrap().gallery.len(), PICTURES + 1);

    limit_files(&service, "unlimited");
    service.post("/v1/items?label=new&identity=after", &picture).expect(201);
    service.delete("/v1/items/before").expect(200);
    service.wait_for("the job goes on", |service| service.get(&job).expect(200)["state"] == "finished");
    // The answer waited for room; it was not worked out again.
    let report = service.get(&job).expect(200);
    assert!(report["samples_drawn"].as_u64() <= report["samples_asked"].as_u64(), "{report}");
    service.kill();
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let left = ["before", "lost", "after"].map(|name| stored.gallery.rows_of(name).len());
    assert_eq!(left, [0, 0, 1]);
    // Nothing lies about that nobody owns.
    assert_eq!(std::fs::read_dir(sandbox.path("gallery/pictures")).unwrap().count(), 1);
}

/// Takes the right to write away from everything in a folder.
fn make_read_only(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            make_read_only(&path);
        } else {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        }
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o555)).unwrap();
}

/// Gives the right to write back, so that the folder can be removed.
fn make_writable(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            make_writable(&path);
        }
    }
}

/// The program as somebody to whom permissions apply.
fn as_nobody(sandbox: &Sandbox) -> Command {
    let program = env!("CARGO_BIN_EXE_retrievalguard");
    // The owner of what was just made; root is bound by no permission.
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(sandbox.path(".")).unwrap()) != 0 {
        return Command::new(program);
    }
    std::fs::set_permissions(sandbox.path("."), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(program, sandbox.path("program")).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(sandbox.path("program"));
    command
}

#[test]
fn a_gallery_that_cannot_be_written_to_is_served_read_only() {
    let sandbox = Sandbox::indexed();
    let picture = picture(&sandbox);
    // With a write and a finished job in it.
    let service = Service::start_line(&sandbox, SERVE);
    service.post("/v1/items?label=new&identity=added", &picture).expect(201);
    let job = service.post("/v1/jobs?samples=100", &picture).expect(202);
    let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    service.wait_for("the job", |service| service.get(&job).expect(200)["state"] == "finished");
    assert_eq!(service.get("/v1/about").expect(200)["gallery"]["read_only"], false);
    assert_eq!(service.terminate(), Some(0));
    make_read_only(&sandbox.path("gallery"));
    let command = as_nobody(&sandbox);
    let service = Service::start_by(&sandbox, command, &SERVE.replace("--log off", ""));
    service.get("/readyz").expect(200);
    let about = service.get("/v1/about").expect(200);
    assert_eq!((&about["gallery"]["read_only"], &about["may_write"]), (&true.into(), &false.into()));
    assert_eq!(about["gallery"]["items"], PICTURES + 1);
    service.post("/v1/query?samples=100", &picture).expect(200);
    service.get("/v1/items/added").expect(200);
    for (reply, words) in [
        (service.post("/v1/items?label=new", &picture), "served read-only"),
        (service.delete("/v1/items/added"), "served read-only"),
        (service.post("/v1/jobs?samples=100", &picture), "--jobs"),
        (service.delete(&job), "--jobs"),
    ] {
        let answer = reply.expect(403);
        assert_eq!(answer["error"]["code"], "service_read_only");
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{answer}");
    }
    assert_eq!(service.get(&job).expect(200)["state"], "finished");
    drop(service);
    // The folder of jobs holds seeds, so only its owner may look into it.
    std::fs::set_permissions(sandbox.path("gallery/jobs"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let service = Service::start_by(&sandbox, as_nobody(&sandbox), SERVE);
    service.get("/readyz").expect(200);
    assert_eq!(service.get("/v1/jobs").expect(200)["jobs"].as_array().unwrap().len(), 0);
    service.post("/v1/jobs?samples=100", &picture).expect(403);
    drop(service);
    make_writable(&sandbox.path("gallery"));
    let log = sandbox.text("log.jsonl");
    assert!(log.contains("the gallery cannot be written to and is served read-only"), "{log}");
}

#[test]
fn a_service_that_was_told_to_only_reads_takes_no_lock_and_leaves_no_trace() {
    let sandbox = Sandbox::indexed();
    let picture = picture(&sandbox);
    let listing = || {
        let mut names: Vec<_> = std::fs::read_dir(sandbox.path("gallery"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = listing();
    let first = Service::start_line(&sandbox, &format!("{SERVE} --read-only"));
    let second = Service::start_line(&sandbox, &format!("{SERVE} --read-only --jobs elsewhere"));
    for service in [&first, &second] {
        service.post("/v1/query?samples=100", &picture).expect(200);
        service.post("/v1/items?label=new", &picture).expect(403);
    }
    first.post("/v1/jobs?samples=100", &picture).expect(403);
    let job = second.post("/v1/jobs?samples=100", &picture).expect(202);
    let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    second.wait_for("the job", |service| service.get(&job).expect(200)["state"] == "finished");
    // One service runs the jobs of a folder.
    sandbox.run(&format!("{SERVE} --read-only --jobs elsewhere")).fails(1, &["elsewhere", "in use"]);
    drop((first, second));
    assert_eq!(listing(), before);
}

#[test]
fn a_journal_that_lost_acknowledged_writes_is_refused_by_every_command() {
    let sandbox = Sandbox::indexed();
    let picture = picture(&sandbox);
    let service = Service::start_line(&sandbox, SERVE);
    for name in ["one", "two", "three"] {
        service.post(&format!("/v1/items?label=new&identity={name}"), &picture).expect(201);
    }
    service.kill();
    let whole = sandbox.bytes("gallery/writes.journal");
    let end = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
    let commands = [
        SERVE.to_owned(),
        format!("{SERVE} --read-only"),
        "export gallery --parquet out.parquet".to_owned(),
        "certify pictures --gallery gallery --model model/convolutional.onnx --engine rten --sigma 0.1 --out run --samples 100".to_owned(),
        "query pictures/class-1/3.png --gallery gallery --model model/convolutional.onnx --engine rten --sigma 0.1".to_owned(),
        "repair gallery".to_owned(),
    ];
    // Cut between two records, and gone.
    for cut in [Some(end + 1), None] {
        match cut {
            Some(length) => sandbox.write("gallery/writes.journal", &whole[..length]),
            None => std::fs::remove_file(sandbox.path("gallery/writes.journal")).unwrap(),
        }
        for line in &commands {
            sandbox.run(line).fails(2, &["writes.journal", "3 were acknowledged", "repair"]);
        }
        let index = format!("index pictures --gallery gallery {}", crate::sandbox::ENCODER);
        sandbox.run(&index).fails(2, &["3 writes"]);
    }
    sandbox.write("gallery/writes.journal", &whole[..=end]);
    let repaired = sandbox.run("repair gallery --accept-loss").succeeds();
    repaired.tells(&["2 of 3 acknowledged writes are left"]).prints(&["whole, 32 items, 2 writes"]);
    let service = Service::start_line(&sandbox, SERVE);
    assert_eq!(service.get("/v1/items").expect(200)["total"], PICTURES + 2);
    service.post("/v1/items?label=new&identity=three", &picture).expect(201);
    drop(service);
    sandbox.run("repair gallery").succeeds().prints(&["33 items, 3 writes"]);
}

#[test]
fn a_browser_sees_a_read_only_gallery_and_how_little_a_vain_search_proves() {
    let test = "a_browser_sees_a_read_only_gallery_and_how_little_a_vain_search_proves";
    let Some(python) = browser(test) else { return };
    let sandbox = Sandbox::indexed();
    // Every change of the size at which the page searches, which follows from the radius, leaves the label of this picture.
    let flags = "--read-only --max-search-seconds 5 --retriever mean --black-box";
    let service = Service::start_line(&sandbox, &format!("{SERVE} {flags}"));
    let picture = sandbox.path("pictures/class-3/0.png");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/open_read_only.py");
    let screenshots = python.ancestors().nth(3).unwrap().join("browser/read-only");
    let opened =
        Command::new(&python).arg(script).arg(&service.url).args([picture, screenshots]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&opened.stdout), String::from_utf8_lossy(&opened.stderr));
    assert!(opened.status.success() && text.contains("ok: "), "{text}");
}
