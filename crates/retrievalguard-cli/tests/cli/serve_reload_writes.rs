//! What was written is in the gallery that is served, whatever takes its place, and in every copy of it.

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use retrievalguard::storage::manifest::GalleryDirectory;
use serde_json::json;

use crate::sandbox::{ENCODER, PICTURES, Sandbox};
use crate::serve_client::Service;
use crate::serve_reload::{
    MODEL, add, copy, index, lead, picture, reload, serve_link, served, stays, version,
};

#[test]
fn acknowledged_writes_are_in_the_gallery_after_a_reload_or_it_is_refused() {
    let sandbox = Sandbox::indexed();
    let all = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let name = |part: &str| {
        (0..PICTURES)
            .map(|row| all.gallery.identity(row).to_owned())
            .find(|name| name.contains(part))
            .unwrap()
    };
    let (added, removed) = (name("class-1/3"), name("class-2/0"));
    copy(&sandbox, "gallery", "complete");
    let picture = picture(&sandbox);
    fs::remove_file(sandbox.path("pictures/class-1/3.png")).unwrap();
    fs::remove_dir_all(sandbox.path("gallery")).unwrap();
    index(&sandbox, "gallery", "");
    copy(&sandbox, "gallery", "without");
    let service = serve_link(&sandbox, "");
    add(&service, &added, "class-1", &picture).expect(201);
    lead(&sandbox, "without");
    stays(&service, &[&added, "which was added"]);
    // Another seed gives another vector: not the item that was acknowledged.
    sandbox.write("pictures/class-1/3.png", &picture);
    index(&sandbox, "seed", "--seed 1");
    lead(&sandbox, "seed");
    stays(&service, &[&added, "another vector"]);
    // Made anew with the picture in it, as `index` gives it the vector that the service gave it.
    lead(&sandbox, "complete");
    assert_eq!(reload(&service).expect(200)["gallery"], json!(version(&sandbox, "complete")));
    let encoded = added.replace('/', "%2F");
    assert_eq!(service.get(&format!("/v1/items/{encoded}")).expect(200)["added"], false);

    // What was removed stays removed.
    service.delete(&format!("/v1/items/{}", removed.replace('/', "%2F"))).expect(200);
    copy(&sandbox, "complete", "again");
    lead(&sandbox, "again");
    stays(&service, &[&removed, "which was removed"]);
    // The writes are where they were made, for whoever opens that gallery next.
    drop(service);
    let stored = GalleryDirectory::read(&sandbox.path("complete")).unwrap();
    assert_eq!((stored.writes(), stored.gallery.rows_of(&removed).len()), (1, 0));
    assert_eq!(GalleryDirectory::read(&sandbox.path("gallery")).unwrap().gallery.rows_of(&added).len(), 1);
}

#[test]
fn writes_during_reloads_of_the_same_gallery_are_all_there_and_one_that_lacks_them_is_never_taken() {
    const WRITERS: usize = 3;
    const WRITES: usize = 12;
    let sandbox = Sandbox::indexed();
    copy(&sandbox, "gallery", "without");
    let service = serve_link(&sandbox, "");
    let (picture, next) = (picture(&sandbox), AtomicUsize::new(0));
    let statuses = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= WRITES {
                        return;
                    }
                    let status = add(&service, &format!("new-{number}"), "class-1", &picture).status;
                    statuses.lock().unwrap().push(status);
                }
            });
        }
        service.wait_for("the first write", |_| !statuses.lock().unwrap().is_empty());
        while next.load(Ordering::SeqCst) < WRITES {
            lead(&sandbox, "without");
            assert_eq!(reload(&service).status, 409);
            lead(&sandbox, "gallery");
            assert_eq!(reload(&service).expect(200)["changed"], false);
        }
    });
    assert_eq!(statuses.into_inner().unwrap(), [201; WRITES]);
    let found = |gallery: &str| {
        let stored = GalleryDirectory::read(&sandbox.path(gallery)).unwrap().gallery;
        (0..WRITES).filter(|number| stored.rows_of(&format!("new-{number}")).len() == 1).count()
    };
    assert_eq!((found("gallery"), found("without")), (WRITES, 0));
    assert_eq!(service.get("/v1/items").expect(200)["total"], PICTURES + WRITES);
}

#[test]
fn a_gallery_that_takes_the_place_of_the_directory_gets_no_write_before_the_reload() {
    let sandbox = Sandbox::indexed();
    index(&sandbox, "other", "--seed 1");
    let service = Service::start_line(&sandbox, &format!("serve --gallery gallery {MODEL} --jobs jobs"));
    let (picture, other) = (picture(&sandbox), version(&sandbox, "other"));
    // In place it cannot be replaced while it is served for writing.
    let line = format!("index pictures --gallery gallery {ENCODER} --seed 2");
    sandbox.run(&line).fails(1, &["writes.journal", "in use"]);
    fs::rename(sandbox.path("gallery"), sandbox.path("old")).unwrap();
    fs::rename(sandbox.path("other"), sandbox.path("gallery")).unwrap();
    let refused = add(&service, "lost", "class-1", &picture);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.expect(503)["error"]["code"], "gallery_replaced");
    assert!(!sandbox.path("gallery/pictures").exists());
    service.post("/v1/query?samples=50", &picture).expect(200);
    assert_eq!(reload(&service).expect(200)["gallery"], json!(other));
    let added = add(&service, "kept", "class-1", &picture).expect(201);
    assert_eq!(added["gallery"], json!(served(&service)));
    drop(service);
    let stored = |gallery: &str| GalleryDirectory::read(&sandbox.path(gallery)).unwrap();
    assert_eq!((stored("gallery").gallery.rows_of("kept").len(), stored("old").writes()), (1, 0));
    assert_eq!(fs::read_dir(sandbox.path("gallery/pictures")).unwrap().count(), 1);
}

#[test]
fn a_picture_that_is_embedded_during_a_reload_gets_the_vector_that_the_new_gallery_wants() {
    let sandbox = Sandbox::indexed();
    index(&sandbox, "slow", "--limit 3 --samples 30000");
    index(&sandbox, "quick", "--limit 3 --samples 40 --seed 1");
    index(&sandbox, "whole", "--samples 40 --seed 1");
    let whole = GalleryDirectory::read(&sandbox.path("whole")).unwrap().gallery;
    let identity =
        (0..PICTURES).map(|row| whole.identity(row)).find(|name| name.contains("class-1/3")).unwrap();
    lead(&sandbox, "slow");
    let service = Service::start_line(&sandbox, &format!("serve --gallery served {MODEL} --max-seconds 300"));
    let picture = picture(&sandbox);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| add(&service, identity, "class-1", &picture));
        service.wait_for("the picture is embedded", |service| {
            let text = String::from_utf8(service.get("/metrics").body).unwrap();
            !text.contains("retrievalguard_encoder_backlog 0\n")
        });
        lead(&sandbox, "quick");
        let reloaded = reload(&service).expect(200);
        assert!(!adding.is_finished(), "the picture was added before the reload");
        let added = adding.join().unwrap().expect(201);
        assert_ne!(added["gallery"], reloaded["gallery"]);
    });
    let stored = |gallery: &str| GalleryDirectory::read(&sandbox.path(gallery)).unwrap();
    let quick = stored("quick").gallery;
    let vector = quick.vector(quick.rows_of(identity)[0]);
    assert_eq!(vector, whole.vector(whole.rows_of(identity)[0]));
    assert_eq!((stored("quick").writes(), stored("slow").writes()), (1, 0));
}

#[test]
fn a_copy_taken_while_writes_go_on_has_every_write_that_was_acknowledged_before_it() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--jobs jobs");
    let (picture, over, acknowledged) = (picture(&sandbox), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                add(&service, &format!("new-{number}"), "class-1", &picture).expect(201);
                acknowledged.store(number + 1, Ordering::SeqCst);
                if number % 3 == 2 {
                    service.delete(&format!("/v1/items/new-{}", number - 1)).expect(200);
                }
            }
        });
        for round in 0..10 {
            let before = acknowledged.load(Ordering::SeqCst);
            service.wait_for("more writes", |_| acknowledged.load(Ordering::SeqCst) > before);
            let before = acknowledged.load(Ordering::SeqCst);
            // As docs/operation.md has it.
            let script = format!(
                "mkdir copy-{round} && cp -p gallery/writes.anchor copy-{round}/ && cp -p gallery/writes.journal copy-{round}/ && \
                 cp -rpn gallery/. copy-{round}/"
            );
            let copied =
                Command::new("sh").args(["-c", &script]).current_dir(sandbox.path(".")).output().unwrap();
            assert!(sandbox.path(&format!("copy-{round}/manifest.json")).exists(), "{copied:?}");
            let stored = GalleryDirectory::read(&sandbox.path(&format!("copy-{round}"))).unwrap();
            let missing = (0..before).filter(|number| {
                let removed = number % 3 == 1;
                !removed && stored.gallery.rows_of(&format!("new-{number}")).is_empty()
            });
            assert_eq!(missing.collect::<Vec<_>>(), [0_usize; 0], "of {before}");
            sandbox.run(&format!("repair copy-{round}")).succeeds().prints(&["whole, "]);
        }
        over.store(true, Ordering::SeqCst);
    });
}
